"""The goals of docs/performance.md: what is measured, against what, and how much it may be.

Each figure is read from the JSON that a benchmark saves. ``bench/page.py`` makes the table of the
docs from the saved runs in ``bench/results``; ``bench/run.py --quick`` holds a fresh run against
the limits. A limit is twice what is allowed: of a ratio twice the excess over 1, of an amount twice
the amount. What is allowed is the goal, or, where the saved run misses it, what that run shows. And
a limit is never below what a clock on a busy machine can tell apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from figures import Figure, Runs, Words, added, floor, growth, medians, ratio
from names import (
    ADDED,
    BARE,
    BY_HAND,
    DDTRACE,
    DEPTHS,
    DISPATCHER_CALL,
    EAGER,
    GRAPH,
    LENGTHS,
    NO_CALL,
    OPENTELEMETRY,
    ORIGINAL,
    OURS,
    PYTHON_CALL,
    ROWS,
    START,
    TORCHS,
    WITH,
    WITHOUT,
    WRAPT,
)

#: Noise of a ratio of times that two processes, or two functions in one, took in turn.
TIMED = 0.25
COUNTED = 0.02  # of a ratio of instructions
NANOSECONDS = 400.0  # of a call, in what another adds to it


@dataclass(frozen=True)
class Goal:
    """One row.

    Attributes:
        what: is measured.
        against: what it is compared with.
        run: the benchmark that saves it.
        figure: reads it from what was saved; raises KeyError where it was not measured.
        at_most: the goal, in ``unit``.
        unit: ``x`` for ratios, else what is counted; empty where ``what`` says it.
        noise: below this a ratio's excess, or an amount, says nothing.
        floor: what physics leaves, from what was saved; raises KeyError where it was not measured.
        of: what the figure is of, from what was saved, where a run may have less than all.
        reason: why the goal is not met, where it is not.
    """

    what: str
    against: str
    run: str
    figure: Figure
    at_most: float
    unit: str = "x"
    noise: float = TIMED
    floor: Words | None = None
    of: Words | None = None
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


def _starts() -> Iterator[Goal]:
    for unit, told, noise in (
        ("cpu seconds", "CPU time", TIMED),
        ("instructions", "instructions", COUNTED),
    ):
        yield Goal(
            f"start of an interpreter that never imports FlashInfer, {told}",
            WITHOUT,
            "startup",
            medians(unit, side=START, against=BARE),
            1.03,
            noise=noise,
            reason="Python compiles or reads our sitecustomize and the gate, and keeps a finder",
        )
    for other in (WRAPT, DDTRACE, OPENTELEMETRY):
        yield Goal(
            "what that start adds, instructions",
            f"what {other} adds",
            "startup",
            _part_of(other),
            0.2,
            unit="of it",
        )


def _part_of(other: str) -> Figure:
    def figure(run: Any) -> float:
        found = run["instructions"]
        return added(found, START, BARE) / added(found, other, BARE)

    return figure


def _imports() -> Iterator[Goal]:
    def time(release: str) -> Figure:
        def figure(run: Any) -> float:
            found = run[release]["cpu seconds"]
            return float(1 + found[ADDED]["median"] / found[WITHOUT]["median"])

        return figure

    def memory(release: str) -> Figure:
        return lambda run: float(run[release]["kibibytes"][ADDED]["median"])

    for release in ("0.6.3", "0.7.4"):
        yield Goal(
            f"`import flashinfer` {release}, CPU time",
            WITHOUT,
            "imports",
            time(release),
            1.02,
            reason="each function is put in place, after its file was compared",
        )
        yield Goal(
            f"memory of a process that has imported FlashInfer {release}",
            WITHOUT,
            "imports",
            memory(release),
            1024,
            unit="KiB",
            reason="each function that is put in place keeps a replacement and its facts",
        )


def _eager() -> Iterator[Goal]:
    for run, where in (("eager", "kernel stubbed"), ("eager-gpu", "on the H200, real kernel")):
        for function in ("rmsnorm", "silu_and_mul"):
            yield Goal(
                f"eager call of {function}, {where}",
                ORIGINAL,
                run,
                _added_to(function),
                120,
                unit="ns",
                noise=NANOSECONDS,
                floor=floor(function, "nanoseconds", name=PYTHON_CALL, unit="ns"),
                reason="a call of a Python function in front, and one test whether anyone compiles",
            )
    for call, told in (
        ("_get_cache_buf", "`_get_cache_buf`"),
        ("a JIT module's call", "a JIT module's call"),
    ):
        yield Goal(
            f"{told} in eager code",
            WITHOUT,
            "counted",
            _instructions_added_to(call),
            25,
            unit="instructions",
            noise=100,
        )


def _added_to(function: str) -> Figure:
    return lambda run: float(run[function][ADDED]["median"])


def _instructions_added_to(call: str) -> Figure:
    # A Python call of nothing is the same in both processes; what it differs by is noise.
    def figure(run: Any) -> float:
        one, other = run[WITH], run[WITHOUT]
        return float(abs(one[call] - other[call] - one[PYTHON_CALL] + other[PYTHON_CALL]))

    return figure


def _compiled() -> Iterator[Goal]:
    compiling = "Dynamo follows a function of ours where by hand it follows none"
    for title, at_most, lowest, reason in (
        (
            "call in a graph",
            1.0,
            floor("call in a graph", name=DISPATCHER_CALL, unit="ns"),
            "our kernel also asks whether a CUDA graph is being captured, and for grad mode",
        ),
        (
            "guards of 64 calls",
            1.0,
            floor("guards of 64 calls", name=NO_CALL, unit="us"),
            "the guards are as many, of the same kinds; the rest is noise of the clock",
        ),
        (
            "compiling, one of 64 calls",
            1.15,
            floor("compiling, one of 64 calls", name=TORCHS, unit="ms"),
            compiling,
        ),
        ("compiling, one of 8 layers", 1.15, None, compiling),
    ):
        yield Goal(title, BY_HAND, "calls", medians(title), at_most, floor=lowest, reason=reason)
    for kind, numbers in (("calls", LENGTHS), ("layers", DEPTHS)):
        few, some, many = numbers
        yield Goal(
            f"compiling one more of {some} to {many} {kind}",
            f"one more of {few} to {some}",
            "calls",
            _growth(kind, numbers),
            1.15,
            floor=_growth_by_hand(kind, numbers),
            reason="what grows is torch's own",
        )


def _growth(kind: str, numbers: tuple[int, int, int]) -> Figure:
    return lambda run: growth(run, OURS, kind, numbers)


def _growth_by_hand(kind: str, numbers: tuple[int, int, int]) -> Words:
    return lambda run: f"{BY_HAND}: {growth(run, BY_HAND, kind, numbers):.3f}x"


def _touched() -> Iterator[Goal]:
    def asked(fullgraph: bool) -> Figure:
        def figure(run: Any) -> float:
            kinds = run[f"fullgraph={fullgraph}, {WITH}"]
            return float(sum(count for kind, count in kinds.items() if kind != "graphs"))

        return figure

    for fullgraph in (False, True):
        yield Goal(
            "file stats, files, processes and module loads of a compiled call, "
            f"`fullgraph={fullgraph}`",
            "nothing",
            "touched",
            asked(fullgraph),
            0,
            unit="",
            noise=0,
        )


def _stacks() -> Iterator[Goal]:
    graph = f"{OURS}, {GRAPH}"

    def worst(run: Any) -> float:
        every = run["microseconds"].values()
        return max(ratio(found, graph, f"{BY_HAND}, {GRAPH}") for found in every)

    for shape in ("gated", "small"):
        yield Goal(
            f"H200, stack of 48 {shape} layers, replayed CUDA graph, the worst m",
            BY_HAND,
            f"stack-{shape}",
            worst,
            1.02,
            floor=floor("microseconds", "1", name=f"{ORIGINAL}, {GRAPH}", unit="us at m = 1"),
            of=_rows,
        )
        yield Goal(
            f"the same, m = 1 ({shape})",
            "eager code",
            f"stack-{shape}",
            medians("microseconds", "1", side=graph, against=f"{ORIGINAL}, {EAGER}"),
            round(1 / 3.5, 3),
            unit="of it",
            reason="what a replay takes is its kernels' own time, by hand the same",
        )


def _rows(run: Any) -> str:
    missing = [str(rows) for rows in ROWS if str(rows) not in run["microseconds"]]
    return f"not run yet: m = {', '.join(missing)}" if missing else ""


GOALS = (*_starts(), *_imports(), *_eager(), *_compiled(), *_touched(), *_stacks())
