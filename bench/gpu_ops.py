"""Every declared op with FlashInfer's own kernels: eager against every way of compiling it.

    PYTHONPATH=CHECKOUT:FLASHINFER python3 bench/gpu_ops.py [--save FILE] [OP...]

For each op and each number of rows, FlashInfer's function is called in eager code, twice, for the
kernel's own spread from run to run, then compiled with fullgraph=True by each backend, then
captured in one CUDA graph and replayed. Results, and the tensors that it writes into, are compared
bit by bit. Exit status: 0 if every op passed or is refused by the card, eager and compiled alike.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import flashinfer
import torch

import shim
from shim.opaque.declare import Op
from shim.patches.ops import OPS
from shim.proof.making import on

ROWS = (1, 7, 16, 129)
BACKENDS = ("eager", "aot_eager", "inductor")

Arguments = Mapping[str, Any]


def bits(value: Any) -> list[torch.Tensor]:
    """Every tensor in ``value`` as bytes, so that NaN equals itself."""
    if isinstance(value, torch.Tensor):
        return [value.detach().clone().contiguous().view(torch.uint8)]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in bits(item)]
    return []


def outcome(call: Callable[..., Any], op: Op, arguments: Arguments) -> list[torch.Tensor]:
    """What a call returns and what it wrote."""
    returned = call(**arguments)
    return bits(returned) + bits([arguments[name] for name in op.mutates])


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def try_op(op: Op, function: Callable[..., Any]) -> dict[str, Any]:
    """One row of the table."""
    row: dict[str, Any] = {"op": op.name, "ways": {}}
    try:
        outcome(function, op, op.example(on("cuda"), 16))
    except Exception as error:
        row["refused"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return row
    torch.cuda.synchronize()
    eager = {m: outcome(function, op, op.example(on("cuda"), m)) for m in ROWS}
    again = {m: outcome(function, op, op.example(on("cuda"), m)) for m in ROWS}
    row["stable"] = all(same(eager[m], again[m]) for m in ROWS)
    for backend in BACKENDS:
        torch._dynamo.reset()
        compiled = torch.compile(function_of(function), fullgraph=True, backend=backend)
        try:
            wrong = [
                m
                for m in ROWS
                if not same(eager[m], outcome(compiled, op, op.example(on("cuda"), m)))
            ]
            row["ways"][backend] = f"differs for {wrong}" if wrong else "equal"
        except Exception as error:
            row["ways"][backend] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    row["ways"]["CUDA graph"] = replay(op, function, eager)
    return row


def function_of(function: Callable[..., Any]) -> Callable[..., Any]:
    def step(**arguments: Any) -> Any:
        return function(**arguments)

    return step


def replay(op: Op, function: Callable[..., Any], eager: dict[int, list[torch.Tensor]]) -> str:
    """Capture the compiled call once for each number of rows and replay it on restored inputs."""
    torch._dynamo.reset()
    compiled = torch.compile(function_of(function), fullgraph=True, backend="aot_eager")
    wrong = []
    try:
        for m in ROWS:
            arguments = op.example(on("cuda"), m)
            compiled(**arguments)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                returned = compiled(**arguments)
            for name, fresh in op.example(on("cuda"), m).items():
                restore(arguments[name], fresh)
            graph.replay()
            torch.cuda.synchronize()
            found = bits(returned) + bits([arguments[name] for name in op.mutates])
            if not same(eager[m], found):
                wrong.append(m)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return f"differs for {wrong}" if wrong else "equal"


def restore(held: Any, fresh: Any) -> None:
    if isinstance(held, torch.Tensor):
        held.copy_(fresh)
    elif isinstance(held, (tuple, list)):
        for one, other in zip(held, fresh, strict=True):
            restore(one, other)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ops", nargs="*", metavar="OP")
    parser.add_argument("--save")
    options = parser.parse_args()
    rows = []
    for record in shim.status():
        if record.patch not in OPS or (options.ops and record.patch not in options.ops):
            continue
        if str(record.verdict) != "applied":
            rows.append({"op": record.patch, "refused": record.reason, "ways": {}})
            continue
        module, _, name = record.target.partition(":")
        rows.append(try_op(OPS[record.patch], getattr(import_module(module), name)))
        print(json.dumps(rows[-1]), flush=True)
    passed = all(way == "equal" for row in rows for way in row["ways"].values())
    report = {
        "flashinfer": flashinfer.__version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "passed": passed,
        "rows": rows,
    }
    if options.save:
        with open(options.save, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
