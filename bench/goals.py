"""The goals of docs/performance.md: what is measured, against what, and how much it may be.

Each figure is read from the JSON that a benchmark saves. ``bench/page.py`` makes the table of the
docs from the saved runs in ``bench/results``; ``bench/run.py --quick`` holds a fresh run against
the limits. A limit is twice what is allowed: of a ratio twice the excess over 1, of an amount twice
the amount. What is allowed is the goal, or, where the saved run misses it, what that run shows. And
a limit is never below what a clock on a busy machine can tell apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"

#: Figures by the benchmark's name: what it has saved.
Runs = dict[str, Any]
TIMED, COUNTED = 0.15, 0.02  # noise of a ratio of times, and of one of instructions


@dataclass(frozen=True)
class Goal:
    """One row.

    Attributes:
        what: is measured.
        against: what it is compared with.
        run: the benchmark that saves it.
        figure: reads it from what was saved; raises KeyError where it was not measured.
        at_most: the goal, in ``unit``.
        unit: ``x`` for ratios, else what is counted.
        noise: below this a ratio's excess, or an amount, says nothing.
        floor: what physics leaves, from what was saved.
        reason: why the goal is not met, where it is not.
    """

    what: str
    against: str
    run: str
    figure: Callable[[Any], float]
    at_most: float
    unit: str = "x"
    noise: float = TIMED
    floor: Callable[[Any], str] | None = None
    reason: str = ""

    def measured(self, runs: Runs) -> float | None:
        """The figure; None where these runs do not have it."""
        try:
            return self.figure(runs[self.run])
        except KeyError:
            return None

    def is_met(self, figure: float) -> bool:
        """Whether it is reached, as precisely as the docs print it; noise is no excuse here."""
        return round(figure, 3) <= self.at_most

    def limit(self, saved: Runs) -> float:
        """Above this a fresh run fails."""
        allowed = max(self.at_most, self.measured(saved) or 0.0)
        if self.unit == "x":
            return 1 + max(2 * (allowed - 1), self.noise)
        return max(2 * allowed, self.noise)


def load(directory: Path = RESULTS) -> Runs:
    """All that was saved there, by name."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(directory.glob("*.json"))
    }


def ratio(found: Any, side: str, against: str) -> float:
    """Of two medians."""
    one, other = found[side]["median"], found[against]["median"]
    return float(one / other)


def added(found: Any, side: str, floor: str) -> float:
    """The difference of two medians."""
    return float(found[side]["median"] - found[floor]["median"])


def growth(run: Any, kind: str, numbers: tuple[int, int, int]) -> float:
    """What one more of them takes to compile where there are many, to where there are few."""
    few, some, many = numbers
    total = {n: run[f"compiling, one of {n} {kind}"][OURS]["median"] * n for n in numbers}
    one_of_many = (total[many] - total[some]) / (many - some)
    return float(one_of_many / ((total[some] - total[few]) / (some - few)))


BARE, START = "bare", "flashinfer-shim"
OURS, BY_HAND, ORIGINAL = "ours", "registered by hand", "the original"
PYTHON_CALL, DISPATCHER_CALL = "a Python call of nothing", "a dispatcher call of nothing"


def _starts() -> Iterator[Goal]:
    for unit, noise in (("cpu seconds", TIMED), ("instructions", COUNTED)):
        told = "CPU time" if unit == "cpu seconds" else unit
        yield Goal(
            f"start of an interpreter that never imports FlashInfer, {told}",
            "without us",
            "startup",
            lambda run, unit=unit: ratio(run[unit], START, BARE),
            1.03,
            noise=noise,
        )
    for other in ("a sitecustomize that imports wrapt", "ddtrace-run", "opentelemetry-instrument"):
        yield Goal(
            "what that start adds, instructions",
            f"what {other} adds",
            "startup",
            lambda run, other=other: (
                added(run["instructions"], START, BARE) / added(run["instructions"], other, BARE)
            ),
            0.2,
            unit="of it",
        )


