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


class _Number(type):
    """Of ``int`` and ``float``: symbolic numbers belong to them, and stay symbolic."""

    plain: type
    symbolic: type
    convert: Callable[[Any], Any]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], _SYMBOLIC):
            return cls.convert(args[0])
        return cls.plain(*args, **kwargs)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, (cls.plain, cls.symbolic))

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, (cls.plain, cls.symbolic))


class _Int(int, metaclass=_Number):
    """Stands for ``int``."""

    plain, symbolic, convert = int, torch.SymInt, staticmethod(torch.sym_int)


class _Float(float, metaclass=_Number):
    """Stands for ``float``."""

    plain, symbolic, convert = float, torch.SymFloat, staticmethod(torch.sym_float)


_STANDING = {kind: ours for ours in (_Int, _Float) for kind in (ours.plain, ours.symbolic)}


class _TypeType(type):
    """Of ``type``: ``type(size) is int``."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        kind = type(*args, **kwargs)
        return _STANDING.get(kind, kind) if len(args) == 1 else kind

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


_Int.__name__, _Float.__name__, _Type.__name__ = "int", "float", "type"

#: By the names that they stand for.
BUILTINS: Mapping[str, Any] = {
    "int": _Int,
    "float": _Float,
    "type": _Type,
    "min": _extreme(min, torch.sym_min),
    "max": _extreme(max, torch.sym_max),
}
