"""Draws runs that bench/decoder.py has saved, and prints their table for docs/decoder.md.

python3 bench/decoder_plot.py PLOT.svg FILE...        # needs matplotlib
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "decoder"  # the same runs give the same file

import matplotlib.pyplot as plt  # noqa: E402

Run = dict[str, Any]


def draw(plot: str, runs: list[Run]) -> None:
    """Tokens per second against batch size, one panel for each saved run."""
    figure, panels = plt.subplots(
        1, len(runs), figsize=(5 * len(runs), 4), sharey=True, squeeze=False
    )
    for panel, run in zip(panels[0], runs, strict=True):
        for way, rates in run["tokens per second"].items():
            panel.plot([int(batch) for batch in rates], list(rates.values()), "o-", label=way)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_title(f"FlashInfer {run['flashinfer']}, {run['device']}")
        panel.set_xlabel("batch size")
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("tokens per second")
    panels[0][0].legend()
    figure.tight_layout()
    figure.savefig(plot, metadata={"Date": None})


def table(runs: list[Run]) -> Iterator[str]:
    """Markdown: a row for each run and way, with the ratio to the same run's eager code."""
    batches = list(runs[0]["tokens per second"]["eager"])
    yield f"| FlashInfer | way | {' | '.join(f'batch {batch}' for batch in batches)} |"
    yield f"|---|---|{'---:|' * len(batches)}"
    for run in runs:
        eager = run["tokens per second"]["eager"]
        for way, rates in run["tokens per second"].items():
            cells = [f"{rates[b]:,.0f} ({rates[b] / eager[b]:.1f}x)" for b in batches]
            yield f"| {run['flashinfer']} | {way} | {' | '.join(cells)} |"


def main(plot: str, files: list[str]) -> None:
    """Draw and print."""
    runs: list[Run] = [json.loads(Path(name).read_text(encoding="utf-8")) for name in files]
    draw(plot, runs)
    print("\n".join(table(runs)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
