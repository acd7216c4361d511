"""The GPU's driver: its version and the CUDA that it runs, from files alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

#: Where a loaded kernel module tells its version; a test puts a file of its own here.
FILES = (Path("/proc/driver/nvidia/version"), Path("/sys/module/nvidia/version"))

_VERSION = re.compile(r"\b(\d{3}\.\d+(?:\.\d+)*)\b")

#: The newest CUDA that each branch of drivers runs, from NVIDIA's release notes, newest first.
_CUDA_BY_BRANCH = (
    *((590, "13.1"), (580, "13.0"), (575, "12.9"), (570, "12.8"), (565, "12.7"), (560, "12.6")),
    *((555, "12.5"), (550, "12.4"), (545, "12.3"), (535, "12.2"), (530, "12.1"), (525, "12.0")),
    *((520, "11.8"), (515, "11.7"), (510, "11.6"), (495, "11.5"), (470, "11.4"), (465, "11.3")),
    *((460, "11.2"), (455, "11.1"), (450, "11.0"), (440, "10.2"), (418, "10.1")),
)
#: What drivers older than those do not run.
OLDEST_CUDA = Version(_CUDA_BY_BRANCH[-1][1])


@dataclass(frozen=True)
class Driver:
    """NVIDIA's kernel driver.

    Attributes:
        version: as it tells it, ``580.65.06``.
        cuda: the newest CUDA that it runs, None where we do not know that branch.
        old: whether that is because it is older than all that we know, and not newer.
    """

    version: str
    cuda: Version | None
    old: bool = False


def find() -> Driver | None:
    """The driver that is loaded, None if none is or if it cannot be seen from here."""
    for file in FILES:
        try:
            match = _VERSION.search(file.read_text(encoding="ascii", errors="replace"))
        except OSError:
            continue
        if match:
            branch = int(match[1].partition(".")[0])
            return Driver(match[1], _cuda(branch), branch < _CUDA_BY_BRANCH[-1][0])
    return None


def _cuda(branch: int) -> Version | None:
    """What a branch runs; of one between two that we know, what the older one runs."""
    newest = _CUDA_BY_BRANCH[0][0]
    if branch > newest + 9:
        return None
    return next((Version(cuda) for first, cuda in _CUDA_BY_BRANCH if branch >= first), None)
