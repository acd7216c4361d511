"""Ops that are defined when a compiler first meets them: most processes compile few or none.

To define an op takes torch a third of a millisecond, and FlashInfer has hundreds of functions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import _OpNamespace

from .. import forking

NAMESPACE = "flashinfer_shim"

#: What a :class:`Later` is made by: imports all that is needed, and gives what defines the op.
Load = Callable[[], Callable[[], Callable[..., Any]]]

#: One for all: an op is made while nobody else makes one.
#:
#: Locks are taken in this order, which nothing but patience goes against (``hook.activate``):
#: Dynamo's (``quiet.py``), those of modules of FlashInfer that are being imported, the hook's, this
#: one; then the ledger's and those of our own modules, which nobody holds while he waits for
#: others. So nothing of FlashInfer is imported while this one is held.
lock = forking.lock()


class Later:
    """What stands for a function where somebody watches, once it has been made.

    Attributes:
        traced: takes the function's arguments and calls its op.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self.traced: Any = None

    def make(self) -> None:
        """Make it, if that is not done; may raise, and then it is not."""
        global _maker
        if self.traced is not None:
            return
        define = self._load()
        with lock:
            if self.traced is None:  # no other thread was here first
                before, _maker = _maker, threading.get_ident()
                try:
                    self.traced = define()
                finally:
                    _maker = before


class _Namespace(_OpNamespace):
    """Our ops under ``torch.ops``: who asks for one by its name, as a saved graph does, has it."""

    # In the names of ops, by which they are pickled.
    __module__ = _OpNamespace.__module__

    def __getattr__(self, name: str) -> Any:
        _keep(name)
        return super().__getattr__(name)


#: By the name of an op, what makes it.
_promised: dict[str, Later] = {}
_made: set[str] = set()
#: The thread that defines an op. Not whether there is one: after a fork nobody may be left.
_maker: int | None = None


def promised(name: str, load: Load, *, at_once: bool) -> Later:
    """The op ``name``, or those that it needs, made when it is asked for.

    A module that is executed again has a new function, and graphs that were compiled before are to
    call that one: an op that is there is made anew now.

    Args:
        name: of the op, as it is declared.
        load: imports what is needed, and gives what defines it, which gives what a compiler is to
            trace.
        at_once: do it now. For a function that is known to be expressible that can wait until a
            compiler meets it.

    Raises:
        RuntimeError: another copy of us owns the namespace.
        Exception: what it or ``load`` raises, where it is made now.
    """
    later = Later(load)
    name = named(name)
    names = {name, f"{name}_out", f"{name}_seeded"}
    with lock:
        _own_namespace()
        _promised.update(dict.fromkeys(names, later))
        at_once = at_once or not names.isdisjoint(_made)
    if at_once:
        later.make()
    return later


def named(name: str) -> str:
    """What the op that is declared under ``name`` is called: a method's has no dot."""
    return name.replace(".", "_")


def made(name: str) -> None:
    """Note that the op has been defined."""
    _made.add(name)


def all_promised() -> list[str]:
    """The names of all ops, whether they are there already or not."""
    return sorted(_promised)


def _keep(name: str) -> None:
    later = _promised.get(name)
    # What defines an op asks for it by name: for its own, though a reloaded module has promised it
    # anew since.
    if later is not None and _maker != threading.get_ident():
        later.make()


def _own_namespace() -> None:
    found = vars(torch.ops).get(NAMESPACE)
    if isinstance(found, _Namespace):
        return
    if found is not None and type(found) is not _OpNamespace:
        raise RuntimeError(
            f"torch.ops.{NAMESPACE} belongs to another copy of flashinfer-shim in this process; "
            "leave one copy on the path"
        )
    setattr(torch.ops, NAMESPACE, _Namespace(NAMESPACE))
