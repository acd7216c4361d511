"""What we add to a process that imports FlashInfer and compiles nothing: CPU time and memory.

    python3 bench/imports.py --flashinfer TREE... [--rounds N] [--json FILE]

TREE is a directory that holds FlashInfer. Processes import it in turn without us and with us. The
CPU time is that of the process until it has imported it; the memory is what it has written by then
and shares with no other.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import measuring
from measuring import Side
from names import ADDED, WITH, WITHOUT
from startup import environment, startup_directory

# Freed memory is given back first, or what is left of it would differ from process to process.
IMPORT = """
import time
import flashinfer
took = time.process_time()
import ctypes, gc
gc.collect()
ctypes.CDLL(None).malloc_trim(0)
for line in open("/proc/self/smaps_rollup"):
    if line.startswith("Private_Dirty:"):
        print(took, line.split()[1])
"""
CPU, MEMORY = "cpu seconds", "kibibytes"


def imports(tree: str, scratch: str) -> list[Side]:
    """Interpreters that import FlashInfer."""
    settings = {"FLASHINFER_CUDA_ARCH_LIST": "9.0a", "FLASHINFER_WORKSPACE_BASE": scratch}
    command = (sys.executable, "-c", IMPORT)
    return [
        Side(WITHOUT, command, environment(tree, **settings)),
        Side(WITH, command, environment(startup_directory(), tree, **settings)),
    ]


def measured(side: Side) -> tuple[float, float]:
    """CPU time of a process that imports FlashInfer, and what memory it has to itself then."""
    done = subprocess.run(side.command, env=dict(side.env), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{side.name}: {done.stderr[-500:]}")
    took, kibibytes = done.stdout.split()
    return float(took), float(kibibytes)


def compared(tree: str, rounds: int) -> dict[str, Any]:
    """Both figures: of each side, and what is added in the same round."""
    with tempfile.TemporaryDirectory() as scratch:
        sides = {side.name: side for side in imports(tree, scratch)}
        values = measuring.in_turn(list(sides), lambda name: measured(sides[name]), rounds)
    result = {}
    for number, unit in enumerate((CPU, MEMORY)):
        of_unit = {name: [pair[number] for pair in pairs] for name, pairs in values.items()}
        found = measuring.told(of_unit)
        measuring.show(f"import of FlashInfer {Path(tree).name}", unit, found, WITHOUT)
        result[unit] = {**found, ADDED: measuring.added(of_unit[WITH], of_unit[WITHOUT])}
    return result


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--flashinfer", nargs="+", required=True, metavar="TREE")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    result: dict[str, Any] = measuring.machine()
    for tree in args.flashinfer:
        result[Path(tree).name] = compared(tree, args.rounds)
        if args.json:
            measuring.save(args.json, result)


if __name__ == "__main__":
    main()
