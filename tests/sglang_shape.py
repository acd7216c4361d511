"""SGLang's piecewise CUDA graph runner in small, as a script for a child process.

Captures and replays the model for every size on the CPU, where the reference kernel quantizes, and
prints one JSON object.
"""

from __future__ import annotations

import inspect
import json
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from flashinfer import fp4_quantize  # the name copied at import
from torch import Tensor, nn
from torch.fx.passes.split_module import split_module

SIZES = (512, 256, 64, 8, 1)
LAYERS = 2
K = 64

#: Parameters that not every release has.
NEWER = {
    name: value
    for name, value in (("enable_pdl", False), ("backend", "cuda"))
    if name in inspect.signature(fp4_quantize).parameters
}


@torch.library.custom_op("shape::attention", mutates_args=())
def attention(x: Tensor) -> Tensor:
    """An op that a compiler cannot look into and that splits the graph."""
    return x.cumsum(0).to(x.dtype)


@attention.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(K // 2, K).normal_())

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        x_q, sf = fp4_quantize(x, scale, **NEWER)
        # Stands for the FP4 matmul: every byte of both results has its say.
        mixed = (x_q.float() @ self.weight + sf.float().mean()) / 1000
        result: Tensor = torch.ops.shape.attention(x + mixed.to(x.dtype))
        return result


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, scale)
        return x * 2


class Runner(nn.Module):
    """One piece. Stands for one CUDA graph for each size, and keeps a record of its calls."""

    size: int | str = "compiling"  # of the call at hand: the runner's context says it

    def __init__(self, piece: nn.Module) -> None:
        super().__init__()
        self.piece = piece
        self.calls: list[int | str] = []
        self.outputs: list[weakref.ref[Tensor]] = []

    def forward(self, *args: Any) -> Any:
        result = self.piece(*args)
        self.calls.append(Runner.size)
        outputs = result if isinstance(result, tuple) else (result,)
        self.outputs += [weakref.ref(output) for output in outputs]
        return result


class SplittingBackend:
    """Cuts the graph at the attention ops and gives every other piece to a runner."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.runners: list[Runner] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)
        parts: dict[torch.fx.Node, int] = {}
        attentions, part = set(), 0
        for node in graph.graph.nodes:
            if node.target in (torch.ops.shape.attention, torch.ops.shape.attention.default):
                attentions.add(f"submod_{part + 1}")
                parts[node] = part + 1
                part += 2
            else:
                parts[node] = part
        split = split_module(graph, graph, parts.__getitem__, keep_original_order=True)
        for name, piece in list(split.named_children()):
            if name not in attentions:
                self.runners.append(Runner(piece))
                setattr(split, name, self.runners[-1])
        return split


@torch.no_grad()
def replay() -> dict[str, Any]:
    """Compile once, then run every size twice: captured, and replayed on other contents."""
    backend = SplittingBackend()
    codes: list[types.CodeType] = []
    torch._dynamo.convert_frame.register_bytecode_hook(
        lambda old, new: codes.append(new) if old is Model.forward.__code__ else None
    )
    torch.manual_seed(0)
    model, scale = Model(), torch.tensor(300.0)  # a 0-d scale
    buffer = torch.randn(SIZES[0], K).to(torch.bfloat16)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    torch._dynamo.mark_dynamic(buffer, 0)
    compiled(buffer, scale)
    torch._dynamo.config.error_on_recompile = True
    # SGLang calls the compiled code past the guards, by which 1 would be a graph of its own.
    direct = types.MethodType(types.FunctionType(codes[0], Model.forward.__globals__), model)

    equal = []
    for _ in ("capture", "replay"):
        buffer.copy_(torch.randn(buffer.shape))
        for size in SIZES:
            Runner.size = size
            x = buffer[:size]
            equal.append(torch.equal(direct(x, scale), model(x, scale)))
    Runner.size = "guarded"
    for size in SIZES[:-1]:
        x = buffer[:size]
        equal.append(torch.equal(compiled(x, scale), model(x, scale)))
    references = [reference for runner in backend.runners for reference in runner.outputs]
    return {
        "graphs": len(backend.graphs),
        "compilations": len(codes),
        "equal": equal,
        "calls": [runner.calls for runner in backend.runners],
        "outputs": len(references),
        "alive": sum(reference() is not None for reference in references),
    }


if __name__ == "__main__":
    print(json.dumps(replay()))
