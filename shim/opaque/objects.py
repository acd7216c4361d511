"""Copies of objects that keep state, for the shadow world: their attributes, seen from there."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from typing import Any

import torch

Translate = Callable[[str, Any], Any]


def copy_object(value: Any, translate: Translate) -> Any:
    """An object with the class and the attributes of ``value``, all of them translated.

    Args:
        value: with attributes in a dict of its own.
        translate: what stands for a value of a given name in the shadow world.
    """
    return _Copying(translate).copy(value)


class _Copying:
    """One object being copied, with those that it leads to: each once, for they may form rings."""

    def __init__(self, translate: Translate) -> None:
        self._translate = translate
        self._copies: dict[int, Any] = {}

    def copy(self, value: Any) -> Any:
        known = self._copies.get(id(value))
        if known is None:
            kind: Any = self._translate(type(value).__name__, type(value))
            is_kernels = not isinstance(kind, type)  # of those the stand-in is no class
            known = kind() if is_kernels else kind.__new__(kind)
            self._copies[id(value)] = known
            for name, held in () if is_kernels else vars(value).items():
                vars(known)[name] = self._attribute(name, held)
        return known

    def _attribute(self, name: str, value: Any) -> Any:
        if type(value) in (list, tuple):
            return type(value)(self._attribute(name, item) for item in value)
        if type(value) is dict:
            return {key: self._attribute(name, item) for key, item in value.items()}
        if isinstance(value, types.MethodType) and keeps_state(value.__self__):
            function = self._translate(name, value.__func__)
            return types.MethodType(function, self.copy(value.__self__))
        return self.copy(value) if keeps_state(value) else self._translate(name, value)


def keeps_state(value: Any) -> bool:
    """Whether a value is an object of upstream's own, with attributes."""
    kind = type(value)
    return kind is types.SimpleNamespace or (
        kind.__module__.partition(".")[0] == "flashinfer"
        and hasattr(value, "__dict__")
        and not isinstance(value, (enum.Enum, torch.Tensor))
    )
