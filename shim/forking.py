"""Locks that a forked process finds open."""

from __future__ import annotations

import os
import threading
from typing import Any


def lock() -> threading.RLock:
    """A lock that is anew in each child after a fork, unless the thread that forked holds it.

    Another thread that held it is not in the child: it would be held there for ever.
    """
    made: Any = threading.RLock()

    def reopen() -> None:
        if not made._is_owned():
            made._at_fork_reinit()

    os.register_at_fork(after_in_child=reopen)
    held: threading.RLock = made
    return held
