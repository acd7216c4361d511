"""What benchmarks have saved, and figures that are read from it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from names import BY_HAND, OURS

RESULTS = Path(__file__).resolve().parent / "results"

#: By the benchmark's name: what it has saved.
Runs = dict[str, Any]
#: These raise KeyError where a run has not measured it.
Figure = Callable[[Any], float]
Words = Callable[[Any], str]


def load(directory: Path = RESULTS) -> Runs:
    """All that was saved there, by name."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(directory.glob("*.json"))
    }


def decoders(runs: Runs) -> list[Any]:
    """The runs of bench/decoder.py, by FlashInfer's release."""
    found = [run for name, run in runs.items() if name.startswith("decoder-")]
    return sorted(
        found, key=lambda run: [int(part) for part in re.findall(r"\d+", run["flashinfer"])]
    )


def ratio(found: Any, side: str, against: str) -> float:
    """Of two medians."""
    one, other = found[side]["median"], found[against]["median"]
    return float(one / other)


def added(found: Any, side: str, floor: str) -> float:
    """The difference of two medians."""
    return float(found[side]["median"] - found[floor]["median"])


def medians(*keys: str, side: str = OURS, against: str = BY_HAND) -> Figure:
    """Reads the ratio of two sides' medians."""

    def figure(run: Any) -> float:
        for key in keys:
            run = run[key]
        return ratio(run, side, against)

    return figure


def floor(*keys: str, name: str, unit: str) -> Words:
    """Tells the median of what does nothing."""

    def words(run: Any) -> str:
        for key in keys:
            run = run[key]
        value = run[name]["median"]
        return f"{name}: {value:,.{0 if value >= 100 else 1}f} {unit}"

    return words


def growth(run: Any, side: str, kind: str, numbers: tuple[int, int, int]) -> float:
    """What one more of them takes to compile where there are many, to where there are few."""
    few, some, many = numbers
    total = {n: run[f"compiling, one of {n} {kind}"][side]["median"] * n for n in numbers}
    one_of_many = (total[many] - total[some]) / (many - some)
    return float(one_of_many / ((total[some] - total[few]) / (some - few)))
