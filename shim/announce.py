"""Lines on stderr: never stdout, one line a fact, a warning once in a process and its children.

N ranks times M workers inherit one environment, so the mark of what was already said stands there.
"""

from __future__ import annotations

import os
import sys
import zlib

LEVELS = {"off": 0, "warn": 1, "info": 2, "debug": 3}

#: Environment variable that children inherit: checksums of the warnings that a parent printed.
SAID = "_FLASHINFER_SHIM_SAID"

_level = LEVELS["warn"]


def set_level(name: str) -> None:
    """Set how much is said: ``off``, ``warn``, ``info`` or ``debug``."""
    global _level
    _level = LEVELS[name]


def warn(line: str, about: str = "") -> None:
    """Say ``line`` unless this process or one it descends from said it already.

    Args:
        line: what to say.
        about: what it is about, where that may be told in several ways, of which one is enough.
    """
    if _level < LEVELS["warn"]:
        return
    mark = format(zlib.crc32((about or line).encode("utf-8", "replace")), "08x")
    said = os.environ.get(SAID, "").split(",")
    if mark in said:
        return
    os.environ[SAID] = ",".join([word for word in said if word] + [mark])
    _write(line)


def event(line: str) -> None:
    """Say ``line``, a warning of something that happens each time anew, in every process."""
    if enabled("warn"):
        _write(line)


def enabled(name: str) -> bool:
    """Whether lines of this level are said."""
    return _level >= LEVELS[name]


def info(line: str) -> None:
    """Say ``line`` in every process whose level is ``info`` or ``debug``."""
    if _level >= LEVELS["info"]:
        _write(line)


def debug(line: str) -> None:
    """Say ``line`` in every process whose level is ``debug``."""
    if _level >= LEVELS["debug"]:
        _write(line)


def _write(line: str) -> None:
    # One write, so that ranks do not interleave within a line.
    draw(f"flashinfer-shim: {' '.join(line.split())}\n")


def draw(text: str) -> None:
    """Write ``text`` to stderr as it is."""
    # stderr may be None (pythonw, daemons), closed, or a broken pipe; none of that is the
    # user's problem.
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except Exception:
        return
