"""The parameters of a traced call, judged as Python judges those of the function itself.

An op would judge them too, but by its own name, and takes no ``8192.0`` for a whole number. Where
Dynamo follows a call it does so line by line, so each function has source of its own, a few
straight lines: Python binds the arguments. What does not fit the parameters at all is refused in
Dynamo's own words, as for any function.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from .dispatch import is_plain

#: What is no number, whatever a function does with it.
_NO_NUMBER = (torch.Tensor, str, list, tuple, dict, type(None))


def binding(
    function: str,
    signature: inspect.Signature,
    kinds: Mapping[str, tuple[Any, bool]],
    call: Callable[..., Any],
    *,
    unless_none: Collection[str] = (),
) -> Callable[..., Any]:
    """``call``, which takes arguments by keyword, behind the parameters of a function.

    Args:
        function: its name, for messages.
        signature: its parameters.
        kinds: the types of those that a schema can hold, and whether they may be None.
        call: gets all that have a plain value, and what was given of the others.
        unless_none: parameters that ``call`` gets only if they are something.
    """
    name = function.rpartition(".")[2]
    parameters = list(signature.parameters.values())
    # A default that is no plain value is not one to Dynamo, neither by identity nor by equality.
    odd = {p.name for p in parameters if not is_plain(p.default)}
    # No parameter is called like one of these.
    known: dict[str, Any] = {"_call": call, "_type": type, "_dict": dict}
    lines = []
    for parameter in parameters:
        if parameter.name in odd:
            known[f"_default_{parameter.name}"] = ...
        elif parameter.default is not inspect.Parameter.empty:
            known[f"_default_{parameter.name}"] = parameter.default
        kind, optional = kinds.get(parameter.name, (None, False))
        if kind in _JUDGES and parameter.name not in odd:
            known[f"_{kind.__name__}"] = kind
            known[f"_judge_{parameter.name}"] = _judge(kind, function, parameter.name)
            lines.append(_judging(parameter.name, kind, optional))
    sometimes = (*unless_none, *odd)
    given = ", ".join(f"{p.name}={p.name}" for p in parameters if p.name not in sometimes)
    lines.append(f"_named = _dict({given})")
    for each in sometimes:
        lines += [f"if {each} is not _default_{each}:", f"    _named[{each!r}] = {each}"]
    lines.append("return _call(**_named)")
    source = [
        f"def _made({', '.join(known)}):",
        f"    def {name}({', '.join(_declared(parameters))}):",
        *(f"        {line}" for line in lines),
        f"    return {name}",
    ]
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(compile("\n".join(source), f"<the parameters of {function}>", "exec"), namespace)
    made: Callable[..., Any] = namespace["_made"](**known)
    made.__qualname__ = name  # as Python names it where arguments do not fit
    return made


def _declared(parameters: list[inspect.Parameter]) -> list[str]:
    declared, keyword_only = [], False
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            declared.append("*")
        has_default = parameter.default is not inspect.Parameter.empty
        declared.append(parameter.name + (f"=_default_{parameter.name}" if has_default else ""))
    return declared


def _judging(name: str, kind: type, optional: bool) -> str:
    """A line that has a value of another type judged."""
    given = f"{name} is not None and " if optional else ""
    return f"if {given}_type({name}) is not _{kind.__name__}: {name} = _judge_{name}({name})"


def _judge(kind: type, function: str, name: str) -> Callable[[Any], Any]:
    judges = _JUDGES[kind]

    def judge(value: Any) -> Any:
        return judges(value, function, name)

    return judge


def _tensor(value: Any, function: str, name: str) -> Any:
    if not isinstance(value, torch.Tensor):
        raise TypeError(_wrong(value, function, name, "a tensor"))
    return value


def _whole(value: Any, function: str, name: str) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    if isinstance(value, (float, *_NO_NUMBER)):
        raise TypeError(_wrong(value, function, name, "a whole number"))
    return value


def _number(value: Any, function: str, name: str) -> Any:
    if isinstance(value, _NO_NUMBER):
        raise TypeError(_wrong(value, function, name, "a number"))
    return float(value) if isinstance(value, bool) else value


def _truth(value: Any, function: str, name: str) -> Any:
    if isinstance(value, _NO_NUMBER):
        raise TypeError(_wrong(value, function, name, "True or False"))
    return bool(value) if isinstance(value, int) else value


def _text(value: Any, function: str, name: str) -> Any:
    if not isinstance(value, str):
        raise TypeError(_wrong(value, function, name, "a string"))
    return value


def _wrong(value: Any, function: str, name: str, expected: str) -> str:
    told = type(value).__name__ if isinstance(value, torch.Tensor) else f"{value!r}"
    return f"{function}() takes {expected} as argument '{name}', not {told}"


_JUDGES: Mapping[Any, Callable[[Any, str, str], Any]] = {
    torch.Tensor: _tensor,
    int: _whole,
    float: _number,
    bool: _truth,
    str: _text,
}
