"""References to an original that no namespace holds: in a closure, a class, a functools.partial.

They cannot be rebound, so Dynamo is told what to trace when it meets the original itself. Only
late activation needs this, since an early one leaves no such references. torch keeps such an
instruction for ever; it is withdrawn by letting it lead to a copy of the original.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from . import announce
from .apply import Applied

#: What Dynamo traces for a redirected original, by a key of its own. A global of this module and
#: a plain string key, since Dynamo can guard on those and on no object of ours.
_traced: dict[str, Callable[..., Any]] = {}
#: Redirected originals (which keeps their ids taken) and copies of them, by the same key.
_redirected: dict[str, tuple[types.FunctionType, types.FunctionType]] = {}
#: Originals that were patched before anybody could copy them. Each redirection is kept by torch,
#: so a process that reloads modules and activates us again must not make one each time.
_early: weakref.WeakSet[types.FunctionType] = weakref.WeakSet()


def note_early(applied: Applied) -> None:
    """The patch came right after the module's execution: nobody holds its original."""
    if isinstance(applied.original, types.FunctionType):
        _early.add(applied.original)


def redirect(applied: Applied) -> None:
    """Let Dynamo trace the replacement where it meets the original."""
    original = applied.original
    if not isinstance(original, types.FunctionType):
        return  # Dynamo looks through a functools.cache object and cannot be redirected there.
    if original in _early:
        return
    key = _key(original)
    _traced[key] = applied.replacement
    if key in _redirected:
        return

    def substitute(*args: Any, **kwargs: Any) -> Any:
        return _traced[key](*args, **kwargs)

    try:
        torch.compiler.substitute_in_graph(original, skip_signature_check=True)(substitute)
    except Exception as fault:
        announce.info(f"{applied.finding.target}: hidden references stay as they are: {fault}")
        return
    _redirected[key] = (original, _copy(original))


def withdraw(applied: Applied) -> None:
    """Let Dynamo trace the original again, by way of its copy."""
    key = _key(applied.original)
    if key in _redirected:
        _traced[key] = _redirected[key][1]


def resume(applied: Applied) -> None:
    """Undo :func:`withdraw`. A reference that was never redirected stays what it is."""
    key = _key(applied.original)
    if key in _redirected:
        _traced[key] = applied.replacement


def _key(original: object) -> str:
    return f"{getattr(original, '__qualname__', '')} {id(original):#x}"


def _copy(function: types.FunctionType) -> types.FunctionType:
    copy = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
