"""An operator schema made from the installed function's own signature.

The schema is the binder: positional and keyword calls, defaults and parameters that a release
inserts come out right because they are read from the function, not written down.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import operator
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .carry import TYPES, Carrier, Itself, Part, carrier_for, only_default

#: What an annotation of ours may say, members of a union with ``|`` between them.
_WORDS: Mapping[str, Any] = {
    "Tensor": torch.Tensor,
    "Tensors": list[torch.Tensor],
    "float": float,
    "int": int,
    "ints": list[int],
    "bool": bool,
    "str": str,
    "dtype": torch.dtype,
    "tuple": tuple[torch.Tensor, ...],
    "object": Itself,
    "None": None,
}
#: Dynamo takes a keyword of this name for an output of torch's own functions, and refuses one that
#: is not contiguous: in the op it has another name.
_OUT = "out"
_RENAMED = Carrier(
    (Part("out_", "Tensor{}?", "None", None),), lambda value: (value,), lambda value: value
)
_NONE_GIVEN: Mapping[str, str] = types.MappingProxyType({})


class Inexpressible(TypeError):
    """A parameter that no schema type and no carrier can take."""


@dataclass(frozen=True)
class Schema:
    """The parameters of an op.

    Attributes:
        text: ``(Tensor input, ...) -> (Tensor, Tensor)``, as ``Library.define`` wants it.
        op_names: the op's parameters in order.
        carriers: by function parameter, how the ones that travel in parts do.
        required: the function's parameters without a default.
        plain: by parameter of the op, the function's one that it is.
    """

    text: str
    op_names: tuple[str, ...]
    carriers: Mapping[str, Carrier]
    required: frozenset[str] = frozenset()
    plain: Mapping[str, str] = field(default_factory=dict)

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The function's arguments by keyword, from a call of the op.

        The dispatcher drops trailing arguments that stand at their default; so do we, and the
        function's own defaults apply. By keyword, since releases insert parameters.
        """
        named = dict(zip(self.op_names, args, strict=False))
        if kwargs:
            named.update(kwargs)
        for name, carrier in self.carriers.items():
            given = [part.name in named for part in carrier.parts]
            if True in given:
                values = [named.pop(part.name, part.value) for part in carrier.parts]
                at_default = values == [part.value for part in carrier.parts]
                if name in self.required or not at_default:
                    named[name] = carrier.decode(*values)
        return named


def from_signature(
    signature: inspect.Signature,
    *,
    returns: str,
    mutates: Collection[str] = (),
    without: Collection[str] = (),
    required: Collection[str] = (),
    annotations: Mapping[str, str] = _NONE_GIVEN,
) -> Schema:
    """Make the schema of a function.

    Args:
        signature: of the installed function, annotations evaluated.
        returns: the return part, as the schema language writes it (``(Tensor, Tensor)``).
        mutates: parameters whose tensors the function writes into.
        without: parameters that this op leaves at their defaults.
        required: optional parameters that this op always gets.
        annotations: of parameters whose own one is missing or of no use.

    Raises:
        Inexpressible: for a parameter that neither the language nor a carrier can take.
    """
    carriers: dict[str, Carrier] = {}
    as_they_are: dict[str, str] = {}
    declared: list[str] = []
    op_names: list[str] = []
    keyword_only = False
    for index, parameter in enumerate(signature.parameters.values()):
        if parameter.name in without:
            continue
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise Inexpressible(f"parameter {parameter} cannot be given by name")
        parameter = _annotated(parameter, annotations)
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            declared.append("*")
        alias = f"(a{index}!)" if parameter.name in mutates else ""
        plain = _declare(parameter, alias, required=parameter.name in required)
        if plain is not None and parameter.name == _OUT:
            carriers[_OUT] = _RENAMED
            declared.append(plain.replace(f" {_OUT}", f" {_RENAMED.parts[0].name}"))
            op_names.append(_RENAMED.parts[0].name)
            as_they_are[op_names[-1]] = parameter.name
            continue
        if plain is not None:
            declared.append(plain)
            op_names.append(parameter.name)
            as_they_are[op_names[-1]] = parameter.name
            continue
        carrier = carriers[parameter.name] = _carrier(parameter)
        declared += [part.declare(alias) for part in carrier.parts]
        op_names += [part.name for part in carrier.parts]
    if declared and declared[-1] == "*":
        declared.pop()
    text = f"({', '.join(_defaults_last(declared))}) -> {returns}"
    empty = inspect.Parameter.empty
    required_ones = frozenset(n for n, p in signature.parameters.items() if p.default is empty)
    return Schema(text, tuple(op_names), carriers, required_ones, as_they_are)


