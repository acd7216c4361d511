"""Builtins for code that takes sizes for plain numbers, while they are symbolic.

``int(size)`` or ``min(size, limit)`` would tie the graph to the one size that is before the
compiler; the next size would need a graph of its own. Upstream writes both where the number means
nothing for the shapes, most often in the grid of a launch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

_SYMBOLIC = (torch.SymInt, torch.SymFloat)


class _IntType(type):
    """Of ``int``: symbolic sizes belong to it, and stay as they are."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], _SYMBOLIC):
            return torch.sym_int(args[0])  # type: ignore[no-untyped-call]
        return int(*args, **kwargs)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, (int, torch.SymInt))

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, (int, torch.SymInt))


class _Int(int, metaclass=_IntType):
    """Stands for ``int``."""


class _TypeType(type):
    """Of ``type``: ``type(size) is int``."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        kind = type(*args, **kwargs)
        return _Int if len(args) == 1 and kind in (int, torch.SymInt) else kind

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, type)


class _Type(type, metaclass=_TypeType):
    """Stands for ``type``."""


def _extreme(usual: Callable[..., Any], symbolic: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def extreme(*args: Any, **kwargs: Any) -> Any:
        if len(args) > 1 and not kwargs and any(isinstance(value, _SYMBOLIC) for value in args):
            return functools.reduce(symbolic, args)
        return usual(*args, **kwargs)

    return extreme


_Int.__name__, _Type.__name__ = "int", "type"

#: By the names that they stand for.
BUILTINS: Mapping[str, Any] = {
    "int": _Int,
    "type": _Type,
    "min": _extreme(min, torch.sym_min),
    "max": _extreme(max, torch.sym_max),
}
