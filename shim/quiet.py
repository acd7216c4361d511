"""A time in which no graph is being made. Imports nothing of torch's."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def no_compilation(patience: float = -1) -> Iterator[None]:
    """Within it no other thread compiles: each graph is made with all of our functions or none.

    While Dynamo makes guards it looks at each function again that it has traced before. To be
    entered before any lock that tracing may want.

    Args:
        patience: for how many seconds to wait for what is being compiled, and no longer; -1: until
            it is done.
    """
    # Only where the process has ever compiled anything is there a lock.
    lock: Any = getattr(sys.modules.get("torch._dynamo.convert_frame"), "compile_lock", None)
    held = lock is not None and lock.acquire(timeout=patience)
    try:
        yield
    finally:
        if held:
            lock.release()
