"""Which versions were tried together, and what that says of an installation.

``matrix.json`` is the one place that knows: ``tests/cells.py`` writes it, the table in
docs/compatibility.md is made of it, and nobody types a version of torch or Python again. A version
counts by its first two numbers, as 2.11 stands for 2.11.0 and 2.11.1.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

FILE = Path(__file__).with_name("matrix.json")


class Cell(NamedTuple):
    """One FlashInfer with one torch on one Python, and what the core of the tests said.

    Attributes:
        flashinfer: its release.
        torch: its version, without a local part.
        python: two numbers, as ``3.12``.
        cuda: the CUDA that torch was built with, None for a CPU build.
        gpu: the GPU of the machine that it ran on, None without one. No cell runs a kernel.
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


class Doubt(NamedTuple):
    """Something that nobody has tried: a stable word, what was found and expected, what to do."""

    code: str
    text: str
    action: str


class Unreadable(Exception):
    """A file of cells is damaged: which one, and how."""


def read(file: Path = FILE) -> tuple[Cell, ...]:
    """The cells of a file, none where there is no such file.

    Raises:
        Unreadable: there is one, and it does not hold cells.
    """
    if not file.exists():
        return ()
    try:
        stated = json.loads(file.read_text(encoding="utf-8"))["cells"]
        cells = tuple(Cell(**{**cell, "failed": tuple(cell["failed"])}) for cell in stated)
        for version in {version for cell in cells for version in cell.key}:
            Version(version)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise Unreadable(f"{file} cannot be read ({type(error).__name__}: {error})") from error
    return cells


@functools.cache
def tried() -> tuple[Cell, ...]:
    """The cells that this copy of the package came with.

    Raises:
        Unreadable: its file is damaged.
    """
    return read()


def refusal(
    release: str | None, torch: str | None, policy: str, cells: Sequence[Cell] | None = None
) -> tuple[str, str] | None:
    """Why nothing is patched with this torch and what to do about it, None if nothing is known.

    One that is older than all that were tried lacks what our ops are made with. A pair that was
    tried and failed is left alone unless the policy is ``adapt``. One that nobody tried is no
    reason: whoever takes a new torch does not lose us by that. Where our own file is damaged we
    know neither, and our others may be damaged too.

    Args:
        release: of FlashInfer, None if it cannot be told.
        torch: its version as stated, None if it is not.
        policy: ``tested`` or ``adapt``.
        cells: what was tried, if not what this copy came with.
    """
    try:
        cells = tried() if cells is None else cells
    except Unreadable as error:
        return str(error), "install flashinfer-shim anew"
    series = _series(torch)
    if series is None or not cells:
        return None
    oldest = min(map(_of, cells))
    if series < oldest:
        name = _dotted(oldest)
        return f"torch {torch} is older than {name}", f"install torch {name} or newer"
    pair = [cell for cell in cells if cell.flashinfer == release and _of(cell) == series]
    failed = [cell for cell in pair if cell.failed]
    if policy == "adapt" or not failed or len(failed) < len(pair):
        return None
    worst = failed[-1]
    return (
        f"FlashInfer {release} with torch {worst.torch} failed {len(worst.failed)} of "
        f"{len(worst.failed) + worst.passed} tests",
        "install a pair of docs/compatibility.md that passed, or set FLASHINFER_SHIM_POLICY=adapt",
    )


def doubts(
    release: str | None, torch: str | None, python: str, cells: Sequence[Cell] | None = None
) -> tuple[Doubt, ...]:
    """What of an installation lies outside of what was tried.

    What lies between is no doubt: neither a torch between two that were tried with this
    FlashInfer, nor a FlashInfer between two that were tried with this torch. One that was not
    tried at all, such as an early post release, counts by all that were. A damaged file of
    ours is none either: :func:`refusal` tells of it.

    Args:
        release: of FlashInfer, None if it cannot be told.
        torch: its version as stated, None if it is not.
        python: two numbers, as ``3.12``.
        cells: what was tried, if not what this copy came with.
    """
    try:
        cells = tried() if cells is None else cells
    except Unreadable:
        return ()
    if not cells:
        return ()
    mine = [cell for cell in cells if cell.flashinfer == release]
    series = _series(torch)
    found = []
    if series and not (
        _holds(map(_of, mine or cells), series) or _ends_hold(cells, series, release)
    ):
        found.append(
            Doubt(
                "untested_pair",
                f"{f'FlashInfer {release}' if mine else 'FlashInfer'} was tried with torch "
                f"{_span(cell.torch for cell in mine or cells)}, and this torch is {torch}",
                "try it with `flashinfer-shim prove`; it is patched like a pair that was tried",
            )
        )
    pythons = sorted({cell.python for cell in cells}, key=Version)
    here = _first_two(Version(python))
    if not _holds((_first_two(Version(each)) for each in pythons), here):
        found.append(
            Doubt(
                "untested_python",
                f"Python {_span(pythons)} were tried, and this Python is {python}",
                f"try it with `flashinfer-shim prove`, or use Python {pythons[-1]}",
            )
        )
    return tuple(found)


def _holds(tried: Iterable[tuple[int, int]], one: tuple[int, int]) -> bool:
    ordered = sorted(tried)
    return bool(ordered) and ordered[0] <= one <= ordered[-1]


def _ends_hold(cells: Sequence[Cell], series: tuple[int, int] | None, release: str | None) -> bool:
    """Whether releases on both sides of this one were tried with this torch."""
    tried = sorted(Version(cell.flashinfer) for cell in cells if _of(cell) == series)
    return bool(tried and release) and tried[0] <= Version(release or "0") <= tried[-1]


def _of(cell: Cell) -> tuple[int, int]:
    return _first_two(Version(cell.torch))


def _series(version: str | None) -> tuple[int, int] | None:
    try:
        return _first_two(Version(version or ""))
    except InvalidVersion:
        return None


def _first_two(version: Version) -> tuple[int, int]:
    return version.major, version.minor


def _dotted(series: tuple[int, int]) -> str:
    return ".".join(map(str, series))


def _span(versions: Iterable[str]) -> str:
    ordered = sorted(set(versions), key=Version)
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"
