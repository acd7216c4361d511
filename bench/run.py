"""Runs the benchmarks that need no GPU, and holds what comes of them against the goals.

    python3 bench/run.py INTO [--quick] [--others PYTHON] --flashinfer TREE...

INTO is a directory for their JSON; ``bench/results`` keeps what docs/performance.md shows. They run
one after the other, so that none disturbs another. PYTHON has what an interpreter's start is
compared with besides (bench/constraints.txt).

With ``--quick`` they are short and run two at a time, each on a core of its own, and what an
earlier run has left in INTO is removed; without valgrind what counts instructions is left out, and
said so. A benchmark of which a figure is over its limit (bench/goals.py) is run again, twice at
most: a clock on a busy machine is wrong at times, a regression every time. Status 1: a figure was
over its limit each time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import figures
from goals import GOALS, Goal

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TRIES = 3


@dataclass(frozen=True)
class Benchmark:
    """A script, and with which arguments it runs.

    Attributes:
        name: of the script, and of what it saves.
        whole: arguments of a whole run.
        quick: of a short one; None: there is none.
        trees: how many of FlashInfer's trees it is given as arguments.
        valgrind: whether it runs only with that.
    """

    name: str
    whole: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = ()
    trees: int = 0
    valgrind: bool = False


BENCHMARKS = (
    Benchmark("startup", quick=("--quick",)),
    Benchmark("imports", quick=("--rounds", "3"), trees=2),
    Benchmark("eager", quick=("--rounds", "100")),
    Benchmark("calls", quick=("--quick",)),
    Benchmark("counted", trees=1, valgrind=True),
    Benchmark("touched", quick=("--quick",), trees=1),
)
#: Two that run at the same time, each in its order, are done at about the same time.
CORES = (("counted", "eager"), ("imports", "touched", "startup", "calls"))


class Machine:
    """Runs benchmarks here."""

    def __init__(self, into: Path, trees: Sequence[str], others: str, *, quick: bool) -> None:
        self.into, self.trees, self.others, self.quick = into, trees, others, quick
        self.valgrind = shutil.which("valgrind") is not None
        into.mkdir(parents=True, exist_ok=True)
        if not (self.valgrind or quick):
            raise SystemExit("valgrind counts instructions, and is not here: install it")
        if not self.valgrind:
            print("no valgrind here: instructions are not counted")
        if quick:
            for benchmark in BENCHMARKS:
                (into / f"{benchmark.name}.json").unlink(missing_ok=True)

    def run(self, benchmark: Benchmark, core: int | None = None) -> None:
        """Run it, and print what it prints when it has ended.

        Raises:
            SystemExit: it failed.
        """
        if benchmark.valgrind and not self.valgrind:
            return
        begun = time.monotonic()
        done = subprocess.run(
            self._command(benchmark),
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), self.trees[0]))},
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
        )
        print(done.stdout, end="")
        print(f"--- {benchmark.name}: {time.monotonic() - begun:.0f} s", flush=True)
        if done.returncode:
            raise SystemExit(f"{benchmark.name} ended with {done.returncode}")

    def _command(self, benchmark: Benchmark) -> list[str]:
        python = self.others if benchmark.name == "startup" else sys.executable
        command = [python, str(HERE / f"{benchmark.name}.py")]
        command += ["--json", str(self.into / f"{benchmark.name}.json")]
        command += (benchmark.quick or ()) if self.quick else benchmark.whole
        if benchmark.trees:
            # The newest has the longest import.
            trees = self.trees[-1:] if self.quick and benchmark.trees > 1 else self.trees
            command += ["--flashinfer", *trees[: benchmark.trees]]
        if benchmark.name == "startup" and self.valgrind:
            command.append("--instructions")
        return command

    def run_side_by_side(self) -> None:
        """All of them, on two cores if there are two."""
        by_name = {benchmark.name: benchmark for benchmark in BENCHMARKS}
        cores = sorted(os.sched_getaffinity(0))

        def in_order(number: int) -> None:
            for name in CORES[number]:
                self.run(by_name[name], cores[number % len(cores)])

        with ThreadPoolExecutor(len(cores)) as pool:
            list(pool.map(in_order, range(len(CORES))))


def judge(fresh: figures.Runs, saved: figures.Runs) -> list[Goal]:
    """Print each figure, its goal and its limit; the goals whose limit is exceeded."""
    over = []
    print(f"\n{'':78} {'figure':>10} {'goal':>8} {'limit':>8}")
    for goal in GOALS:
        figure = goal.measured(fresh)
        if figure is None:
            continue
        limit = goal.limit(saved)
        mark = ""
        if figure > limit:
            over.append(goal)
            mark = "   OVER ITS LIMIT"
        title = f"{goal.what} / {goal.against}"
        print(f"{title[:78]:78} {figure:10.3f} {goal.at_most:8g} {limit:8.3f} {goal.unit}{mark}")
    return over


def again(machine: Machine, over: Iterable[Goal]) -> None:
    """Run once more what these goals are read from, by itself."""
    names = {goal.run for goal in over}
    print(f"\nover a limit; once more, by itself: {', '.join(sorted(names))}")
    for benchmark in BENCHMARKS:
        if benchmark.name in names:
            machine.run(benchmark)


def main() -> int:
    """Run, judge."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("into", type=Path, metavar="INTO")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--others", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--flashinfer", nargs="+", required=True, metavar="TREE")
    args = parser.parse_args()
    saved = figures.load()
    machine = Machine(args.into, args.flashinfer, args.others, quick=args.quick)
    if args.quick:
        machine.run_side_by_side()
    else:
        for benchmark in BENCHMARKS:
            machine.run(benchmark)
    over = judge(figures.load(args.into), saved)
    for _ in range(TRIES - 1):
        if over and args.quick:
            again(machine, over)
            over = judge(figures.load(args.into), saved)
    return 1 if over and args.quick else 0


if __name__ == "__main__":
    sys.exit(main())
