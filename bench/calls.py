"""What a call of an op costs, and compiling one, next to the same function registered by hand.

    PYTHONPATH=CHECKOUT:FLASHINFER python3 bench/calls.py [--quick] [--json FILE] [--check]

FlashInfer's silu_and_mul, on the CPU, with a kernel that does nothing: so what is timed is Python,
torch's dispatcher and the compiler. It is called

* in eager code: the original, ours, by ``torch.library.custom_op``, and by an op that is registered
  at Library level, as vLLM and SGLang do;
* in a compiled function, backend eager, against that op;
* while it is compiled, in functions of 8, 64 and 512 calls, likewise;
* in a compiled function of 64 calls whose graph is left out, so that its guards are what is left.

``--check`` ends with status 1 where a ratio is over twice its goal.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", "9.0a")
os.environ.setdefault("FLASHINFER_WORKSPACE_BASE", tempfile.mkdtemp())

import flashinfer
import measuring
import torch
from measuring import Goal

from shim.opaque.identity import original_of

CALLS = 64
LENGTHS = (8, 64, 512)
BY_HAND, OURS, ORIGINAL = "registered by hand", "ours", "the original"

Function = Callable[..., Any]


class Kernels:
    """In place of FlashInfer's module: nothing is launched."""

    def silu_and_mul(self, *args: object) -> None:
        """Do nothing."""


def original() -> Function:
    """FlashInfer's own function, whose kernel module is ours."""
    core: Any = importlib.import_module("flashinfer.jit.core")
    core.JitSpec.build_and_load = lambda self: Kernels()
    found = original_of(flashinfer.silu_and_mul)
    if found is None:
        raise SystemExit("FlashInfer is not patched: put the checkout in front of PYTHONPATH")
    function: Function = found
    return function


