"""Instructions of calls in eager code, for what a clock is too coarse for.

    python3 bench/counted.py --flashinfer TREE [--json FILE]          # needs valgrind

TREE is a directory that holds FlashInfer. Each call is made many times under callgrind, in a
process without us and in one with us: silu_and_mul with a kernel that does nothing, FlashInfer's
``_get_cache_buf``, and the getter of a JIT module with a call of what it holds. The latter two we
leave alone, so their counts have to be the same. Beside them stand the floors: a Python call, and
a call through torch's dispatcher, of nothing.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import measuring
from names import DISPATCHER_CALL, PYTHON_CALL, WITH, WITHOUT

ROOT = Path(__file__).resolve().parent.parent
TIMES = 200
OVERHEAD = "the loop"


def counted(side: str, tree: str, scratch: Path) -> dict[str, float]:
    """Instructions of one call, by what is called."""
    dumps = scratch / side.replace(" ", "-")
    command = ["valgrind", "--tool=callgrind", "--instr-atstart=no"]
    command += [f"--callgrind-out-file={dumps}", sys.executable, __file__, "--child"]
    path = [str(ROOT)] * (side == WITH) + [tree]
    env = {
        **os.environ,
        "PYTHONHASHSEED": "0",  # the order of a dict's probes
        "PYTHONPATH": os.pathsep.join(path),
        "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
        "FLASHINFER_WORKSPACE_BASE": str(scratch),
    }
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-500:]}")
    # One dump for each name that the child has printed, in this order.
    found = {}
    for number, name in enumerate(done.stdout.split("\n")[:-1], 1):
        text = Path(f"{dumps}.{number}").read_text(encoding="utf-8")
        total = re.search(r"^totals: (\d+)", text, re.MULTILINE)
        found[name] = float(total[1]) if total else 0.0
    loop = found.pop(OVERHEAD)
    return {name: (count - loop) / TIMES for name, count in found.items()}


def calls() -> dict[str, Callable[[], Any]]:
    """What is counted, in a process that has or has not our patches."""
    import flashinfer
    import sides
    import torch
    from flashinfer.activation import get_act_and_mul_module
    from flashinfer.utils import _get_cache_buf

    sides.without_kernels()
    gate = sides.SILU_AND_MUL
    (x,) = gate.example("cpu")
    out = gate.fake(x)
    function, device = flashinfer.silu_and_mul, torch.device("cpu")
    floors = sides.bare(gate, "cpu")
    python_call, dispatcher_call = floors[PYTHON_CALL], floors[DISPATCHER_CALL]
    return {
        "silu_and_mul": lambda: function(x),
        "_get_cache_buf": lambda: _get_cache_buf("bench", 1024, device),
        "a JIT module's call": lambda: get_act_and_mul_module("silu").silu_and_mul(out, x, False),
        PYTHON_CALL: lambda: python_call(x),
        DISPATCHER_CALL: lambda: dispatcher_call(x),
    }


def child() -> None:
    """Under callgrind: make each call many times, and have a dump written of each."""
    import torch

    def control(*options: str) -> None:
        subprocess.run(
            ["callgrind_control", *options, str(os.getpid())],
            stdout=subprocess.DEVNULL,
            check=True,
        )

    with torch.inference_mode():
        for name, call in {OVERHEAD: lambda: None, **calls()}.items():
            times = 0 if name == OVERHEAD else TIMES
            for _ in range(50):  # CPython specialises what it has run some times
                call()
            control("-i", "on")
            for _ in itertools.repeat(None, times):
                call()
            control("-i", "off")
            control("-d", "bench")
            print(name, flush=True)
    # Its end is of no interest and takes long under callgrind.
    os._exit(0)


def main() -> None:
    """Count, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--flashinfer", metavar="TREE", required="--child" not in sys.argv)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child()
    sides = (WITHOUT, WITH)
    # Whatever else runs at the same time, the instructions are the same.
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda side: counted(side, args.flashinfer, Path(directory)), sides)
        both = dict(zip(sides, found, strict=True))
    print("\ninstructions of a call (without us, with us, added)")
    for name, without in both[WITHOUT].items():
        with_us = both[WITH][name]
        print(f"  {name:34} {without:12,.0f} {with_us:12,.0f} {with_us - without:+10,.0f}")
    if args.json:
        measuring.save(args.json, {**measuring.machine(), **both})


if __name__ == "__main__":
    main()
