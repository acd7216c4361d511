"""Every declared op with FlashInfer's own kernels: eager against every way of compiling it.

    PYTHONPATH=CHECKOUT:FLASHINFER python3 bench/gpu_ops.py [OPTIONS] [OP...]        # see --help

For each op and each number of rows, FlashInfer's function is called in eager code, twice, for the
kernel's own spread from run to run; then compiled with fullgraph=True by each backend; then
captured in a CUDA graph, which is replayed on restored inputs. Results, and the tensors that the op
writes into, are compared bit by bit. At last a stack of ops is captured as one graph.

An op that the card has no kernel for, or that refuses its example in eager code, is listed and not
counted. Exit status: 0 if every other op passed in every way, 1 if one did not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import operator
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import flashinfer
import torch

import shim
from shim.opaque.declare import Op
from shim.patches.ops import OPS
from shim.proof.examples import unfit
from shim.proof.making import arguments_of, on

ROWS = (1, 7, 16, 129)
BACKENDS = ("eager", "aot_eager", "inductor")

#: Of a function whose own host code copies from or to the CPU: the card refuses to record that.
NOT_CAPTURED = "captured by nobody, eager code neither"
DRAWS = "refused, as it draws"

Arguments = Mapping[str, Any]
Outcome = list[torch.Tensor]


def tensors(value: Any) -> list[torch.Tensor]:
    """Every tensor in ``value``."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in tensors(item)]
    return []


def example(op: Op, function: Callable[..., Any], m: int) -> dict[str, Any]:
    """Arguments of a call for ``m`` rows; of a method its object, planned anew, is one of them."""
    return arguments_of(function, op.example(on("cuda"), m), op.also)


def outcome(call: Callable[..., Any], op: Op, arguments: Arguments) -> Outcome:
    """Copies of what a call returns and of what it wrote; equal calls draw equal numbers."""
    torch.manual_seed(0)
    returned = call(**arguments)
    written = [arguments[name] for name in op.mutates if name in arguments]
    return [tensor.detach().clone() for tensor in [*tensors(returned), *tensors(written)]]


def same(one: Outcome, other: Outcome) -> bool:
    """Bit by bit, so that NaN equals itself."""

    def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous().view(torch.uint8) if tensor.numel() else tensor

    return len(one) == len(other) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(as_bytes(a), as_bytes(b))
        for a, b in zip(one, other, strict=True)
    )


def spread(one: Outcome, other: Outcome) -> float:
    """The largest difference between two outcomes of the same geometry."""
    pairs = zip(one, other, strict=True)
    gaps = [(a.double() - b.double()).abs().nan_to_num().max() for a, b in pairs if a.numel()]
    return max((float(gap) for gap in gaps), default=0.0)


def agreement(eager: Mapping[int, Outcome], noise: float, found: Mapping[int, Outcome]) -> str:
    """``equal``, ``within its own spread``, or for which numbers of rows it differs."""
    differ = [m for m in eager if not same(eager[m], found[m])]
    if not differ:
        return "equal"
    if noise and all(spread(eager[m], found[m]) <= noise for m in differ):
        return "within its own spread"
    return f"differs for {differ}"


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def try_op(op: Op, function: Callable[..., Any]) -> dict[str, Any]:
    """One row of the table."""
    row: dict[str, Any] = {"op": op.name, "ways": {}}
    try:
        outcome(function, op, example(op, function, 16))
        torch.cuda.synchronize()
    except Exception as error:
        row["refused"] = first_line(error)
        return row

    def each(call: Callable[..., Any]) -> dict[int, Outcome]:
        return {m: outcome(call, op, example(op, function, m)) for m in ROWS}

    eager, again = each(function), each(function)
    noise = row["spread"] = max(spread(eager[m], again[m]) for m in ROWS)
    for backend in BACKENDS:
        torch._dynamo.reset()
        try:
            compiled = torch.compile(step_of(function), fullgraph=True, backend=backend)
            row["ways"][backend] = agreement(eager, noise, each(compiled))
        except Exception as error:
            row["ways"][backend] = first_line(error)
    try:
        replayed = {m: replay(op, function, compiled_for_capture(function), m) for m in ROWS}
        row["ways"]["CUDA graph"] = agreement(eager, noise, replayed)
    except Exception as error:
        if op.draws is not None and "random generator" in str(error):
            row["ways"]["CUDA graph"] = DRAWS
            return row
        row["ways"]["CUDA graph"] = first_line(error)
        with contextlib.suppress(Exception):  # the kernel's own host code may refuse a capture
            replay(op, function, function, ROWS[0])
            return row
        row["ways"]["CUDA graph"] = NOT_CAPTURED
    return row


