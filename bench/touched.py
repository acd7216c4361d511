"""What a compiled call asks of the system: files, processes and modules, without us and with us.

    python3 bench/touched.py --flashinfer TREE [--quick] [--json FILE]

TREE is a directory that holds FlashInfer. A function that calls silu_and_mul is compiled, with and
without ``fullgraph=True``, and called until nothing of it is compiled any more. Then it is counted
how often a call asks for a file's state, opens a file, starts a process and loads a kernel module,
and into how many graphs the function was broken. FlashInfer's own code looks for the module and has
it built; the ninja and the nvcc that it starts do nothing, and the module that it loads holds
kernels that do nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import measuring
from names import WITH, WITHOUT

ROOT = Path(__file__).resolve().parent.parent
TIMES = 10
#: C functions of Python's that ask the system for something, and what they ask for.
ASKING = {
    "stat": "file stats",
    "lstat": "file stats",
    "open": "files opened",
    "fork_exec": "processes started",
    "posix_spawn": "processes started",
}
LOADED = "modules loaded"


class Counter:
    """Counts while it is entered."""

    def __init__(self) -> None:
        self.found = dict.fromkeys((*ASKING.values(), LOADED), 0)

    def __enter__(self) -> Counter:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and (kind := ASKING.get(argument.__name__)):
            self.found[kind] += 1

    def load(self, path: str) -> Any:
        """In place of tvm_ffi's loader."""
        import sides

        self.found[LOADED] += 1
        return sides.Kernels()


def child(*, fullgraph: bool) -> None:
    """Compile, warm up, count; the last line of stdout is JSON."""
    import flashinfer
    import torch
    from flashinfer.jit import core

    counter = Counter()
    core.tvm_ffi.load_module = counter.load
    silu_and_mul = flashinfer.silu_and_mul

    def model(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = silu_and_mul(x + 1)
        return result

    graphs = 0

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        return graph.forward

    def asking(x: torch.Tensor) -> torch.Tensor:
        os.stat(__file__)
        return x + 1

    x = torch.zeros(4, 256)
    made: Callable[..., Any] = torch.compile(model, fullgraph=fullgraph, backend=backend)
    broken: Callable[..., Any] = torch.compile(asking, backend="eager")
    with torch.inference_mode():
        try:
            for _ in range(5):
                made(x)
        except Exception as fault:
            print(json.dumps({"refused": f"{type(fault).__name__}: {fault}".splitlines()[0]}))
            return
        counter.found = dict.fromkeys(counter.found, 0)
        with counter:
            for _ in range(TIMES):
                made(x)
        found = {name: count / TIMES for name, count in counter.found.items()}
        broken(x)
        with counter:
            broken(x)
    if not counter.found["file stats"]:
        raise SystemExit("the counter does not see what a compiled function asks for")
    print(json.dumps({**found, "graphs": graphs}))


def asked(side: str, tree: str, scratch: Path, *, fullgraph: bool) -> dict[str, Any]:
    """Of one call, by kind; or the error with which the compiler refuses it."""
    binaries = scratch / "bin"
    binaries.mkdir(exist_ok=True)
    for name, says in (("ninja", ""), ("nvcc", "Cuda compilation tools, release 12.8, V12.8.93")):
        (binaries / name).write_text(f"#!/bin/sh\necho '{says}'\n")
        (binaries / name).chmod(0o755)
    path = [str(ROOT)] * (side == WITH) + [tree, str(ROOT / "bench")]
    env = {
        **os.environ,
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(path),
        "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
        "FLASHINFER_WORKSPACE_BASE": str(scratch),
        "CUDA_HOME": str(scratch),
    }
    command = [sys.executable, __file__, "--child", *["--fullgraph"] * fullgraph]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Count, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--flashinfer", metavar="TREE", required="--child" not in sys.argv)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="with us only")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--fullgraph", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(fullgraph=args.fullgraph)
        return
    result: dict[str, Any] = {}
    print("\nasked of the system by a compiled call")
    with tempfile.TemporaryDirectory() as directory:
        for fullgraph in (False, True):
            for side in (WITH,) if args.quick else (WITHOUT, WITH):
                name = f"fullgraph={fullgraph}, {side}"
                result[name] = asked(side, args.flashinfer, Path(directory), fullgraph=fullgraph)
                print(f"  {name:30} {result[name]}")
    if args.json:
        measuring.save(args.json, {**measuring.machine(), **result})


if __name__ == "__main__":
    main()
