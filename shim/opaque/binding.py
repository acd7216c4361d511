"""The arguments of a traced call by name, judged as Python judges those of the function itself.

An op would judge them too, but by its own name, and takes no ``8192.0`` for a whole number. All of
this is traced by Dynamo, so plain Python throughout.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

#: What is no number, whatever a function does with it.
_NO_NUMBER = (torch.Tensor, str, list, tuple, dict, type(None))


def binding(
    function: str,
    signature: inspect.Signature,
    kinds: Mapping[str, tuple[Any, bool]],
    call: Callable[..., Any],
) -> Callable[..., Any]:
    """``call``, which takes arguments by keyword, behind the parameters of a function.

    Args:
        function: its name, for messages.
        signature: its parameters.
        kinds: the types of those that a schema can hold, and whether they may be None.
        call: gets what was given, no defaults.
    """
    keyword, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    parameters = signature.parameters.values()
    names = tuple(parameter.name for parameter in parameters)
    positional = tuple(parameter.name for parameter in parameters if parameter.kind is not keyword)
    required = tuple(parameter.name for parameter in parameters if parameter.default is empty)
    judged = {name: kind for name, (kind, _) in kinds.items() if kind in _JUDGES}
    optional = {name for name, (_, optional) in kinds.items() if optional}

    def traced(*args: Any, **kwargs: Any) -> Any:
        if len(args) > len(positional):
            raise TypeError(f"{function}() got too many positional arguments")
        # By index: torch 2.9 traces zip(strict=False) as if it were strict.
        named = {positional[i]: value for i, value in enumerate(args)}
        for name in kwargs:
            if name in named:
                raise TypeError(f"{function}() got multiple values for argument '{name}'")
            if name not in names:
                raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")
        named.update(kwargs)
        for name in required:
            if name not in named:
                raise TypeError(f"{function}() missing a required argument: '{name}'")
        for name, value in named.items():
            # First what is usual, since tracing a call takes time.
            if name not in judged or type(value) is judged[name]:
                continue
            if value is not None or name not in optional:
                named[name] = _JUDGES[judged[name]](value, function, name)
        return call(**named)

    return traced


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
