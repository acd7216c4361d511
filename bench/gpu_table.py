"""Writes what bench/gpu_ops.py found into docs/coverage.md, between its two markers.

python3 bench/gpu_table.py OUT/ops-*.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "coverage.md"
BEGIN, END = "<!-- gpu table begin -->", "<!-- gpu table end -->"


def cell(row: dict[str, Any] | None) -> str:
    """One op in one report."""
    if row is None:
        return "-"
    if "no such function" in row.get("refused", ""):
        return "not in this release"
    if "refused" in row:
        return f"not run: {row['refused']}".replace("|", "/")
    ways: dict[str, str] = row["ways"]
    agreeing = set(ways.values())
    said = agreeing.pop() if len(agreeing) == 1 else "; ".join(f"{k}: {w}" for k, w in ways.items())
    return said if not row["spread"] else f"{said} ({row['spread']:.3g})"


def table(reports: list[dict[str, Any]]) -> str:
    """The table of all ops, and one of the stack."""
    by_op = [{row["op"]: row for row in report["rows"]} for report in reports]
    names = [f"FlashInfer {report['flashinfer']}, {report['variant']}" for report in reports]
    lines = [
        f"{reports[0]['device']}, torch {reports[0]['torch']}.",
        "",
        f"| op | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    for op in dict.fromkeys(op for rows in by_op for op in rows):
        if all("no such function" in rows.get(op, {}).get("refused", "") for rows in by_op):
            continue
        lines.append(f"| `{op}` | {' | '.join(cell(rows.get(op)) for rows in by_op)} |")
    lines += ["", f"| stack, compiled by | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for way in next(iter(reports[0]["stack"].values()), {}):
        cells = []
        for report in reports:
            found = [f"{ways[way]} for {m}" for m, ways in report["stack"].items()]
            alike = {ways[way] for ways in report["stack"].values()}
            cells.append(alike.pop() if len(alike) == 1 else ", ".join(found))
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    reports = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]
    if not reports:
        raise SystemExit(__doc__)
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(reports)}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
