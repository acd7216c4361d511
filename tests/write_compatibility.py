"""Writes the tables of what was tried in docs/compatibility.md, from shim/matrix.json.

python tests/write_compatibility.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import releases
from packaging.version import Version

sys.path.append(str(releases.ROOT))

from shim.matrix import Cell, read

PAGE = releases.ROOT / "docs" / "compatibility.md"
BEGIN = "<!-- tests/write_compatibility.py writes from here on -->\n"
END = "<!-- to here -->\n"


def written(page: str, cells: Sequence[Cell]) -> str:
    """The page with its tables made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "".join((before, BEGIN, "\n", *lines(cells), "\n", END, after))


def lines(cells: Sequence[Cell]) -> Iterator[str]:
    """How each torch was tried, what came of each pair, and what failed."""
    by_torch = sorted(cells, key=lambda cell: (Version(cell.torch), _how(cell)))
    yield from _table(("torch", "Python", "build", "machine", "releases", "last run"))
    columns = []
    for torch, column in groupby(by_torch, lambda cell: cell.torch):
        columns.append(torch)
        for how, group in groupby(column, _how):
            here = list(group)
            yield _row((torch, *how, str(len(here)), max(cell.date for cell in here)))
    yield "\nTests of the core that passed, by FlashInfer and torch:\n\n"
    yield from _table(("FlashInfer", *columns))
    by_release = sorted(cells, key=lambda cell: Version(cell.flashinfer))
    for release, row in groupby(by_release, lambda cell: cell.flashinfer):
        found = list(row)
        told = (", ".join(_told(c) for c in found if c.torch == torch) for torch in columns)
        yield _row((release, *told))
    failed = [cell for cell in by_release if cell.failed]
    if failed:
        yield "\nWhat failed:\n\n"
    for cell in failed:
        named = ", ".join(f"`{name}`" for name in cell.failed)
        yield f"- FlashInfer {cell.flashinfer}, torch {cell.torch}: {named}\n"


def _how(cell: Cell) -> tuple[str, str, str]:
    build = f"CUDA {cell.cuda}" if cell.cuda else "CPU"
    return cell.python, build, cell.gpu or "without a GPU"


def _told(cell: Cell) -> str:
    passed = str(cell.passed)
    return f"{passed}, **{len(cell.failed)} failed**" if cell.failed else passed


def _table(columns: Sequence[str]) -> Iterable[str]:
    return _row(columns), _row(["---"] * len(columns)).replace(" ", "")


def _row(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |\n".replace("  ", " ")


def main(file: Path = PAGE) -> None:
    """Write the page."""
    file.write_text(written(file.read_text(), read()))


if __name__ == "__main__":
    main()