def by_hand(function: Function) -> Function:
    """The function as an op as frameworks register theirs: Library-level, with a written fake."""
    library = torch.library.Library("bench", "FRAGMENT")
    library.define("silu_and_mul(Tensor input, bool? enable_pdl=None) -> Tensor")

    def run(input: torch.Tensor, enable_pdl: bool | None = None) -> torch.Tensor:
        result: torch.Tensor = function(input, enable_pdl=enable_pdl)
        return result

    def fake(input: torch.Tensor, enable_pdl: bool | None = None) -> torch.Tensor:
        return input.new_empty((*input.shape[:-1], input.shape[-1] // 2))

    library.impl("silu_and_mul", run, "CPU")
    torch.library.register_fake("bench::silu_and_mul", fake, lib=library)
    op: Function = torch.ops.bench.silu_and_mul
    _kept.append(library)
    return op


#: Libraries, which take their ops along when they are collected.
_kept: list[torch.library.Library] = []


def by_custom_op(function: Function) -> Function:
    """The function by ``torch.library.custom_op``."""

    def silu_and_mul(input: torch.Tensor, enable_pdl: bool | None = None) -> torch.Tensor:
        result: torch.Tensor = function(input, enable_pdl=enable_pdl)
        return result

    silu_and_mul.__annotations__ = {
        "input": torch.Tensor,
        "enable_pdl": bool | None,
        "return": torch.Tensor,
    }
    op: Function = torch.library.custom_op("bench::by_custom_op", silu_and_mul, mutates_args=())
    return op


def repeated(function: Function, number: int) -> Function:
    """A function of so many calls, each on the same input."""

    def model(x: torch.Tensor) -> list[torch.Tensor]:
        return [function(x, enable_pdl=False) for _ in range(number)]

    return model


def seconds(call: Callable[[], object], times: int) -> float:
    """Of one call."""
    begun = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begun) / times


def eager(x: torch.Tensor, functions: dict[str, Function], rounds: int) -> Any:
    """Nanoseconds of one call."""
    calls = {"a Python call of nothing": lambda *args, **kwargs: None, **functions}
    return measuring.told(
        measuring.in_turn(
            list(calls),
            lambda name: seconds(lambda: calls[name](x, enable_pdl=False), 2000) * 1e9,
            rounds,
        )
    )


def compiled(x: torch.Tensor, functions: dict[str, Function], rounds: int) -> Any:
    """Nanoseconds of one call in a graph of 64."""
    made = {name: whole(repeated(f, CALLS)) for name, f in functions.items()}
    return measuring.told(
        measuring.in_turn(
            list(made), lambda name: seconds(lambda: made[name](x), 20) / CALLS * 1e9, rounds
        )
    )


def guards(x: torch.Tensor, functions: dict[str, Function], rounds: int) -> Any:
    """Microseconds to enter a compiled function of 64 calls, whose graph is left out."""

    def nothing(graph: torch.fx.GraphModule, inputs: object) -> Function:
        results = [x] * CALLS
        return lambda *args: results

    made = {name: whole(repeated(f, CALLS), nothing) for name, f in functions.items()}
    return measuring.told(
        measuring.in_turn(
            list(made), lambda name: seconds(lambda: made[name](x), 300) * 1e6, rounds
        )
    )


def compiling(x: torch.Tensor, functions: dict[str, Function], number: int, rounds: int) -> Any:
    """Milliseconds that it takes to compile one call in a function of ``number``."""

    def once(name: str) -> float:
        torch._dynamo.reset()
        made = whole(repeated(functions[name], number))
        return seconds(lambda: made(x), 1) / number * 1e3

    return measuring.told(measuring.in_turn(list(functions), once, rounds))


def whole(model: Function, backend: Any = "eager") -> Function:
    """The model compiled whole, once it has been called."""
    return torch.compile(model, fullgraph=True, backend=backend)


def touched(x: torch.Tensor, function: Function) -> dict[str, int]:
    """What compiled calls ask of the system: audit events by name."""
    made = whole(repeated(function, CALLS))
    made(x)
    found: dict[str, int] = {}
    watching = [True]

    def hook(event: str, args: object) -> None:
        if watching and event.partition(".")[0] in ("open", "os", "subprocess", "import", "ctypes"):
            found[event] = found.get(event, 0) + 1

    sys.addaudithook(hook)
    made(x)
    watching.clear()
    return found


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no 512 calls")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 7 if args.quick else 21
    x = torch.zeros(4, 256, dtype=torch.float16)
    function = original()
    ops = {BY_HAND: by_hand(function), OURS: flashinfer.silu_and_mul}
    in_eager = {ORIGINAL: function, OURS: ops[OURS], BY_HAND: ops[BY_HAND]}
    in_eager["torch.library.custom_op"] = by_custom_op(function)
    result: dict[str, Any] = {"torch": torch.__version__, "flashinfer": flashinfer.__version__}
    faults: list[str] = []
    tolerance = measuring.TOLERANCE if args.check else 1.0

    def take(title: str, unit: str, found: Any, base: str, *goals: Goal) -> None:
        measuring.show(title, unit, found, base)
        result[f"{title}, {unit}"] = found
        faults.extend(f"{title}: {f}" for f in measuring.missed(found, goals, tolerance))

    with torch.inference_mode():
        take("eager call", "ns", eager(x, in_eager, rounds), ORIGINAL)
        take(
            "call in a graph, backend eager",
            "ns",
            compiled(x, ops, rounds),
            BY_HAND,
            Goal(OURS, BY_HAND, 1.0),
        )
        found = guards(x, ops, rounds)
        take("entering a compiled function", "us", found, BY_HAND, Goal(OURS, BY_HAND, 1.0))
        for number in LENGTHS[: 2 if args.quick else 3]:
            found = compiling(x, ops, number, 3 if args.quick else 7)
            title = f"compiling a call, one of {number}"
            take(title, "ms", found, BY_HAND, Goal(OURS, BY_HAND, 1.15))
        result["asked of the system by a compiled call"] = touched(x, ops[OURS])
    print(f"\nasked of the system by 64 compiled calls: {touched(x, ops[OURS]) or 'nothing'}")
    if args.json:
        measuring.save(args.json, result)
    measuring.finish(faults, check=args.check)


if __name__ == "__main__":
    main()
