"""What we add to the start of an interpreter that never imports FlashInfer.

    python3 bench/startup.py [--rounds N] [--quick] [--instructions] [--json FILE]

It is started bare, with our start-up directory on PYTHONPATH, and with those of others: a
sitecustomize that imports wrapt, as shims commonly do, and what ddtrace-run and
opentelemetry-instrument put there, where they are installed (bench/constraints.txt). Measured is
CPU time of whole processes, and with ``--instructions`` their instructions, by callgrind.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measuring
from measuring import Side
from names import BARE, DDTRACE, OPENTELEMETRY, START, WRAPT

ROOT = Path(__file__).resolve().parent.parent
#: Start-up directories of others, below their packages.
OTHERS = {
    DDTRACE: ("ddtrace", "bootstrap"),
    OPENTELEMETRY: ("opentelemetry.instrumentation", "auto_instrumentation"),
}
#: Nobody is to look for a service that would take what they collect.
ALONE = {
    "DD_REMOTE_CONFIGURATION_ENABLED": "false",
    "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
    "OTEL_TRACES_EXPORTER": "none",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
}


def environment(*path: object, **more: str) -> dict[str, str]:
    """What a process is started with: no setting but these."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    # Bytecode is written by the first round, which is thrown away.
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, path)), **more}


def starts(scratch: Path) -> Iterator[Side]:
    """Interpreters that do nothing."""
    (scratch / "sitecustomize.py").write_text("import wrapt\n")
    directories = {BARE: scratch / "empty", START: startup_directory(), WRAPT: scratch}
    for name, (package, below) in OTHERS.items():
        spec = importlib.util.find_spec(package.partition(".")[0])
        found = importlib.util.find_spec(package) if spec else None
        if found and found.submodule_search_locations:
            directories[name] = Path(next(iter(found.submodule_search_locations)), below)
        else:
            print(f"{name} is not installed here, and is left out")
    for name, directory in directories.items():
        yield Side(name, (sys.executable, "-c", "pass"), environment(directory, **ALONE))


def startup_directory() -> Path:
    """Where our sitecustomize is."""
    sys.path.insert(0, str(ROOT))
    from shim.location import startup_directory as found

    return Path(found())


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--quick", action="store_true", help="few rounds, and no others but us")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    result: dict[str, Any] = measuring.machine()
    with tempfile.TemporaryDirectory() as directory:
        sides = list(itertools.islice(starts(Path(directory)), 2 if args.quick else None))
        rounds = min(args.rounds, 9) if args.quick else args.rounds
        found = measuring.compare(sides, measuring.cpu_seconds, rounds)
        measuring.show("start of an interpreter", "CPU seconds", found, BARE)
        result["cpu seconds"] = found
        if args.instructions:
            # The same each time.
            found = measuring.told({side.name: [measuring.instructions(side)] for side in sides})
            measuring.show("start of an interpreter", "instructions", found, BARE)
            result["instructions"] = found
    if args.json:
        measuring.save(args.json, result)


if __name__ == "__main__":
    main()
