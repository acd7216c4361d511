"""Values that an operator schema cannot hold, carried through it in parts that it can.

A sentinel default, None, an enum member or a frozen dataclass is constant while a graph is
traced. It travels as text, so that two different values never share one call in a graph, and is
read back into an equal value before the function runs. The text is plain data: it survives export,
Inductor's caches and another process. A parameter that is a tensor or something else travels in
two parts, one of which is empty, and a named tuple field by field. A generator, which has a state
and no value, travels by a number (``handles.py``).
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import itertools
import json
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import torch

from . import handles

#: Python annotations that torch's schema language can say, and how it says them. An int may be a
#: symbolic size, so it is a SymInt.
TYPES: Mapping[object, str] = {
    torch.Tensor: "Tensor{}",
    int: "SymInt",
    float: "float",
    bool: "bool",
    str: "str",
    torch.dtype: "ScalarType",
    torch.device: "Device",
    list[torch.Tensor]: "Tensor{}[]",
    list[int]: "SymInt[]",
}

#: Annotation of a parameter that holds whatever else was given by position, as a tuple.
EXTRAS = object()


class Itself:
    """Annotation of a parameter that travels as itself, whatever it is."""


#: The text of a parameter that stands at its default: the function's own default applies then.
AT_DEFAULT = ""
#: The text of a dict without entries.
_EMPTY = "{}"
#: Beyond it not every whole number is a float.
_EXACT = 2**53

#: Where upstream's classes are defined whose objects are set up once, by all ranks, and then kept:
#: workspaces and groups of collectives. One travels as itself, and has graphs of its own.
_KEPT = ("flashinfer.comm.", "torch.distributed.", "torch._C._distributed_c10d")
_NONE = "None"


@dataclasses.dataclass(frozen=True)
class Part:
    """One schema parameter: ``type`` with a place for the alias, ``{}``, and the default's text.

    ``default`` is empty where there is none, as always for a list of tensors.
    """

    name: str
    type: str
    default: str
    value: Any

    def declare(self, alias: str) -> str:
        """As the schema language writes it."""
        text = f"{self.type.format(alias)} {self.name}"
        return f"{text}={self.default}" if self.default else text


@dataclasses.dataclass(frozen=True)
class Carrier:
    """How one parameter travels.

    Attributes:
        parts: what it travels as; their defaults together mean the function's own default.
        encode: value -> one value for each part. Traced by Dynamo, so plain Python throughout.
        decode: the values of the parts -> value; not called where all are at their defaults.
    """

    parts: tuple[Part, ...]
    encode: Callable[[Any], tuple[Any, ...]]
    decode: Callable[..., Any]


def carrier_for(parameter: inspect.Parameter) -> Carrier | None:
    """The carrier that the annotation asks for; None if the value is one that a schema can hold.

    A parameter of a kind that nothing can carry may stand at its default; its carrier's ``encode``
    raises TypeError, naming parameter and value, for any other.
    """
    if parameter.annotation is EXTRAS:
        return _extras(parameter)
    members = _members(parameter.annotation)
    has_default = parameter.default is not inspect.Parameter.empty
    if torch.Tensor in members and any(_is_tensor_tuple(m) for m in members):
        return _tensor_or_pair(parameter)
    if len(members) == 1 and _is_tensor_tuple(members[0]):
        return _tensor_or_pair(parameter)
    if torch.Tensor in members and set(members) & {float, int} and len(members) == 2:
        return _tensor_or_number(parameter, float if float in members else int)
    if has_default and _is_choice(members):
        return _constant(parameter, (bool, str), "text or a bool", repr, _literal)
    if members == [torch.Generator] and has_default:
        return _generator(parameter)
    if members == [dict] and has_default:
        return _numbers(parameter)
    if len(members) != 1 or not isinstance(members[0], type):
        return None
    if members[0] is int and isinstance(parameter.default, enum.Enum):
        return _enum(parameter, type(parameter.default))
    if hasattr(members[0], "_fields") and parameter.default in (None, inspect.Parameter.empty):
        return _named_tuple(parameter, members[0])
    if issubclass(members[0], enum.Enum):
        return _enum(parameter, members[0])
    if dataclasses.is_dataclass(members[0]) and has_default and _is_constant(members[0]):
        return _dataclass(parameter, members[0])
    if members[0] is Itself or members[0].__module__.startswith(_KEPT):
        return _object(parameter, members[0])
    return None


def only_default(parameter: inspect.Parameter) -> Carrier:
    """For a parameter that nothing can carry: it travels by not being there."""

    def encode(value: Any) -> tuple[Any, ...]:
        if value is parameter.default:
            return ()
        raise TypeError(
            f"{parameter.name}={_shown(value)} cannot be carried into a compiled graph: "
            "leave it at its default there"
        )

    return Carrier((), encode, lambda: parameter.default)


def _members(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [a for a in typing.get_args(annotation) if a is not type(None)]
    return [annotation]


def _is_tensor_tuple(annotation: Any) -> bool:
    arguments = typing.get_args(annotation)
    return (
        typing.get_origin(annotation) is tuple
        and bool(arguments)
        and all(a in (torch.Tensor, ...) for a in arguments)
    )


def _is_choice(members: list[Any]) -> bool:
    """Whether it is one of several words or a truth value."""
    kinds = {str if typing.get_origin(m) is typing.Literal else m for m in members}
    return kinds == {bool, str}


def _tensor_or_pair(parameter: inspect.Parameter) -> Carrier:
    """One tensor or a tuple of them, such as a paged cache: a list, and whether it is a tuple."""
    name = parameter.name
    optional = parameter.default is None
    mark, default = ("?", "None") if optional else ("", "")
    parts = (
        Part(name, f"Tensor{{}}[]{mark}", default, None),
        Part(f"{name}_is_tuple", f"bool{mark}", default, None),
    )

    def encode(value: Any) -> tuple[Any, ...]:
        if value is None and optional:
            return None, None
        if isinstance(value, (tuple, list)):
            return list(value), True
        return [value], False

    def decode(tensors: list[torch.Tensor], is_tuple: bool) -> Any:
        return tuple(tensors) if is_tuple else tensors[0]

    return Carrier(parts, encode, decode)


def _tensor_or_number(parameter: inspect.Parameter, kind: type) -> Carrier:
    """A tensor or a number, such as a scale, or a seed."""
    name = parameter.name
    default = "" if parameter.default is inspect.Parameter.empty else "None"
    parts = (
        Part(name, "Tensor{}?", default, None),
        Part(f"{name}_number", f"{TYPES[kind]}?", default, None),
    )

    def encode(value: Any) -> tuple[Any, ...]:
        if value is None or isinstance(value, torch.Tensor):
            return value, None
        return None, value if isinstance(value, kind) else kind(value)

    def decode(tensor: torch.Tensor | None, number: float | None) -> Any:
        return number if tensor is None else tensor

    return Carrier(parts, encode, decode)


def _extras(parameter: inspect.Parameter) -> Carrier:
    """Tensors and numbers in any order: both kinds by themselves, and which came where."""
    name = parameter.name
    parts = (
        Part(name, "Tensor{}[]?", "None", None),
        Part(f"{name}_numbers", "float[]?", "None", None),
        Part(f"{name}_kinds", "str", '""', ""),
    )

    def encode(values: Any) -> tuple[Any, ...]:
        tensors, numbers, kinds = [], [], ""
        for value in values:
            if isinstance(value, torch.Tensor):
                tensors.append(value)
                kinds += "t"
            elif value is None:
                kinds += "n"
            elif isinstance(value, (bool, int, float)) and (
                isinstance(value, float) or abs(value) <= _EXACT
            ):
                numbers.append(float(value))
                kinds += "b" if isinstance(value, bool) else "i" if isinstance(value, int) else "f"
            else:
                raise TypeError(
                    f"{name} holds {_shown(value)}, which cannot be carried into a compiled graph"
                )
        return (tensors, numbers, kinds) if kinds else (None, None, "")

    def decode(tensors: list[torch.Tensor], numbers: list[float], kinds: str) -> Any:
        rest = {"t": iter(tensors), "n": itertools.repeat(None)}
        number = iter(numbers)
        read = {"b": bool, "i": int, "f": float}
        return tuple(
            read[kind](next(number)) if kind in read else next(rest[kind]) for kind in kinds
        )

    return Carrier(parts, encode, decode)


def _generator(parameter: inspect.Parameter) -> Carrier:
    part = Part(parameter.name, "int?", "None", None)

    def encode(value: Any) -> tuple[Any, ...]:
        return (None if value is None else handles.number_of(value),)

    return Carrier((part,), encode, handles.object_of)


def _object(parameter: inspect.Parameter, kind: type) -> Carrier:
    """What is set up once, by its number; see :mod:`.handles`."""
    name, optional = parameter.name, parameter.default is not inspect.Parameter.empty
    part = Part(name, "int?" if optional else "int", "None" if optional else "", None)

    def encode(value: Any) -> tuple[Any, ...]:
        fits = value is None or kind is Itself or isinstance(value, kind)
        if not fits:
            raise TypeError(f"{name} is to be a {kind.__name__}, and is {value}")
        return (None if value is None else handles.number_of(value),)

    return Carrier((part,), encode, handles.object_of)


def _numbers(parameter: inspect.Parameter) -> Carrier:
    """A dict of numbers, such as what a workspace was made for: text."""

    def encode(value: Any) -> tuple[Any, ...]:
        if value is None:
            return (AT_DEFAULT,)
        texts = []
        for key, item in value.items():
            if not (item is None or isinstance(item, (bool, int, float))):
                raise TypeError(
                    f"{parameter.name}[{key!r}]={_shown(item)} cannot be carried into a compiled "
                    "graph"
                )
            if isinstance(item, int) and not isinstance(item, bool):
                item = operator.index(item)  # of a symbolic number, which ties the graph to it
            texts.append(f"{key}={item!r}")
        return (";".join(texts) or _EMPTY,)

    def decode(text: str) -> Any:
        items = (item.partition("=") for item in text.split(";") if text != _EMPTY)
        return {key: _literal(value) for key, _, value in items}

    part = Part(parameter.name, "str", f'"{AT_DEFAULT}"', AT_DEFAULT)
    return Carrier((part,), encode, decode)


def _named_tuple(parameter: inspect.Parameter, kind: Any) -> Carrier | None:
    """A named tuple of tensors and numbers, each in a part of its own."""
    hints = typing.get_type_hints(kind)
    types = [_may_be_missing(hints.get(field)) for field in kind._fields]
    if None in types:
        return None
    optional = parameter.default is None
    mark, default = ("?", "None") if optional else ("", "")
    parts = tuple(
        Part(
            f"{parameter.name}_{field}", told if told.endswith("?") else told + mark, default, None
        )
        for field, told in zip(kind._fields, types, strict=True)
        if told is not None
    )

    def encode(value: Any) -> tuple[Any, ...]:
        if value is None and optional:
            return (None,) * len(parts)
        if not isinstance(value, kind):
            raise TypeError(
                f"{parameter.name}={_shown(value)} cannot be carried into a compiled graph: "
                f"expected {kind.__name__}"
            )
        return tuple([getattr(value, field) for field in kind._fields])

    return Carrier(parts, encode, kind)


def _may_be_missing(annotation: Any) -> str | None:
    """The type of a field as the schema language says it, ``?`` behind it where it may be None."""
    members = _members(annotation)
    told = TYPES.get(members[0]) if len(members) == 1 else None
    return told if told is None or members == [annotation] else f"{told}?"


def _constant(
    parameter: inspect.Parameter,
    kind: type | tuple[type, ...],
    expected: str,
    write: Callable[[Any], str],
    read: Callable[[str], Any],
) -> Carrier:
    """A ``kind``, as ``write`` and ``read`` have it; None; or the default, by identity."""

    def encode(value: Any) -> tuple[Any, ...]:
        if value is parameter.default:
            return (AT_DEFAULT,)
        if value is None:
            return (_NONE,)
        if not isinstance(value, kind):
            raise TypeError(
                f"{parameter.name}={_shown(value)} cannot be carried into a compiled graph: "
                f"expected {expected}"
            )
        return (write(value),)

    required = parameter.default is inspect.Parameter.empty
    part = Part(parameter.name, "str", "" if required else f'"{AT_DEFAULT}"', AT_DEFAULT)
    return Carrier((part,), encode, lambda text: None if text == _NONE else read(text))


def _enum(parameter: inspect.Parameter, kind: type[enum.Enum]) -> Carrier:
    """An enum member, by its name: its number is not the same in every release.

    Where members are numbers, upstream may take a number for one, and the number arrives.
    """
    numeric = issubclass(kind, int)

    def write(value: Any) -> str:
        return value.name if isinstance(value, kind) else str(int(value))

    def read(text: str) -> Any:
        return int(text) if numeric and text.lstrip("-").isdigit() else kind[text]

    accepted = int if numeric else kind
    return _constant(parameter, accepted, f"a member of {kind.__name__}", write, read)


def _dataclass(parameter: inspect.Parameter, kind: type) -> Carrier:
    """A dataclass of numbers, strings and enum members."""
    names = tuple(field.name for field in dataclasses.fields(kind))
    enums = _enum_fields(kind)

    def write(value: Any) -> str:
        texts = []
        for name in names:
            item = getattr(value, name)
            if name in enums:
                item = item.name
            elif isinstance(item, int) and not isinstance(item, bool):
                item = operator.index(item)  # of a symbolic number, which ties the graph to it
            texts.append(f"{name}={item}" if name in enums else f"{name}={item!r}")
        return ";".join(texts)

    def read(text: str) -> Any:
        fields: dict[str, Any] = {}
        for item in text.split(";"):
            name, _, value = item.partition("=")
            fields[name] = enums[name][value] if name in enums else _literal(value)
        return kind(**fields)

    return _constant(parameter, kind, f"{kind.__name__}, None or nothing", write, read)


def _is_constant(kind: type) -> bool:
    """Whether a dataclass holds numbers, strings and enum members alone."""
    plain = (bool, int, float, str, enum.Enum)
    return all(
        isinstance(member, type) and issubclass(member, plain)
        for annotation in typing.get_type_hints(kind).values()
        for member in _members(annotation)
    )


def _enum_fields(kind: type) -> dict[str, type[enum.Enum]]:
    found: dict[str, type[enum.Enum]] = {}
    for name, annotation in typing.get_type_hints(kind).items():
        for candidate in _members(annotation):
            if isinstance(candidate, type) and issubclass(candidate, enum.Enum):
                found[name] = candidate
    return found


def _shown(value: Any) -> Any:
    """What a message says of a value. Of a tensor Dynamo has no text."""
    return type(value).__name__ if isinstance(value, torch.Tensor) else value


def _literal(text: str) -> Any:
    words: dict[str, Any] = {"True": True, "False": False, "None": None}
    words |= {word: float(word) for word in ("inf", "-inf", "nan")}
    return words[text] if text in words else json.loads(text.replace("'", '"'))