def compiled_for_capture(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(step_of(function), fullgraph=True, backend="aot_eager")


def step_of(function: Callable[..., Any]) -> Callable[..., Any]:
    def step(**arguments: Any) -> Any:
        return function(**arguments)

    return step


def replay(op: Op, function: Callable[..., Any], call: Callable[..., Any], m: int) -> Outcome:
    """Capture a call, restore its inputs, replay it."""
    arguments = example(op, function, m)
    call(**arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        returned = call(**arguments)
    fresh = example(op, function, m)
    for held, new in zip(tensors([*arguments.values()]), tensors([*fresh.values()]), strict=True):
        held.copy_(new)
    graph.replay()
    torch.cuda.synchronize()
    return outcome(lambda **_: returned, op, arguments)


class Stack:
    """A layer's worth of FlashInfer calls that depend on one another, in-place ones among them."""

    def __init__(self, m: int, hidden: int = 2048, heads: int = 32, head: int = 64) -> None:
        make = on("cuda")
        self.heads, self.head = heads, head
        self.weights = {
            "norm": make(hidden),
            "qk": make(hidden, 2 * heads * head) / 32,
            "gate": make(heads * head, 2 * hidden) / 32,
        }
        self.cache = make(4096, head, dtype="float32")
        self.inputs = (make(m, hidden), make(m, hidden), make(m, dtype="int32", values="range"))

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        normed = flashinfer.rmsnorm(x, self.weights["norm"])
        q, k = (normed @ self.weights["qk"]).chunk(2, dim=-1)
        flashinfer.apply_rope_with_cos_sin_cache_inplace(positions, q, k, self.head, self.cache)
        hidden = flashinfer.silu_and_mul((q + k) @ self.weights["gate"])
        flashinfer.fused_add_rmsnorm(hidden, residual, self.weights["norm"])
        scale = torch.ones(1, device=x.device)
        quantized, scales = flashinfer.fp4_quantize(hidden, scale)
        signs = flashinfer.packbits((hidden > 0).flatten())
        # sm_90 has no FP4 conversion: what was not written is returned for its shape alone.
        return q, k, hidden, residual * 2, signs, quantized[:0], scales[:0]


def try_stack(m: int) -> dict[str, str]:
    """The stack for ``m`` rows: in eager code, compiled, and replayed as one CUDA graph."""
    stack = Stack(m)
    x, residual, positions = stack.inputs
    eager = list(stack(x, residual.clone(), positions))
    ways = {}
    for backend in BACKENDS:
        torch._dynamo.reset()
        compiled = torch.compile(stack.__call__, fullgraph=True, backend=backend)
        held = residual.clone()
        found = list(compiled(x, held, positions))
        # Inductor fuses what stands between the ops, which rounds otherwise than eager code.
        ways[backend] = "equal" if same(eager, found) else f"differs by {spread(eager, found)}"
        held.copy_(residual)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            returned = compiled(x, held, positions)
        held.copy_(residual)
        graph.replay()
        torch.cuda.synchronize()
        ways[f"{backend}, CUDA graph"] = (
            "equal"
            if same(found, list(returned))
            else f"differs by {spread(found, list(returned))}"
        )
    return ways


def apart(words: list[str], limit: float | None = None) -> dict[str, Any]:
    """What this script prints last in a process of its own, if it ends within so many seconds."""
    environ = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    command = [sys.executable, __file__, *words]
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, env=environ, check=False, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return {"late": f"its kernels were not built within {limit:.0f} s"}
    try:
        answer: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"died": " ".join(child.stderr.splitlines()[-1:])[:200]}
    return answer


def one_by_one(ops: list[str], jobs: int, limit: float) -> list[dict[str, Any]]:
    """Try each op in a process of its own, several at once, since kernels take long to build."""

    def call(name: str) -> dict[str, Any]:
        start = time.monotonic()
        answer = apart(["--only", name], limit)
        if "late" in answer:
            row = {"op": name, "refused": answer["late"], "ways": {}}
        elif "died" in answer:
            row = {"op": name, "spread": 0.0, "ways": {"process": answer["died"]}}
        else:
            row = answer
        print(f"{time.monotonic() - start:.0f} s: {json.dumps(row)}", flush=True)
        return row

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(call, ops))


def importable(module: str) -> bool:
    try:
        import_module(module)
    except ImportError:
        return False
    return True


def live(target: str) -> Callable[..., Any]:
    """The function, or the method in its class, that a record names."""
    module, _, path = target.partition(":")
    function: Callable[..., Any] = operator.attrgetter(path)(import_module(module))
    return function


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ops", nargs="*", metavar="OP")
    parser.add_argument("--save", metavar="FILE")
    parser.add_argument("--jobs", type=int, default=8, metavar="N", help="processes side by side")
    parser.add_argument(
        "--limit", type=float, default=600, metavar="S", help="give up on an op after S seconds"
    )
    parser.add_argument("--only", metavar="OP", help=argparse.SUPPRESS)
    parser.add_argument("--stack", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for target in [r.target for r in shim.status()]:
        with contextlib.suppress(Exception):  # parts that are imported when they are called
            import_module(target.partition(":")[0])
    records = {r.patch: r for r in shim.status() if r.patch in OPS}
    if options.only:
        print(json.dumps(try_op(OPS[options.only], live(records[options.only].target))))
        return 0
    if options.stack:
        print(json.dumps({str(m): try_stack(m) for m in ROWS}))
        return 0
    card = torch.cuda.get_device_capability()
    rows: list[dict[str, Any]] = []
    tried = []
    for name, record in records.items():
        if options.ops and name not in options.ops:
            continue
        aside = str(record.verdict) != "applied"
        why = unfit(OPS[name], card) or (record.reason if aside else "")
        if why:
            rows.append({"op": name, "refused": why, "ways": {}})
        else:
            tried.append(name)
    rows += one_by_one(tried, options.jobs, options.limit)
    stacks = {} if options.ops else apart(["--stack"])
    print(json.dumps({"stack": stacks}), flush=True)
    good = ("equal", "within its own spread", NOT_CAPTURED, DRAWS)
    passed = all(way in good for row in rows for way in row["ways"].values()) and all(
        way == "equal" or key == "inductor"
        for ways in stacks.values()
        for key, way in (ways.items() if isinstance(ways, dict) else [("died", ways)])
    )
    report = {
        "flashinfer": flashinfer.__version__,
        "variant": f"{'with' if importable('cutlass') else 'without'} nvidia-cutlass-dsl",
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "capability": torch.cuda.get_device_capability(),
        "passed": passed,
        "rows": sorted(rows, key=lambda row: list(OPS).index(row["op"])),
        "stack": stacks,
    }
    if options.save:
        with open(options.save, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
