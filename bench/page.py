"""Writes the tables of docs/performance.md and docs/decoder.md from the saved runs.

    python3 bench/page.py [--check]

In a page, a table stands between ``<!-- bench/page.py: NAME -->`` and ``<!-- end -->``. With
``--check`` nothing is written; status 1: a page does not tell what was saved.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import figures
from figures import Runs
from goals import GOALS, Goal
from names import BY_HAND, EAGER, FULLGRAPH, GRAPH, ORIGINAL, OURS, REDUCE_OVERHEAD, ROWS

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOT_RUN = "not run yet: `bench/gpu.sh`"


def table(header: Sequence[str], rows: Iterator[Sequence[str]], numbers: int) -> str:
    """Markdown; the last ``numbers`` columns stand to the right."""
    sides = ["---"] * (len(header) - numbers) + ["---:"] * numbers
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, sides, *rows))


def amount(value: float, unit: str) -> str:
    """With as many digits as it is worth, and its unit."""
    digits = 3 if unit in ("x", "of it") else 0
    return f"{value:,.{digits}f}{'x' if unit == 'x' else ' ' + unit}".rstrip()


def goal_table(runs: Runs) -> str:
    """Every goal, and what the saved runs show of it."""

    def row(goal: Goal) -> Sequence[str]:
        at_most = f"≤ {amount(goal.at_most, goal.unit)}"
        figure = goal.measured(runs)
        if figure is None:
            needs_gpu = goal.run == "eager-gpu" or goal.run.startswith("stack-")
            missing = NOT_RUN if needs_gpu else "not run yet: `make bench`"
            return (goal.what, goal.against, at_most, missing, "", "")
        words = [amount(figure, goal.unit), goal.of(runs[goal.run]) if goal.of else ""]
        shown = "; ".join(filter(None, words))
        verdict = "yes" if goal.is_met(figure) else f"no: {goal.reason}"
        return (goal.what, goal.against, at_most, shown, floor(goal, runs), verdict)

    header = ("what", "against", "goal", "figure", "floor", "met")
    return table(header, (row(goal) for goal in GOALS), 0)


def floor(goal: Goal, runs: Runs) -> str:
    """What physics leaves."""
    try:
        return goal.floor(runs[goal.run]) if goal.floor else ""
    except KeyError:
        return ""


def stack_table(runs: Runs) -> str:
    """Microseconds of a step, by shape, rows and way; ours, and by hand."""

    def cell(found: Any, side: str, way: str) -> str:
        value = found.get(f"{side}, {way}")
        return f"{value['median']:,.0f}" if value else "?"

    def rows() -> Iterator[Sequence[str]]:
        for shape in ("gated", "small"):
            by_rows = runs.get(f"stack-{shape}", {}).get("microseconds", {})
            for number in ROWS:
                found = by_rows.get(str(number))
                if found is None:
                    yield (shape, str(number), NOT_RUN, "", "", "", "", "")
                    continue
                eager = found[f"{ORIGINAL}, {EAGER}"]["median"]
                replayed = found[f"{OURS}, {GRAPH}"]["median"]
                pairs = (
                    f"{cell(found, OURS, way)} / {cell(found, BY_HAND, way)}"
                    for way in (FULLGRAPH, REDUCE_OVERHEAD, GRAPH)
                )
                yield (
                    shape,
                    str(number),
                    f"{eager:,.0f}",
                    *pairs,
                    cell(found, ORIGINAL, GRAPH),
                    f"{eager / replayed:.1f}x",
                )

    pairs = (f"{way}: ours / by hand" for way in (FULLGRAPH, REDUCE_OVERHEAD, GRAPH))
    captured = ("eager code captured", "eager / ours replayed")
    return table(("layers", "m", EAGER, *pairs, *captured), rows(), 7)


def run_table(runs: Runs) -> str:
    """When, where and with what each saved run was made."""

    def rows() -> Iterator[Sequence[str]]:
        for name, run in runs.items():
            yield (f"`{name}.json`", *(run.get(key, "") for key in KEYS))

    return table(("run", *KEYS), rows(), 0)


KEYS = ("date", "device", "python", "torch", "flashinfer")


def decoder_table(runs: Runs) -> str:
    """Tokens per second, and how many times those of eager code."""
    shown = figures.decoders(runs)
    batches = list(shown[0]["tokens per second"][EAGER])

    def rows() -> Iterator[Sequence[str]]:
        for run in shown:
            rates = run["tokens per second"]
            for way, by_batch in rates.items():
                cells = (
                    f"{rate:,.0f} ({rate / rates[EAGER][batch]:.1f}x)"
                    for batch, rate in by_batch.items()
                )
                yield (run["flashinfer"], way, *cells)

    header = ("FlashInfer", "way", *(f"batch {batch}" for batch in batches))
    return table(header, rows(), len(batches))


PAGES: dict[str, dict[str, Callable[[Runs], str]]] = {
    "performance.md": {"goals": goal_table, "stacks": stack_table, "runs": run_table},
    "decoder.md": {"decoder": decoder_table},
}


def written(text: str, tables: dict[str, Callable[[Runs], str]], runs: Runs) -> str:
    """The page with its tables made anew.

    Raises:
        SystemExit: it has no place for one of them.
    """
    for name, made in tables.items():
        begin, end = f"<!-- bench/page.py: {name} -->\n", "<!-- end -->"
        place = re.compile(f"({re.escape(begin)}).*?({re.escape(end)})", re.DOTALL)
        found = place.search(text)
        if found is None:
            raise SystemExit(f"the page has no place for the table {name}: {begin}...{end}")
        text = text[: found.end(1)] + made(runs) + "\n" + text[found.start(2) :]
    return text


def main() -> int:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    runs, differing = figures.load(), 0
    for name, tables in PAGES.items():
        page = DOCS / name
        text = page.read_text(encoding="utf-8")
        wanted = written(text, tables, runs)
        if text == wanted:
            continue
        if args.check:
            differing = 1
            print(f"docs/{name} does not tell what bench/results has: run make bench-docs")
        else:
            page.write_text(wanted, encoding="utf-8")
            print(f"docs/{name} is written anew")
    return differing


if __name__ == "__main__":
    sys.exit(main())
