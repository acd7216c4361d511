"""The notes of one process, and the file that it leaves them in.

The file is there from the beginning, is written anew whenever something is noted for the first
time, and for the last time when Python ends. So a process that is killed, or left by ``os._exit``,
loses no more than how often the last things happened; its file says that it did not end.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import util
from pathlib import Path
from typing import Any

import torch

from .. import announce
from ..gate import find_gate
from ..ledger import Record
from . import breaks, guards
from .stack import Origin

#: Raised when a key of the file changes its meaning or goes away; new keys do not raise it.
SCHEMA = 1


class Recorder:
    """What is noted in this process.

    Args:
        directory: where its file goes.
        status: the ledger.
    """

    def __init__(self, directory: Path, status: Callable[[], Iterable[Record]]) -> None:
        self._directory = directory
        self._status = status
        self._begin()
        # A fork that multiprocessing made ends without what atexit knows of.
        util.register_after_fork(
            self, lambda recorder: util.Finalize(None, recorder.end, exitpriority=0)
        )

    def _begin(self) -> None:
        """Start with nothing noted: now, and in the child after each fork."""
        self._lock = threading.RLock()
        self._calls: Counter[tuple[str, Origin]] = Counter()
        self._breaks: Counter[breaks.Break] = Counter()
        self._seen: set[tuple[str, Origin, str]] = set()
        self._file = self._directory / f"{os.getpid()}-{time.time_ns()}.json"
        self._guards = guards.Search()
        self._before = breaks.failures(())

    def restart(self) -> None:
        """In the child after a fork: what was noted so far is the parent's."""
        self._begin()

    def call(self, patch: str, origin: Origin, once: str) -> None:
        """Note a call of the function that ``patch`` is for.

        Args:
            patch: its name.
            origin: of the call.
            once: what it is to be counted once in; every time if empty.
        """
        with self._lock:
            if once:
                if (patch, origin, once) in self._seen:
                    return
                self._seen.add((patch, origin, once))
            self._calls[patch, origin] += 1
            if self._calls[patch, origin] == 1:
                self.write(ended=False)

    def graph_break(self, found: breaks.Break) -> None:
        """Note that Dynamo ended a graph."""
        with self._lock:
            self._breaks[found] += 1
            if self._breaks[found] == 1:
                self.write(ended=False)

    def end(self) -> None:
        """Python ends."""
        with harmless(), self._lock:
            if self._calls or self._breaks or os.path.exists(self._file):
                self.write(ended=True)

    def write(self, *, ended: bool) -> None:
        """Write the file, whole or not at all; one line on stderr where that fails."""
        text = json.dumps(self._as_json(ended=ended))
        partial = self._file.with_suffix(".partial")
        try:
            partial.unlink(missing_ok=True)
            # Exclusive: where others may write, too, it could be a link of theirs to any file.
            with partial.open("x", encoding="utf-8") as stream:
                stream.write(text)
            os.replace(partial, self._file)
        except OSError as fault:
            announce.warn(
                f"the audit cannot be written to {self._directory}: {fault.strerror}; set "
                "FLASHINFER_SHIM_AUDIT to a directory that can be written"
            )

    def _as_json(self, *, ended: bool) -> dict[str, Any]:
        gate = find_gate()
        records = tuple(self._status())
        failed = breaks.failures(self._breaks) - self._before
        return {
            "schema": SCHEMA,
            "pid": os.getpid(),
            "parent": os.getppid(),
            "command": sys.orig_argv,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "flashinfer": getattr(sys.modules.get("flashinfer"), "__version__", None),
            "activated_by": gate and getattr(gate, "door", None),
            "ended": ended,
            "patches": {
                record.patch: {
                    "target": record.target,
                    "verdict": str(record.verdict),
                    "reason": record.reason,
                    "action": record.action,
                }
                for record in records
            },
            "calls": [
                {"patch": patch, **origin._asdict(), "times": times}
                for (patch, origin), times in self._calls.items()
            ],
            "breaks": [
                {**found._asdict(), "times": times}
                for found, times in (self._breaks + failed).items()
            ],
            "guards": [found._asdict() for found in self._guards.run(records)],
        }


@contextmanager
def harmless() -> Iterator[None]:
    """Within it a fault of ours is a line on stderr, and not an error of the call that is noted."""
    try:
        yield
    except Exception as fault:
        announce.warn(
            f"the audit has missed something: {type(fault).__name__}: {fault}; report it, or unset "
            "FLASHINFER_SHIM_AUDIT to be without it"
        )


_recorder: Recorder | None = None


def start(directory: str, status: Callable[[], Iterable[Record]]) -> None:
    """Begin to note, once in a process.

    Args:
        directory: where the files go; exists.
        status: the ledger.
    """
    global _recorder
    if _recorder is not None:
        return
    _recorder = Recorder(Path(directory), status)
    atexit.register(_recorder.end)
    os.register_at_fork(after_in_child=_recorder.restart)
    breaks.listen(_recorder.graph_break)
    _recorder.write(ended=False)


def note(patch: str, origin: Origin, once: str = "") -> None:
    """Note a call; see :meth:`Recorder.call`."""
    if _recorder is not None:
        _recorder.call(patch, origin, once)
