"""A stack of layers on a GPU: ours against ops that are written by hand, and against eager code.

    PYTHONPATH=CHECKOUT:FLASHINFER python3 bench/stack.py [--layers N] [--rows N...] [--json FILE]

Each layer is FlashInfer's rmsnorm, a matrix product, FlashInfer's silu_and_mul, a matrix product
and the residual, in bfloat16. The stack runs in eager code with FlashInfer's own functions; and,
with ours and with the same functions registered by hand as a framework would, compiled whole with
backend eager, compiled whole by Inductor with ``mode="reduce-overhead"``, and as one captured CUDA
graph. Printed are microseconds of one step and ratios; all sides have to give the same bits.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import flashinfer
import measuring
import torch

from shim.opaque.identity import original_of

HIDDEN = 2048
ROWS = (1, 4, 16, 64, 256)
EAGER, OURS, BY_HAND = "eager", "ours", "by hand"

Function = Callable[..., Any]
Model = Callable[[torch.Tensor], torch.Tensor]


def by_hand(name: str, function: Function, schema: str, fake: Function) -> Function:
    """One function as an op at Library level, as vLLM and SGLang register theirs."""
    library = torch.library.Library("bench", "FRAGMENT")
    library.define(f"{name}{schema}")
    library.impl(name, function, "CUDA")
    torch.library.register_fake(f"bench::{name}", fake, lib=library)
    _kept.append(library)
    op: Function = getattr(torch.ops.bench, name)
    return op


_kept: list[torch.library.Library] = []


def sides() -> dict[str, tuple[Function, Function]]:
    """The two functions of each side."""
    rmsnorm, silu = original_of(flashinfer.rmsnorm), original_of(flashinfer.silu_and_mul)
    if rmsnorm is None or silu is None:
        raise SystemExit("FlashInfer is not patched: put the checkout in front of PYTHONPATH")
    written = (
        by_hand(
            "rmsnorm",
            lambda x, weight: rmsnorm(x, weight),
            "(Tensor x, Tensor weight) -> Tensor",
            lambda x, weight: torch.empty_like(x),
        ),
        by_hand(
            "silu_and_mul",
            lambda x: silu(x),
            "(Tensor x) -> Tensor",
            lambda x: x.new_empty((*x.shape[:-1], x.shape[-1] // 2)),
        ),
    )
    ours = (flashinfer.rmsnorm, flashinfer.silu_and_mul)
    return {EAGER: (rmsnorm, silu), OURS: ours, BY_HAND: written}


def stack(functions: tuple[Function, Function], layers: int) -> Model:
    """The model; the same weights for every side."""
    rmsnorm, silu_and_mul = functions
    torch.manual_seed(0)
    options: Any = {"dtype": torch.bfloat16, "device": "cuda"}
    weights = [
        (
            torch.rand(HIDDEN, **options),
            torch.randn(HIDDEN, 2 * HIDDEN, **options) / HIDDEN**0.5,
            torch.randn(HIDDEN, HIDDEN, **options) / HIDDEN**0.5,
        )
        for _ in range(layers)
    ]

    def model(x: torch.Tensor) -> torch.Tensor:
        for norm, up, down in weights:
            x = x + silu_and_mul(rmsnorm(x, norm) @ up) @ down
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
    whole = compiled(model)
    whole(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = whole(x)

    def replay(x: torch.Tensor) -> torch.Tensor:
        graph.replay()
        return result

    return replay


def microseconds(model: Model, x: torch.Tensor, steps: int) -> float:
    """Of one step, of ``steps`` in a row."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(steps):
        model(x)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / steps * 1e3


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="batch sizes")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    models = {side: stack(functions, args.layers) for side, functions in sides().items()}
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "flashinfer": flashinfer.__version__,
        "layers": args.layers,
        "hidden": HIDDEN,
        "microseconds": {},
    }
    faults = []
    with torch.inference_mode():
        for rows in args.rows:
            torch._dynamo.reset()
            x = torch.randn(rows, HIDDEN, dtype=torch.bfloat16, device="cuda")
            wanted = models[EAGER](x)
            ways: dict[str, Model] = {EAGER: models[EAGER]}
            for side in (OURS, BY_HAND):
                ways[f"{side}, fullgraph"] = compiled(models[side])
                ways[f"{side}, reduce-overhead"] = by_inductor(models[side])
                ways[f"{side}, CUDA graph"] = captured(models[side], x)
            for name, way in ways.items():
                for _ in range(3):
                    made = way(x)
                # Inductor may fuse the residual's rounding away; the others run the same kernels.
                if "reduce" not in name and not torch.equal(made, wanted):
                    faults.append(f"{rows} rows: {name} gives other bits than eager code")
            found = measuring.told(
                measuring.in_turn(
                    list(ways),
                    lambda name: microseconds(ways[name], x, 20),  # noqa: B023
                    args.rounds,
                )
            )
            measuring.show(f"{rows} rows, {args.layers} layers", "us a step", found, EAGER)
            replay, theirs = f"{OURS}, CUDA graph", f"{BY_HAND}, CUDA graph"
            faults += measuring.missed(found, [measuring.Goal(replay, theirs, 1.02)])
            if rows == 1:
                faults += measuring.missed(found, [measuring.Goal(replay, EAGER, 1 / 3.5)])
            result["microseconds"][rows] = found
    if args.json:
        measuring.save(args.json, result)
    measuring.finish(faults, check=True)


if __name__ == "__main__":
    main()
