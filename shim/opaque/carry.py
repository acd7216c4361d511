"""Values that an operator schema cannot hold, carried through it as text.

A sentinel default, None or a frozen dataclass of numbers, strings and enums is constant while a
graph is traced. It is written as a string argument, so that two different values never share one
call in a graph, and read back into an equal value before the function runs. The text is plain
data: it survives export, Inductor's caches and another process.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import typing
from collections.abc import Callable
from typing import Any

#: The text of a parameter that stands at its default: the function's own default applies then.
AT_DEFAULT = ""
_NONE = "None"


@dataclasses.dataclass(frozen=True)
class Carrier:
    """How one parameter travels.

    Attributes:
        encode: value -> text. Traced by Dynamo, so plain Python on attributes only.
        decode: text -> value; never called with :data:`AT_DEFAULT`.
    """

    encode: Callable[[Any], str]
    decode: Callable[[str], Any]


def dataclass_carrier(parameter: str, default: object, kind: type) -> Carrier:
    """Carry ``parameter`` whose value is its ``default`` (by identity), None or a ``kind``.

    Args:
        parameter: its name, for the error.
        default: the object that stands for "not given".
        kind: a dataclass whose fields hold int, float, bool, str or enum members.

    The carrier's ``encode`` raises TypeError, naming parameter and value, for any other value.
    """
    names = tuple(field.name for field in dataclasses.fields(kind))
    enums = _enum_fields(kind)

    def encode(value: Any) -> str:
        if value is default:
            return AT_DEFAULT
        if value is None:
            return _NONE
        if not isinstance(value, kind):
            raise TypeError(
                f"{parameter}={value} cannot be carried into a compiled graph: "
                f"expected {kind.__name__}, None or nothing"
            )
        parts = []
        for name in names:
            item = getattr(value, name)
            # By name: a member's number is not the same in every release.
            parts.append(f"{name}={item.name}" if name in enums else f"{name}={item!r}")
        return ";".join(parts)

    def decode(text: str) -> Any:
        if text == _NONE:
            return None
        fields: dict[str, Any] = {}
        for part in text.split(";"):
            name, _, item = part.partition("=")
            fields[name] = enums[name][item] if name in enums else _literal(item)
        return kind(**fields)

    return Carrier(encode, decode)


def _enum_fields(kind: type) -> dict[str, type[enum.Enum]]:
    found: dict[str, type[enum.Enum]] = {}
    for name, annotation in typing.get_type_hints(kind).items():
        for candidate in (annotation, *typing.get_args(annotation)):
            if isinstance(candidate, type) and issubclass(candidate, enum.Enum):
                found[name] = candidate
    return found


def _literal(text: str) -> Any:
    words = {"True": True, "False": False, "None": None}
    if text in words:
        return words[text]
    return json.loads(text.replace("'", '"'))
