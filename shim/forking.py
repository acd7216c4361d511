"""Locks that a forked process finds open."""

from __future__ import annotations

import os
import threading


def lock() -> threading.RLock:
    """A lock that is anew in each child after a fork.

    Whoever held it was another thread, and is not in the child: it would be held there for ever.
    """
    made = threading.RLock()
    os.register_at_fork(after_in_child=made._at_fork_reinit)  # type: ignore[attr-defined]
    return made
