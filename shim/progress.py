"""A line on a terminal that says what takes so long, and for how long it has."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from . import announce

#: Seconds before anything is shown, and between two looks.
_PATIENCE, _INTERVAL = 2.0, 1.0
_CLEAR = "\r\x1b[K"


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show ``text`` and the seconds on stderr while what is within it lasts: on a terminal only."""
    if not _shown():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(text, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _shown() -> bool:
    try:
        return announce.enabled("warn") and sys.stderr.isatty()
    except Exception:  # None, or closed
        return False


def _show(text: str, done: threading.Event) -> None:
    begun = time.monotonic()
    wait = _PATIENCE
    while not done.wait(wait):
        wait = _INTERVAL
        announce.draw(f"{_CLEAR}flashinfer-shim: {text}, {time.monotonic() - begun:.0f} s")
    if wait == _INTERVAL:
        announce.draw(_CLEAR)
