"""Draws runs that bench/decoder.py has saved: tokens per second against batch size.

python3 bench/decoder_plot.py PLOT.svg FILE...        # needs matplotlib
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt


def draw(plot: str, files: list[str]) -> None:
    """Tokens per second against batch size, one panel for each saved run."""
    runs = [json.loads(Path(name).read_text(encoding="utf-8")) for name in files]
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
    figure.savefig(plot)


if __name__ == "__main__":
    draw(sys.argv[1], sys.argv[2:])
