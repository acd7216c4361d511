"""What was tried: pairs of FlashInfer and torch, and what came of each.

``matrix.json`` is written by ``tests/cells.py`` alone. It is the one place that knows which
versions of torch and Python are tested; nobody types them again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("matrix.json")


@dataclass(frozen=True)
class Cell:
    """One FlashInfer with one torch on one Python, and what the core of the tests said.

    Attributes:
        flashinfer: its release.
        torch: its version, without a local part.
        python: two numbers, as ``3.12``.
        cuda: the CUDA that torch was built with, None for a CPU build.
        gpu: the name of the GPU that the machine had, None if it had none. No cell runs kernels.
        passed: how many tests passed.
        failed: the names of those that did not.
        date: of the run, as ``2026-11-30``.
    """

    flashinfer: str
    torch: str
    python: str
    cuda: str | None
    gpu: str | None
    passed: int
    failed: tuple[str, ...]
    date: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from other cells."""
        return self.flashinfer, self.torch, self.python


def read(file: Path = FILE) -> tuple[Cell, ...]:
    """The cells of a file, none where there is no such file."""
    if not file.exists():
        return ()
    stated = json.loads(file.read_text())["cells"]
    return tuple(Cell(**{**cell, "failed": tuple(cell["failed"])}) for cell in stated)
