"""Rows as a table: drawn by rich where it is installed, in aligned plain text otherwise.

rich takes a tenth of a second to import, so it is imported when there is a table to print.
"""

from __future__ import annotations

import io
import shutil
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence

#: Style of rich for a word of the ledger or of a command's own that stands alone in its cell.
STYLES: Mapping[str, str] = {
    "applied": "green",
    "will apply": "green",
    "yes": "green",
    "not needed": "green",
    "pending": "cyan",
    "disabled": "dim",
    "refused": "bold red",
    "failed": "bold red",
    "no": "bold red",
    "warning": "yellow",
}

_WRONG = "bold red"

#: What a column may be squeezed to before a plain table is allowed to be wider than the terminal.
_NARROWEST = 8
_GAP = "  "


def escape_odd_names() -> None:
    r"""Let stdout take names that cannot be encoded: they are printed as ``\udcff``.

    Where it is UTF-8 and strict, print() would raise for a variable or a path that is not UTF-8.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    wrong: Collection[tuple[int, int]] = (),
    width: int | None = None,
) -> None:
    """Print a table to stdout.

    Colours only go to a terminal, and not where ``NO_COLOR`` is set. A cell that is too wide is
    folded, never cut, and nothing in it is taken for markup.

    Args:
        title: a line above the table; none if empty.
        columns: the headings; a table whose headings are all empty has no heading line.
        rows: one string for each column; a line break in it is kept.
        wrong: row and column, from 0, of cells that are red, whatever is written there.
        width: characters in a line; the terminal's, or 100 where there is none, when left out.
    """
    if width is None:
        width = _width()
    try:
        import rich.box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        print(_plain(title, columns, rows, width))
        return
    table = Table(
        title=Text(title) if title else None,
        title_justify="left",
        show_header=any(columns),
        box=rich.box.SIMPLE_HEAD if any(columns) else None,
        show_edge=False,
        pad_edge=False,
    )
    for heading in columns:
        table.add_column(Text(heading), overflow="fold")
    for i, row in enumerate(rows):
        styles = (_WRONG if (i, j) in wrong else STYLES.get(cell, "") for j, cell in enumerate(row))
        table.add_row(*map(Text, row, styles))
    Console(width=width, highlight=False).print(table)


def paragraph(text: str, indent: str = "") -> str:
    """``text`` in lines of the terminal's width, each after the first further in."""
    return textwrap.fill(
        text,
        _width(),
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _width() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def _plain(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    everything = [columns, *rows] if any(columns) else list(rows)
    widths = _fit([max(_longest(row[i]) for row in everything) for i in range(len(columns))], width)
    lines = [title] if title else []
    for number, row in enumerate(everything):
        lines += _fold(row, widths)
        if number == 0 and any(columns):
            lines.append(_GAP.join("-" * each for each in widths))
    return "\n".join(lines)


def _longest(cell: str) -> int:
    return max(map(len, cell.split("\n")))


def _fit(wanted: Sequence[int], width: int) -> list[int]:
    """Take from the widest column, again and again, what is too much for the line."""
    widths = list(wanted)
    while sum(widths) + len(_GAP) * (len(widths) - 1) > width and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return widths


def _fold(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    cells = [
        [part for line in cell.split("\n") for part in textwrap.wrap(line, each) or [""]]
        for cell, each in zip(row, widths, strict=True)
    ]
    return [
        _GAP.join(
            (cell[number] if number < len(cell) else "").ljust(each)
            for cell, each in zip(cells, widths, strict=True)
        ).rstrip()
        for number in range(max(map(len, cells)))
    ]