def kinds(
    signature: inspect.Signature, annotations: Mapping[str, str]
) -> dict[str, tuple[Any, bool]]:
    """The type of each parameter that has a plain one, and whether it may be None."""
    found = {}
    for parameter in signature.parameters.values():
        parameter = _annotated(parameter, annotations)
        base, optional = _unwrap(parameter.annotation)
        if carrier_for(parameter) is None and base in TYPES:
            found[parameter.name] = (base, optional or parameter.default is None)
    return found


def _annotated(parameter: inspect.Parameter, annotations: Mapping[str, str]) -> inspect.Parameter:
    """The parameter with the annotation that is given for it, or that its default speaks of."""
    given = annotations.get(parameter.name)
    if given is not None:
        members = tuple(_meant(word.strip()) for word in given.split("|"))
        return parameter.replace(annotation=functools.reduce(operator.or_, members))
    empty = inspect.Parameter.empty
    if parameter.annotation is empty and parameter.default not in (empty, None):
        return parameter.replace(annotation=type(parameter.default))
    return parameter


def _meant(word: str) -> Any:
    """What a word of an annotation of ours stands for; a dotted one is imported."""
    module, _, name = word.rpartition(".")
    return getattr(importlib.import_module(module), name) if module else _WORDS[word]


def _carrier(parameter: inspect.Parameter) -> Carrier:
    carrier = carrier_for(parameter)
    if carrier is not None:
        return carrier
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if parameter.default is inspect.Parameter.empty or parameter.kind in variadic:
        raise Inexpressible(f"parameter {parameter} can be neither declared nor carried")
    return only_default(parameter)


def _declare(parameter: inspect.Parameter, alias: str, *, required: bool) -> str | None:
    """The parameter as the schema language says it, None if it cannot."""
    base, optional = _unwrap(parameter.annotation)
    kind = TYPES.get(base)
    if kind is None or parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return None
    # An `out: Tensor = None` says by its default that it is optional.
    optional = (optional or parameter.default is None) and not required
    text = f"{kind.format(alias)}{'?' if optional else ''} {parameter.name}"
    if parameter.default is inspect.Parameter.empty or required:
        return text
    default = _default(parameter.default, floating=base is float)
    return None if default is None else f"{text}={default}"


def _unwrap(annotation: Any) -> tuple[Any, bool]:
    """What an annotation says without Optional, List for list, Literal of strings for str."""
    optional = False
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = [a for a in typing.get_args(annotation) if a is not type(None)]
        if len(members) != 1:
            return None, False
        annotation, optional = members[0], True
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is list:
        return list[arguments[0]], optional  # type: ignore[valid-type]
    if origin is typing.Literal and all(isinstance(value, str) for value in arguments):
        return str, optional
    return (annotation if annotation.__hash__ else None), optional


def _default(value: Any, *, floating: bool) -> str | None:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, (int, float)) and floating:
        return repr(float(value))
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if value is None or type(value) in (bool, int, float):
        return repr(value)
    return None


def _defaults_last(declared: list[str]) -> list[str]:
    """The schema language wants parameters with defaults behind those without; carriers' have."""
    star = declared.index("*") if "*" in declared else len(declared)
    positional = declared[:star]
    first_default = next((i for i, text in enumerate(positional) if "=" in text), len(positional))
    if all("=" in text for text in positional[first_default:]):
        return declared
    # By keyword from there on, where order means nothing.
    head, tail = positional[:first_default], positional[first_default:]
    return [*head, "*", *tail, *declared[star + 1 :]]
