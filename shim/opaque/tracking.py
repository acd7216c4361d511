"""Objects whose methods are ops: each has a handle by which the op finds it (``method.py``)."""

from __future__ import annotations

import inspect
import itertools
import os
import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

#: Attribute of an object that holds its handle.
HANDLE = "_flashinfer_shim_handle"

#: Not from one on: a graph of another process, which holds a number of its, is to find nothing.
_numbers = itertools.count(int.from_bytes(os.urandom(7), "big"))
#: Objects by the number in their handles; a number is never given twice.
holders: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
#: Of tracked classes, by attribute: what stood there before, and what does since.
_tracked: dict[type, dict[str, tuple[Any, Any]]] = {}


def has_its_own(holder: Any) -> bool:
    """Whether the handle of ``holder`` is not one that was copied from another object."""
    handle = vars(holder).get(HANDLE)
    if handle is None:
        return False
    with _disable_current_modes():
        return holders.get(int(handle)) is holder


def give_handle(holder: Any) -> None:
    """Make ``holder`` one that ops can find."""
    # Whatever is active while it is made, the handle is a plain tensor on the CPU.
    with torch.inference_mode(False), _disable_current_modes():
        number = next(_numbers)
        vars(holder)[HANDLE] = torch.tensor([number], dtype=torch.int64, device="cpu")
    holders[number] = holder


def track(kind: type) -> None:
    """Give every object of ``kind`` that is made from now on a handle, copies one of their own."""
    if kind in _tracked:
        return
    made = kind.__init__  # type: ignore[misc]

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        if not torch.compiler.is_compiling() and not has_its_own(self):
            give_handle(self)

    def __getstate__(self: Any) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != HANDLE}

    def __setstate__(self: Any, state: dict[str, Any]) -> None:
        vars(self).update(state)
        give_handle(self)

    __init__.__signature__ = inspect.signature(made)  # type: ignore[attr-defined]
    __init__.__doc__ = made.__doc__
    functions = (__init__, __getstate__, __setstate__)
    _tracked[kind] = {f.__name__: (vars(kind).get(f.__name__), f) for f in functions}
    for function in functions:
        setattr(kind, function.__name__, function)


def untrack(kind: type) -> None:
    """Undo :func:`track`. Objects keep their handles, and graphs that hold those go on."""
    for name, (before, since) in _tracked.pop(kind, {}).items():
        if vars(kind).get(name) is not since:
            continue  # a user has put something over it
        if before is None:
            delattr(kind, name)
        else:
            setattr(kind, name, before)
