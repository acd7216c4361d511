"""An operator schema made from the installed function's own signature.

The schema is the binder: positional and keyword calls, defaults and parameters that a release
inserts come out right because they are read from the function, not written down.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .carry import AT_DEFAULT, Carrier

#: Python annotations that torch's schema language can say, and how it says them. An int may be a
#: symbolic size, so it is a SymInt.
_TYPES: Mapping[object, str] = {
    torch.Tensor: "Tensor",
    int: "SymInt",
    float: "float",
    bool: "bool",
    str: "str",
    torch.dtype: "ScalarType",
    torch.device: "Device",
}


class Inexpressible(TypeError):
    """A parameter that no schema type and no carrier can take."""


@dataclass(frozen=True)
class Schema:
    """The parameters of an op.

    Attributes:
        text: ``(Tensor input, ...) -> (Tensor, Tensor)``, as ``Library.define`` wants it.
        names: the parameters in order, those of the function.
        carriers: by parameter, how the ones that travel as text do.
    """

    text: str
    names: tuple[str, ...]
    carriers: Mapping[str, Carrier]

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The function's arguments by keyword, from a call of the op.

        The dispatcher drops trailing arguments that stand at their default; so do we, and the
        function's own defaults apply. By keyword, since releases insert parameters.
        """
        named = dict(zip(self.names, args, strict=False)) | dict(kwargs)
        for name, carrier in self.carriers.items():
            text = named.pop(name, AT_DEFAULT)
            if text != AT_DEFAULT:
                named[name] = carrier.decode(text)
        return named


def from_signature(
    signature: inspect.Signature,
    *,
    returns: str,
    carriers: Mapping[str, Carrier] | None = None,
    mutates: Collection[str] = (),
) -> Schema:
    """Make the schema of a function.

    Args:
        signature: of the installed function, annotations evaluated.
        returns: the return part, as the schema language writes it (``(Tensor, Tensor)``).
        carriers: parameters that travel as text.
        mutates: tensors that the function writes into.

    Raises:
        Inexpressible: for a parameter that neither the language nor a carrier can take.
    """
    carriers = {n: c for n, c in (carriers or {}).items() if n in signature.parameters}
    parts: list[str] = []
    keyword_only = False
    for index, parameter in enumerate(signature.parameters.values()):
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            parts.append("*")
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise Inexpressible(f"parameter {parameter} has no fixed place in a schema")
        if parameter.name in carriers:
            parts.append(f'str {parameter.name}="{AT_DEFAULT}"')
            continue
        alias = f"(a{index}!)" if parameter.name in mutates else ""
        parts.append(_parameter(parameter, alias))
    return Schema(f"({', '.join(parts)}) -> {returns}", tuple(signature.parameters), carriers)


def _parameter(parameter: inspect.Parameter, alias: str) -> str:
    base, optional = _unwrap_optional(parameter.annotation)
    kind = _TYPES.get(base)
    if kind is None:
        raise Inexpressible(
            f"parameter {parameter.name}: {parameter.annotation} cannot be said in a schema"
        )
    text = f"{kind}{alias}{'?' if optional else ''} {parameter.name}"
    if parameter.default is inspect.Parameter.empty:
        return text
    return f"{text}={_default(parameter)}"


def _unwrap_optional(annotation: Any) -> tuple[Any, bool]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = [a for a in typing.get_args(annotation) if a is not type(None)]
        if len(members) == 1:
            return members[0], True
    literal = typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()
    if literal and all(isinstance(value, str) for value in literal):
        return str, False
    return annotation, False


def _default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if isinstance(value, str):
        return f'"{value}"'
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    raise Inexpressible(f"parameter {parameter.name}: default {value!r} cannot be said in a schema")
