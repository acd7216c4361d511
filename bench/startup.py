"""What we add to the start of an interpreter and to the import of FlashInfer.

    python3 bench/startup.py --flashinfer TREE [--rounds N] [--instructions] [--json FILE] [--check]

An interpreter that never imports FlashInfer is started bare, with our start-up directory on
PYTHONPATH, and with those of others that are installed here: ddtrace, OpenTelemetry's, and a
sitecustomize that imports wrapt, as shims commonly do. Then each TREE (a directory that holds
FlashInfer) is imported without us and with us. What is measured is CPU time of whole processes, and
with ``--instructions`` the instructions of the first kind, by callgrind.

``--check`` ends with status 1 where a ratio is over twice its goal.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import measuring
from measuring import Goal, Side

ROOT = Path(__file__).resolve().parent.parent
#: Start-up directories of others, below their packages.
OTHERS = {
    "ddtrace-run": ("ddtrace", "bootstrap"),
    "opentelemetry-instrument": ("opentelemetry.instrumentation", "auto_instrumentation"),
}
BARE, OURS, WRAPT = "bare", "flashinfer-shim", "a sitecustomize that imports wrapt"
WITHOUT, WITH = "without us", "with us"


def environment(*path: object, **more: str) -> dict[str, str]:
    """What a process is started with: no setting but these."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    # Bytecode is written by the first round, which is thrown away.
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, path)), **more}


def starts(scratch: Path) -> Iterator[Side]:
    """Interpreters that do nothing."""
    (scratch / "sitecustomize.py").write_text("import wrapt\n")
    directories = {BARE: scratch / "empty", OURS: startup_directory(), WRAPT: scratch}
    for name, (package, below) in OTHERS.items():
        spec = importlib.util.find_spec(package.partition(".")[0])
        found = importlib.util.find_spec(package) if spec else None
        if found and found.submodule_search_locations:
            directories[name] = Path(next(iter(found.submodule_search_locations)), below)
    for name, directory in directories.items():
        yield Side(name, (sys.executable, "-c", "pass"), environment(directory))


def startup_directory() -> Path:
    """Where our sitecustomize is."""
    sys.path.insert(0, str(ROOT))
    from shim.location import startup_directory as found

    return Path(found())


def imports(tree: str, scratch: Path) -> Iterator[Side]:
    """Interpreters that import FlashInfer."""
    settings = {"FLASHINFER_CUDA_ARCH_LIST": "9.0a", "FLASHINFER_WORKSPACE_BASE": str(scratch)}
    command = (sys.executable, "-c", "import flashinfer")
    yield Side(WITHOUT, command, environment(tree, **settings))
    yield Side(WITH, command, environment(startup_directory(), tree, **settings))


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--flashinfer", action="append", default=[], metavar="TREE")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    tolerance = measuring.TOLERANCE if args.check else 1.0
    result, faults = {}, []

    def take(
        title: str,
        unit: str,
        sides: Iterator[Side],
        measure: Callable[[Side], float],
        rounds: int,
        goal: Goal,
    ) -> None:
        found = measuring.compare(list(sides), measure, rounds)
        measuring.show(title, unit, found, goal.against)
        result[f"{title}, {unit}"] = found
        faults.extend(f"{title}: {m}" for m in measuring.missed(found, [goal], tolerance))

    with tempfile.TemporaryDirectory() as directory:
        scratch, rounds = Path(directory), args.rounds
        goal, title = Goal(OURS, BARE, 1.03), "start of an interpreter"
        take(title, "CPU seconds", starts(scratch), measuring.cpu_seconds, rounds, goal)
        if args.instructions:
            take(title, "instructions", starts(scratch), measuring.instructions, 1, goal)
        for tree in args.flashinfer:
            goal, title = Goal(WITH, WITHOUT, 1.02), f"import flashinfer ({Path(tree).name})"
            sides = imports(tree, scratch)
            take(title, "CPU seconds", sides, measuring.cpu_seconds, rounds, goal)
    if args.json:
        measuring.save(args.json, result)
    measuring.finish(faults, check=args.check)


if __name__ == "__main__":
    main()
