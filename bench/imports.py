"""What we add to a process that imports FlashInfer and compiles nothing: CPU time and memory.

    python3 bench/imports.py --flashinfer TREE... [--rounds N] [--json FILE]

TREE is a directory that holds FlashInfer. Processes import it in turn without us and with us. The
CPU time is that of whole processes; the memory is what a process has written and shares with no
other, once everything is imported.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measuring
from measuring import Side
from names import ADDED, WITH, WITHOUT
from startup import environment, startup_directory

# Freed memory is given back first, or what is left of it would differ from process to process.
MEMORY = """
import ctypes, gc
import flashinfer
gc.collect()
ctypes.CDLL(None).malloc_trim(0)
for line in open("/proc/self/smaps_rollup"):
    if line.startswith("Private_Dirty:"):
        print(line.split()[1])
"""


def imports(tree: str, scratch: str) -> list[Side]:
    """Interpreters that import FlashInfer."""
    settings = {"FLASHINFER_CUDA_ARCH_LIST": "9.0a", "FLASHINFER_WORKSPACE_BASE": scratch}
    command = (sys.executable, "-c", "import flashinfer")
    return [
        Side(WITHOUT, command, environment(tree, **settings)),
        Side(WITH, command, environment(startup_directory(), tree, **settings)),
    ]


def kibibytes(side: Side) -> float:
    """What a process that imports FlashInfer has to itself."""
    command = (sys.executable, "-c", MEMORY)
    done = subprocess.run(command, env=dict(side.env), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{side.name}: {done.stderr[-500:]}")
    return float(done.stdout)


def both(tree: str, title: str, unit: str, measure: Callable[[Side], float], rounds: int) -> Any:
    """Each side, and what is added: in the same round."""
    with tempfile.TemporaryDirectory() as scratch:
        sides = {side.name: side for side in imports(tree, scratch)}
        values = measuring.in_turn(list(sides), lambda name: measure(sides[name]), rounds)
    found, added = measuring.told(values), measuring.added(values[WITH], values[WITHOUT])
    measuring.show(title, unit, found, WITHOUT)
    return {**found, ADDED: added}


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--flashinfer", nargs="+", required=True, metavar="TREE")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    result: dict[str, Any] = measuring.machine()
    for tree in args.flashinfer:
        release = Path(tree).name
        title = f"import of FlashInfer {release}"
        result[release] = {
            "cpu seconds": both(tree, title, "CPU seconds", measuring.cpu_seconds, args.rounds),
            # It hardly varies.
            "kibibytes": both(tree, title, "KiB written", kibibytes, max(2, args.rounds // 3)),
        }
        if args.json:
            measuring.save(args.json, result)


if __name__ == "__main__":
    main()
