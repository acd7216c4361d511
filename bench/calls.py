"""What a call in a compiled graph costs, and compiling it, next to the same function by hand.

    PYTHONPATH=CHECKOUT:FLASHINFER python3 bench/calls.py [--quick] [--json FILE]

FlashInfer's silu_and_mul, on the CPU, with a kernel that does nothing: so what is timed is Python,
torch's dispatcher and the compiler. Ours is compared with an op that is registered at Library
level, as vLLM and SGLang do,

* called in a compiled function, backend eager;
* in a compiled function of 64 calls whose graph is left out, so that its guards are what is left;
* while functions of 8, 64 and 512 calls are compiled, and stacks of 1, 8 and 80 layers, each of
  rmsnorm, silu_and_mul and a matrix product with weights of its own.

Beside them stand the floors: a dispatcher call of nothing, a compiled function without a call, and
compiling calls of an op that is torch's own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import measuring
import sides
import torch
from names import BY_HAND, DEPTHS, DISPATCHER_CALL, LENGTHS, NO_CALL, OURS, TORCHS
from sides import Function

CALLS = 64
HIDDEN = 64

Model = Callable[[torch.Tensor], Any]
Told = dict[str, dict[str, float]]


def repeated(function: Function, number: int) -> Model:
    """A function of so many calls, each on the same input."""

    def model(x: torch.Tensor) -> list[torch.Tensor]:
        return [function(x) for _ in range(number)]

    return model


def stacked(norm: Function, gate: Function, layers: int) -> Model:
    """A function of so many layers."""
    weights = [(torch.ones(HIDDEN), torch.zeros(HIDDEN // 2, HIDDEN)) for _ in range(layers)]

    def model(x: torch.Tensor) -> torch.Tensor:
        for about, up in weights:
            x = gate(norm(x, about)) @ up
        return x

    return model


def whole(model: Model, backend: Any = "eager") -> Model:
    """The model, to be compiled whole at its first call."""
    return torch.compile(model, fullgraph=True, backend=backend)


def seconds(call: Callable[[], object], times: int) -> float:
    """CPU time of this thread, of one call: whatever else runs here takes none of it."""
    begun = time.thread_time()
    for _ in range(times):
        call()
    return (time.thread_time() - begun) / times


def in_graph(x: torch.Tensor, functions: dict[str, Function], rounds: int) -> Told:
    """Nanoseconds of one call in a graph of 64."""
    made = {name: whole(repeated(f, CALLS)) for name, f in functions.items()}
    return measuring.told(
        measuring.in_turn(
            list(made), lambda name: seconds(lambda: made[name](x), 20) / CALLS * 1e9, rounds
        )
    )


def guards(x: torch.Tensor, functions: dict[str, Function], rounds: int) -> Told:
    """Microseconds to enter a compiled function of 64 calls, whose graph is left out."""

    def nothing(graph: torch.fx.GraphModule, inputs: object) -> Function:
        # As many results as the graph has, made beforehand.
        (outputs,) = graph.graph.find_nodes(op="output")
        results = [x] * len(outputs.args[0])
        return lambda *args: results

    models = {name: repeated(f, CALLS) for name, f in functions.items()}
    models[NO_CALL] = lambda x: x.add(0)
    made = {name: whole(model, nothing) for name, model in models.items()}
    return measuring.told(
        measuring.in_turn(
            list(made), lambda name: seconds(lambda: made[name](x), 300) * 1e6, rounds
        )
    )


def compiling(x: torch.Tensor, models: dict[str, Model], number: int, rounds: int) -> Told:
    """Milliseconds that it takes to compile each of the ``number`` calls or layers of a model."""

    def once(name: str) -> float:
        torch._dynamo.reset()
        made = whole(models[name])
        return seconds(lambda: made(x), 1) / number * 1e3

    return measuring.told(measuring.in_turn(list(models), once, rounds))


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no long functions")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sides.without_kernels()
    norm, gate = sides.RMSNORM, sides.SILU_AND_MUL
    ops = {OURS: gate.ours, BY_HAND: gate.by_hand("cpu")}
    norms = {OURS: norm.ours, BY_HAND: norm.by_hand("cpu")}
    rounds = 7 if args.quick else 21
    to_compile = 3 if args.quick else 7
    x, row = torch.zeros(4, 256), torch.zeros(4, HIDDEN)
    result: dict[str, Any] = measuring.machine()

    def take(title: str, unit: str, found: Told) -> None:
        measuring.show(title, unit, found, BY_HAND)
        result[title] = found
        if args.json:
            measuring.save(args.json, result)

    with torch.inference_mode():
        floor = {DISPATCHER_CALL: sides.bare(gate, "cpu")[DISPATCHER_CALL]}
        take("call in a graph", "ns", in_graph(x, {**ops, **floor}, rounds))
        take("guards of 64 calls", "us", guards(x, ops, rounds))
        for number in LENGTHS[: 2 if args.quick else 3]:
            models = {name: repeated(f, number) for name, f in ops.items()}
            models[TORCHS] = repeated(torch.neg, number)
            found = compiling(x, models, number, to_compile)
            take(f"compiling, one of {number} calls", "ms", found)
        for number in DEPTHS[: 2 if args.quick else 3]:
            models = {name: stacked(norms[name], ops[name], number) for name in ops}
            found = compiling(row, models, number, to_compile)
            take(f"compiling, one of {number} layers", "ms", found)


if __name__ == "__main__":
    main()
