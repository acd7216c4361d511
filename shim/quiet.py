"""A time in which no graph is being made. Imports nothing of torch's."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

#: Whether it is held by us, for no other thread to compile.
_held = False
#: Dynamo's lock, where a thread that was compiling is gone since a fork. It is never released, and
#: nobody compiles; nor can anybody, as without us.
_left_locked: Any = None


@contextlib.contextmanager
def no_compilation(patience: float = -1) -> Iterator[None]:
    """Within it no other thread compiles: each graph is made with all of our functions or none.

    While Dynamo makes guards it looks at each function again that it has traced before. To be
    entered before any lock that tracing may want.

    Args:
        patience: for how many seconds to wait for what is being compiled, and no longer; -1: until
            it is done.
    """
    global _held
    lock = _lock()
    if lock is None or lock is _left_locked or not lock.acquire(timeout=patience):
        yield
        return
    before, _held = _held, True
    try:
        yield
    finally:
        _held = before
        lock.release()


def _lock() -> Any:
    """Dynamo's own; None in a process that has never compiled anything."""
    return getattr(sys.modules.get("torch._dynamo.convert_frame"), "compile_lock", None)


def _forked() -> None:
    global _held, _left_locked
    lock = _lock()
    if lock is None:
        return
    if lock.acquire(blocking=False):
        lock.release()
    elif _held:
        _held = False
        lock._at_fork_reinit()
    else:
        _left_locked = lock


os.register_at_fork(after_in_child=_forked)