def _imports() -> Iterator[Goal]:
    for release in ("0.6.3", "0.7.4"):
        yield Goal(
            f"`import flashinfer` {release}, CPU time",
            "without us",
            "imports",
            lambda run, release=release: (
                1
                + run[release]["cpu seconds"]["added by us"]["median"]
                / run[release]["cpu seconds"]["without us"]["median"]
            ),
            1.02,
        )
        yield Goal(
            f"memory of a process that has imported FlashInfer {release}",
            "without us",
            "imports",
            lambda run, release=release: run[release]["kibibytes"]["added by us"]["median"],
            1024,
            unit="KiB",
        )


def _eager() -> Iterator[Goal]:
    for run, where in (("eager", "kernel stubbed"), ("eager-gpu", "on the H200, real kernel")):
        for function in ("rmsnorm", "silu_and_mul"):
            yield Goal(
                f"eager call of {function}, {where}",
                "the original",
                run,
                lambda run, function=function: run[function]["added by us"]["median"],
                120,
                unit="ns",
                floor=lambda run, function=function: (
                    f"a Python call: {run[function]['nanoseconds'][PYTHON_CALL]['median']:.0f} ns"
                ),
            )
    for call in ("_get_cache_buf", "a JIT module's call"):
        yield Goal(
            f"{call} in eager code",
            "without us",
            "counted",
            # A Python call of nothing is the same in both processes; what it differs by is noise.
            lambda run, call=call: abs(
                run["with us"][call]
                - run["without us"][call]
                - run["with us"][PYTHON_CALL]
                + run["without us"][PYTHON_CALL]
            ),
            25,
            unit="instructions",
            noise=100,
        )


def _compiled() -> Iterator[Goal]:
    def floor(title: str, side: str, unit: str) -> Callable[[Any], str]:
        return lambda run: f"{side}: {run[title][side]['median']:.3g} {unit}"

    def by_hand(title: str, at_most: float, floor: Callable[[Any], str]) -> Goal:
        return Goal(
            title,
            "registered by hand",
            "calls",
            lambda run: ratio(run[title], OURS, BY_HAND),
            at_most,
            floor=floor,
        )

    yield by_hand("call in a graph", 1.0, floor("call in a graph", DISPATCHER_CALL, "ns"))
    no_call = "a compiled function without a call"
    yield by_hand("guards of 64 calls", 1.0, floor("guards of 64 calls", no_call, "us"))
    for kind in ("64 calls", "8 layers"):
        title = f"compiling, one of {kind}"
        torchs = floor("compiling, one of 64 calls", "an op of torch's own", "ms")
        yield by_hand(title, 1.15, torchs)
    for kind, numbers in (("calls", (8, 64, 512)), ("layers", (1, 8, 80))):
        few, some, many = numbers
        yield Goal(
            f"compiling one more of {some} to {many} {kind}",
            f"one more of {few} to {some}",
            "calls",
            lambda run, kind=kind, numbers=numbers: growth(run, kind, numbers),
            1.15,
        )


def _touched() -> Iterator[Goal]:
    for fullgraph in (False, True):
        yield Goal(
            "file stats, files, processes and module loads of a compiled call, "
            f"`fullgraph={fullgraph}`",
            "nothing",
            "touched",
            lambda run, fullgraph=fullgraph: sum(
                count
                for kind, count in run[f"fullgraph={fullgraph}, with us"].items()
                if kind != "graphs"
            ),
            0,
            unit="of them",
            noise=0,
        )


def _stacks() -> Iterator[Goal]:
    eager, graph = f"{ORIGINAL}, eager", f"{OURS}, CUDA graph"
    for shape in ("gated", "small"):
        yield Goal(
            f"H200, stack of 48 {shape} layers, replayed CUDA graph, the worst m",
            "registered by hand",
            f"stack-{shape}",
            lambda run: max(
                ratio(found, graph, f"{BY_HAND}, CUDA graph")
                for found in run["microseconds"].values()
            ),
            1.02,
            floor=lambda run: (
                "eager code captured: "
                f"{run['microseconds']['1'][f'{ORIGINAL}, CUDA graph']['median']:.0f} us at m = 1"
            ),
        )
        yield Goal(
            f"the same, m = 1 ({shape})",
            "eager code",
            f"stack-{shape}",
            lambda run: ratio(run["microseconds"]["1"], graph, eager),
            round(1 / 3.5, 3),
            unit="of it",
        )


GOALS = (*_starts(), *_imports(), *_eager(), *_compiled(), *_touched(), *_stacks())
