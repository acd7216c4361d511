"""A stack of layers on a GPU: ours against ops that are written by hand, and against eager code.

    PYTHONPATH=CHECKOUT:FLASHINFER python3 bench/stack.py [--shape NAME] [--rows N...] [--json FILE]

Two shapes, in bfloat16:

* ``gated``: rmsnorm, a matrix product, silu_and_mul, a matrix product and the residual; the hidden
  size is 2048, so the products read 25 MB of weights a layer;
* ``small``: rmsnorm, silu_and_mul and a matrix product; the hidden size is 512, so what a layer
  costs at one row is launching its kernels.

FlashInfer's functions are as they are in eager code, ours, or registered by hand as a framework
would. With each the stack runs in eager code; with the latter two it is compiled whole with backend
eager, compiled whole by Inductor with ``mode="reduce-overhead"``, and captured as one CUDA graph;
eager code is captured too, which is the floor of a replay. Printed are microseconds of one step
and ratios; all sides have to give the same bits.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import measuring
import sides
import torch
from names import BY_HAND, EAGER, FULLGRAPH, GRAPH, ORIGINAL, OURS, REDUCE_OVERHEAD, ROWS
from sides import Function

DEVICE = "cuda"

Model = Callable[[torch.Tensor], torch.Tensor]
Weights = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Shape:
    """A kind of layer.

    Attributes:
        hidden: size of a row.
        weights: sizes of a layer's weights.
        layer: the next rows, from FlashInfer's two functions, the rows and the weights.
    """

    hidden: int
    weights: tuple[tuple[int, ...], ...]
    layer: Callable[[Function, Function, torch.Tensor, Weights], torch.Tensor]


def gated(norm: Function, gate: Function, x: torch.Tensor, weights: Weights) -> torch.Tensor:
    about, up, down = weights
    result: torch.Tensor = x + gate(norm(x, about) @ up) @ down
    return result


def small(norm: Function, gate: Function, x: torch.Tensor, weights: Weights) -> torch.Tensor:
    about, up = weights
    result: torch.Tensor = gate(norm(x, about)) @ up
    return result


SHAPES = {
    "gated": Shape(2048, ((2048,), (2048, 4096), (2048, 2048)), gated),
    "small": Shape(512, ((512,), (256, 512)), small),
}


def functions() -> dict[str, tuple[Function, Function]]:
    """FlashInfer's two functions, by side."""
    norm, gate = sides.RMSNORM, sides.SILU_AND_MUL
    return {
        ORIGINAL: (norm.original, gate.original),
        OURS: (norm.ours, gate.ours),
        BY_HAND: (norm.by_hand(DEVICE), gate.by_hand(DEVICE)),
    }


def drawn(shape: Shape, layers: int) -> list[Weights]:
    """Weights that keep the rows about as long as they are."""

    def weight(*size: int) -> torch.Tensor:
        if len(size) == 1:
            return torch.rand(size, dtype=torch.bfloat16, device=DEVICE)
        values: torch.Tensor = torch.randn(size, dtype=torch.bfloat16, device=DEVICE)
        return values / math.sqrt(size[0])

    torch.manual_seed(0)
    return [tuple(weight(*size) for size in shape.weights) for _ in range(layers)]


def stack(shape: Shape, norm: Function, gate: Function, weights: list[Weights]) -> Model:
    """The model."""

    def model(x: torch.Tensor) -> torch.Tensor:
        for of_layer in weights:
            x = shape.layer(norm, gate, x, of_layer)
        return x

    return model


def compiled(model: Model) -> Model:
    """By the backend that runs the graph as it is."""
    return torch.compile(model, fullgraph=True, backend="eager", dynamic=False)


def by_inductor(model: Model) -> Model:
    """With CUDA graphs of Inductor's making."""
    return torch.compile(model, fullgraph=True, mode="reduce-overhead", dynamic=False)


def captured(model: Model, x: torch.Tensor) -> Model:
    """One CUDA graph; replays it."""
    model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = model(x)

    def replay(x: torch.Tensor) -> torch.Tensor:
        graph.replay()
        return result

    return replay


def ways(models: dict[str, Model], x: torch.Tensor) -> Iterator[tuple[str, Model]]:
    """Each side in each way that it can be run, by name."""
    for side, model in models.items():
        yield f"{side}, {EAGER}", model
        if side == ORIGINAL:  # no compiler takes it
            yield f"{side}, {GRAPH}", captured(model, x)
        else:
            whole = compiled(model)
            yield f"{side}, {FULLGRAPH}", whole
            yield f"{side}, {GRAPH}", captured(whole, x)
    # Last: Inductor drops cuBLAS's workspaces, and what is captured from then on may be made of
    # other kernels than what was captured before.
    for side, model in models.items():
        if side != ORIGINAL:
            yield f"{side}, {REDUCE_OVERHEAD}", by_inductor(model)


def microseconds(model: Model, x: torch.Tensor, steps: int) -> float:
    """Of one step, of ``steps`` in a row."""
    event: Any = torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(steps):
        model(x)
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end) / steps * 1e3)


def measured(
    models: dict[str, Model], hidden: int, rows: int, rounds: int
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """What a step takes, by way; and the ways that give other bits than eager code."""
    torch._dynamo.reset()
    x = torch.randn(rows, hidden, dtype=torch.bfloat16, device=DEVICE)
    wanted = models[ORIGINAL](x)
    made, others = dict(ways(models, x)), []
    for name, way in made.items():
        for _ in range(3):
            result = way(x)
        # Inductor may fuse the residual's rounding away; the others run the same kernels.
        if REDUCE_OVERHEAD not in name and not torch.equal(result, wanted):
            others.append(f"{rows} rows: {name}")
    values = measuring.in_turn(list(made), lambda name: microseconds(made[name], x, 10), rounds)
    return measuring.told(values), others


def main() -> None:
    """Measure, print, save: after each number of rows, so that a time limit loses only the rest."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="gated")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="batch sizes")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    weights = drawn(shape, args.layers)
    models = {side: stack(shape, *both, weights) for side, both in functions().items()}
    result: dict[str, Any] = {
        **measuring.machine("cuda"),
        "shape": args.shape,
        "layers": args.layers,
        "hidden": shape.hidden,
        "microseconds": {},
    }
    differing: list[str] = []
    with torch.inference_mode():
        for rows in args.rows:
            found, others = measured(models, shape.hidden, rows, args.rounds)
            differing += others
            title = f"{args.shape}, {rows} rows, {args.layers} layers"
            measuring.show(title, "us a step", found, f"{ORIGINAL}, {EAGER}")
            result["microseconds"][str(rows)] = found
            if args.json:
                measuring.save(args.json, result)
    if differing:
        raise SystemExit(f"other bits than eager code: {'; '.join(differing)}")


if __name__ == "__main__":
    main()
