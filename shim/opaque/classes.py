"""Copies of upstream's classes for the shadow world, whose methods see that world too.

Copied are classes that do something: a runner that launches a kernel, for one. Classes that are
values (enums, dataclasses, named tuples, exceptions) stay themselves, so that their members and
instances are the same on both sides. A protocol does nothing.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from collections.abc import Callable
from typing import Any

#: What a class body does not hold, made anew for each class, and what a copy has no use for: it
#: owns nothing that would have to be freed.
_MADE = frozenset({"__dict__", "__weakref__", "__slots__", "__abstractmethods__", "__del__"})
#: Under this name a copy holds the real class.
_REAL = "__shadow_of__"
_VALUES = (enum.Enum, BaseException, tuple, str, int, dict, list)


def does_something(value: type) -> bool:
    """Whether a class is to be copied."""
    return not (
        issubclass(value, _VALUES)
        or dataclasses.is_dataclass(value)
        or getattr(value, "_is_protocol", False)
    )


def copy_class(
    value: type, translate: Callable[[str, Any], Any], remember: Callable[[type], object]
) -> type:
    """``value`` with every method and base translated.

    Args:
        value: the class.
        translate: what stands for a value of a given name in the shadow world.
        remember: told of the copy before it is filled, since its methods lead back to it.
    """
    bases = tuple(translate(base.__name__, base) for base in value.__bases__)
    namespace = {"__module__": value.__module__, _REAL: value}
    copied: type = _watching(type(value))(value.__name__, bases, namespace)
    remember(copied)
    for name, member in vars(value).items():
        if name not in _MADE and not isinstance(member, types.MemberDescriptorType):
            setattr(copied, name, _member(name, member, translate))
    return copied


class _Watching(type):
    """The metaclass of copies: what upstream made of the real class is an instance of it too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, vars(cls)[_REAL]) or cls in type(instance).__mro__


@functools.cache
def _watching(meta: type[type]) -> type[type]:
    """The like for classes whose own metaclass is ``meta``; all of them go together."""
    return _Watching if meta is type else type(meta.__name__, (_Watching, meta), {})


def _member(name: str, member: Any, translate: Callable[[str, Any], Any]) -> Any:
    if isinstance(member, (staticmethod, classmethod)):
        return type(member)(translate(name, member.__func__))
    if isinstance(member, property):
        parts = (member.fget, member.fset, member.fdel)
        return property(*(part and translate(name, part) for part in parts))
    if isinstance(member, functools.cached_property):
        return property(translate(name, member.func))
    return translate(name, member)
