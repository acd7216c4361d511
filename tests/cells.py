"""The matrix of versions: which cells it has, and how one is tried.

    python tests/cells.py                  # the cells, one a line
    python tests/cells.py 0.6.3 0.7.4      # tries these with the torch and the Python at hand
    python tests/cells.py --torch 2.13.0   # tries what the matrix has with that torch
    python tests/cells.py --take FILE      # takes over what another machine has found
    python tests/cells.py 0.5.0 --only "WORD" --into FILE  # a part of a cell, for a quick try

A cell is one FlashInfer with one torch on one Python. What it has to do are the tests marked
``core``, which run in processes of their own. ``shim/matrix.json`` keeps what came of it, also
for who asks at run time; ``write_compatibility.py`` makes the table in the docs of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree

import releases
from packaging.version import Version

sys.path.append(str(releases.ROOT))

from shim.matrix import FILE, Cell, Unreadable, read
from shim.patches import RELEASES

TESTS = Path(__file__).resolve().parent

#: The status where a test of the core failed; an uncaught error ends Python with 1.
FAILED = 3


@dataclass(frozen=True)
class Torch:
    """One column of the matrix.

    Attributes:
        version: of torch.
        python: on which it is tried.
        everywhere: with each FlashInfer; the others with the oldest, the middle and the newest.
    """

    version: str
    python: str
    everywhere: bool = False


#: Oldest first. Each Python is there once, save the one of the machine that tries all releases.
TORCHES = (
    Torch("2.9.1", "3.10"),
    Torch("2.11.0", "3.12", everywhere=True),
    Torch("2.13.0", "3.11"),
    Torch("2.14.1", "3.12", everywhere=True),
    Torch("2.15.0", "3.13"),
)


def flashinfers() -> list[str]:
    """The releases that the matrix has: each one, and of its posts the last, oldest first."""
    found: list[str] = []
    for _, posts in groupby(RELEASES, lambda release: Version(release).base_version):
        whole = list(posts)
        found += dict.fromkeys((whole[0], whole[-1]))
    return found


def plan() -> Iterator[tuple[str, Torch]]:
    """The cells: each FlashInfer with two torches, each torch with three FlashInfers or more."""
    every = flashinfers()
    few = (every[0], every[len(every) // 2], every[-1])
    for release in every:
        for torch in TORCHES:
            if torch.everywhere or release in few:
                yield release, torch


def attempt(release: str, only: str = "") -> Cell:
    """Run the core on one release, with the torch and the Python at hand.

    Args:
        release: of FlashInfer.
        only: which of its tests, as pytest's ``-k`` has it; all if empty.

    Raises:
        RuntimeError: pytest did not get as far as running tests.
    """
    import torch

    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.xml")
        # Only those that hold a test of the core: the rest takes as long to read as some to run.
        files = [path for path in TESTS.glob("test_*.py") if "mark.core" in path.read_text()]
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        written = [f"--junitxml={report}", f"--basetemp={scratch}/tests"]
        chosen = {
            "FLASHINFER_SHIM_TEST_MATRIX": "core",
            "FLASHINFER_SHIM_TEST_RELEASES": release,
        }
        done = subprocess.run(
            [*pytest, "-m", "core", "-k", only, *written, *map(str, files)],
            check=False,
            cwd=releases.ROOT,
            env={**os.environ, **chosen},
            stdin=subprocess.DEVNULL,
        )
        if done.returncode not in (0, 1):
            raise RuntimeError(f"pytest ended with {done.returncode} on FlashInfer {release}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case.get("name", "") for case in cases if _has(case, "failure", "error")]
    return Cell(
        flashinfer=release,
        torch=Version(torch.__version__).public,
        python=".".join(platform.python_version_tuple()[:2]),
        cuda=torch.version.cuda,
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        passed=sum(not _has(case, "failure", "error", "skipped") for case in cases),
        failed=tuple(sorted(failed)),
        date=datetime.now(timezone.utc).date().isoformat(),
    )


def _has(case: ElementTree.Element, *outcomes: str) -> bool:
    return any(case.find(outcome) is not None for outcome in outcomes)


def keep(cells: Iterable[Cell], file: Path = FILE) -> None:
    """Add cells to a file, each in place of what it held of the same three versions."""
    new = {cell.key: cell for cell in cells}
    _rewrite(lambda known: [*(cell for cell in known if cell.key not in new), *new.values()], file)


@contextmanager
def as_if_new(release: str, torch: str, file: Path = FILE) -> Iterator[None]:
    """A while in which the file does not say that a pair failed, and afterwards does again.

    Of a pair that failed the shim stands aside, so it would fail for good.
    """
    series = Version(torch).release[:2]
    failed = [
        cell
        for cell in read(file)
        if cell.failed and (cell.flashinfer, Version(cell.torch).release[:2]) == (release, series)
    ]
    _rewrite(lambda known: [cell for cell in known if cell not in failed], file)
    try:
        yield
    finally:
        keep(failed, file)


def _rewrite(change: Callable[[tuple[Cell, ...]], Iterable[Cell]], file: Path) -> None:
    releases.cache().mkdir(parents=True, exist_ok=True)
    with releases.alone(releases.cache() / ".matrix.lock"):
        ordered = sorted(change(read(file)), key=lambda cell: tuple(map(Version, cell.key)))
        lines = ",\n".join(json.dumps(cell._asdict()) for cell in ordered)
        text = f'{{"schema": 1, "cells": [\n{lines}\n]}}\n'
        if not file.exists() or file.read_text() != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


def main(arguments: Sequence[str]) -> int:
    """See the module. The status is ``FAILED`` where a test of the core failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("release", nargs="*", help="FlashInfer releases to try")
    parser.add_argument("--torch", help="try what the matrix has with this torch")
    parser.add_argument("--take", type=Path, help="a file of cells from another machine")
    parser.add_argument("--into", type=Path, default=FILE, help="where to keep what is found")
    parser.add_argument("--only", default="", help="tests that pytest's -k picks; wants --into")
    asked = parser.parse_args(arguments)
    if asked.only and asked.into.resolve() == FILE.resolve():
        parser.error("--only tries a part of a cell: say with --into where to keep that")
    if asked.take:
        try:
            found = read(asked.take)
        except Unreadable as error:
            parser.error(str(error))
        if not found:
            parser.error(f"{asked.take} holds no cells, or is not there")
        keep(found, asked.into)
        return 0
    wanted = asked.release or [r for r, torch in plan() if torch.version == asked.torch]
    if asked.torch and not wanted:
        known = ", ".join(torch.version for torch in TORCHES)
        parser.error(f"no cell has torch {asked.torch}: there are {known}")
    if not wanted:
        for release, torch in plan():
            print(f"FlashInfer {release}, torch {torch.version}, Python {torch.python}")
    failed = 0
    for release in wanted:
        with as_if_new(release, version("torch")):
            cell = attempt(release, asked.only)
        keep([cell], asked.into)
        failed += bool(cell.failed)
    return FAILED if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
