"""Draws the saved runs for the docs. The same runs give the same files.

python3 bench/plots.py        # needs matplotlib; writes docs/*.svg
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import figures
import matplotlib
from names import BARE

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "flashinfer-shim"
matplotlib.rcParams["svg.fonttype"] = "none"

import matplotlib.pyplot as plt  # noqa: E402

DOCS = Path(__file__).resolve().parent.parent / "docs"
COLOURS = {
    "the original": "0.4",
    "ours": "tab:blue",
    "registered by hand": "tab:orange",
    "torch.library.custom_op": "tab:red",
    "an op of torch's own": "0.7",
    "a Python call of nothing": "0.8",
    "a dispatcher call of nothing": "0.8",
}


def save(figure: Any, name: str) -> None:
    """Write it, with nothing in it that differs from run to run."""
    figure.tight_layout()
    figure.savefig(DOCS / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def plain(axis: Any) -> None:
    """Numbers at a logarithmic axis as they are written in the text."""
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter("{x:,g}")


def starts(runs: figures.Runs) -> None:
    """Bars: instructions that each adds to the start of an interpreter."""
    found = runs["startup"]["instructions"]
    figure, panel = plt.subplots(figsize=(8, 2.4))
    names = [name for name in found if name != BARE]
    values = [figures.added(found, name, BARE) / 1e6 for name in names]
    bars = panel.barh(names, values, color=["tab:blue", *["0.6"] * (len(names) - 1)])
    panel.bar_label(bars, fmt="%.1f", padding=3)
    panel.set_xscale("log")
    panel.set_xlim(min(values) / 4, max(values) * 4)
    plain(panel.xaxis)
    panel.invert_yaxis()
    panel.set_xlabel("million instructions added to the start of an interpreter")
    save(figure, "startup")


def eager(runs: figures.Runs) -> None:
    """Bars: a call in eager code, by side, on the CPU with stubs and on a GPU."""
    shown = [name for name in ("eager", "eager-gpu") if name in runs]
    figure, panels = plt.subplots(1, len(shown), figsize=(5.5 * len(shown), 3), squeeze=False)
    for panel, name in zip(panels[0], shown, strict=True):
        found = runs[name]["rmsnorm"]["nanoseconds"]
        values = [side["median"] / 1000 for side in found.values()]
        bars = panel.barh(list(found), values, color=[COLOURS[side] for side in found])
        panel.bar_label(bars, fmt="%.2f", padding=3)
        panel.set_xlim(right=max(values) * 1.2)
        panel.invert_yaxis()
        where = "kernel stubbed" if name == "eager" else runs[name]["device"]
        panel.set_xlabel(f"microseconds of a call of rmsnorm, {where}")
    save(figure, "eager")


def compiling(runs: figures.Runs) -> None:
    """Lines: milliseconds to compile one call or layer, by how many there are."""
    run = runs["calls"]
    figure, panels = plt.subplots(1, 2, figsize=(11, 3.6))
    for panel, kind in zip(panels, ("calls", "layers"), strict=True):
        by_number = {
            int(title.split()[3]): found
            for title, found in run.items()
            if title.startswith("compiling, one of ") and title.endswith(kind)
        }
        for side in next(iter(by_number.values())):
            values = [found[side]["median"] for found in by_number.values()]
            panel.plot(list(by_number), values, "o-", label=side, color=COLOURS[side])
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        plain(panel.yaxis)
        panel.set_xticks(list(by_number), [str(number) for number in by_number])
        panel.set_xlabel(f"{kind} in the function")
        panel.set_ylabel(f"ms to compile one of its {kind}")
        panel.grid(alpha=0.3)
        panel.legend()
    save(figure, "compiling")


def stacks(runs: figures.Runs) -> None:
    """Lines: microseconds of a step against rows, by side and way."""
    shown = [name for name in ("stack-gated", "stack-small") if name in runs]
    styles = {
        "eager": "-",
        "fullgraph, backend eager": ":",
        "reduce-overhead": "-.",
        "CUDA graph": "--",
    }
    figure, panels = plt.subplots(1, len(shown), figsize=(6 * len(shown), 4.6), squeeze=False)
    for panel, name in zip(panels[0], shown, strict=True):
        run = runs[name]
        by_rows = {int(m): run["microseconds"][m] for m in sorted(run["microseconds"], key=int)}
        for way in next(iter(by_rows.values())):
            side, _, how = way.partition(", ")
            values = [found[way]["median"] for found in by_rows.values()]
            panel.plot(
                list(by_rows), values, "o", ls=styles[how], label=way, color=COLOURS[side], ms=3
            )
        panel.set_xscale("log", base=4)
        panel.set_yscale("log")
        plain(panel.yaxis)
        panel.set_xticks(list(by_rows), [str(m) for m in by_rows])
        panel.set_title(f"{run['layers']} {run['shape']} layers, {run['device']}")
        panel.set_xlabel("rows")
        panel.grid(alpha=0.3, which="both")
    panels[0][0].set_ylabel("microseconds of a step")
    panels[0][-1].legend(fontsize=7)
    save(figure, "stack")


def decoders(runs: figures.Runs) -> None:
    """Lines: tokens per second against batch size, one panel for each saved run."""
    shown = figures.decoders(runs)
    figure, panels = plt.subplots(
        1, len(shown), figsize=(5 * len(shown), 4), sharey=True, squeeze=False
    )
    for panel, run in zip(panels[0], shown, strict=True):
        for way, rates in run["tokens per second"].items():
            panel.plot([int(batch) for batch in rates], list(rates.values()), "o-", label=way)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        plain(panel.yaxis)
        panel.set_title(f"FlashInfer {run['flashinfer']}, {run['device']}")
        panel.set_xlabel("batch size")
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("tokens per second")
    panels[0][0].legend()
    save(figure, "decoder")


def main() -> None:
    runs = figures.load()
    starts(runs)
    eager(runs)
    compiling(runs)
    stacks(runs)
    decoders(runs)


if __name__ == "__main__":
    main()
