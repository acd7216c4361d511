"""How SGLang and vLLM have FlashInfer in what they compile, in small; run in a child process.

``framework_shapes.py 9.0`` pretends a device and prints one JSON object: for each shape of use that
was found with this release of FlashInfer what the compiler says, and which ops of ours or of the
caller's stand in its graph. docs/frameworks.md tells what each is called in the frameworks.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

import child_side
import torch
from torch import Tensor, nn

child_side.pretend(sys.argv[1])

import flashinfer  # noqa: E402
import sglang_shape  # noqa: E402
from flashinfer import norm  # noqa: E402

TOKENS, HIDDEN = 64, 256
EPS = 1e-6

_library = torch.library.Library("framework", "FRAGMENT")  # type: ignore[no-untyped-call]


def own_op(name: str, schema: str, fake: Callable[..., Any]) -> Callable[..., Any]:
    """Both frameworks' way: define, implement for CUDA, register a fake."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        _library.define(name + schema)  # type: ignore[no-untyped-call]
        _library.impl(name, function, "CUDA")  # type: ignore[no-untyped-call]
        _library._register_fake(name, fake)  # type: ignore[no-untyped-call]
        found: Callable[..., Any] = getattr(torch.ops.framework, name)
        return found

    return decorate


def _quantized(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = x.shape
    padded = ((rows + 127) // 128 * 128, (columns // 16 + 3) // 4 * 4)
    packed = x.new_empty((rows, columns // 2), dtype=torch.uint8)
    return packed, x.new_empty(padded, dtype=torch.uint8)


@own_op("fp4_quantize", "(Tensor x, Tensor scale) -> (Tensor, Tensor)", _quantized)
def own_fp4_quantize(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    packed, factors = flashinfer.fp4_quantize(x, scale)
    return packed, factors


@functools.cache
def _implementation(name: str) -> Any:
    return getattr(importlib.import_module("flashinfer"), name)


@own_op("lazy_fp4_quantize", "(Tensor x, Tensor scale) -> (Tensor, Tensor)", _quantized)
def lazy_fp4_quantize(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    packed, factors = _implementation("fp4_quantize")(x, scale)
    return packed, factors


@own_op("rmsnorm", "(Tensor x, Tensor weight) -> Tensor", lambda x, weight: torch.empty_like(x))
def other_rmsnorm(x: Tensor, weight: Tensor) -> Tensor:
    raise NotImplementedError("no kernel runs here")


def guarded_rmsnorm(x: Tensor, weight: Tensor) -> Tensor:
    call = other_rmsnorm if torch.compiler.is_dynamo_compiling() else norm.rmsnorm
    result: Tensor = call(x, weight)
    return result


def direct_quantization(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    packed: Tensor = flashinfer.fp4_quantize(x, scale, **sglang_shape.NEWER)[0]
    return x + packed.sum().to(x.dtype)


def direct_layernorm(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    result: Tensor = norm.layernorm(x, weight.float(), weight.float(), EPS)
    return result


def direct_norm_and_quantization(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    out, residual = torch.empty_like(x, dtype=torch.float8_e4m3fn), x * 2
    norm.fused_add_rmsnorm_quant(out, x, residual, weight, scale.reshape(1), EPS)
    return residual + out.to(x.dtype)


def direct_gemm(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    square = weight.expand(HIDDEN, HIDDEN).contiguous()
    gemm = flashinfer.gemm.fp8_blockscale_gemm_sm90
    result: Tensor = gemm(x, square, weight_scale=None, out_dtype=x.dtype)
    return result


def direct_groupwise_gemm(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    rows, blocks = x.shape[0], HIDDEN // 128
    square = weight.expand(HIDDEN, HIDDEN).to(torch.float8_e4m3fn)
    result: Tensor = flashinfer.gemm.gemm_fp8_nt_groupwise(
        x.to(torch.float8_e4m3fn),
        square,
        x.new_empty((blocks, rows), dtype=torch.float32),
        x.new_empty((blocks, blocks), dtype=torch.float32),
        out_dtype=x.dtype,
        backend="trtllm",
    )
    return result


def through_an_op(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    packed: Tensor = own_fp4_quantize(x, scale)[0]
    return x + packed.sum().to(x.dtype)


def through_an_op_that_imports(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    packed: Tensor = lazy_fp4_quantize(x, scale)[0]
    return x + packed.sum().to(x.dtype)


def guarded(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return guarded_rmsnorm(x, weight)


#: By the release of FlashInfer that they ask for: SGLang 0.5.8.post1, 0.5.10 and 0.5.23. The last
#: one, or its next post release, is vLLM 0.33.0's too.
SHAPES: dict[str, tuple[Callable[..., Tensor], ...]] = {
    "0.6.1": (direct_quantization, direct_layernorm, direct_groupwise_gemm),
    "0.6.7.post2": (
        *(direct_quantization, direct_layernorm, direct_gemm),
        *(through_an_op, guarded),
    ),
    "0.7.2": (
        *(direct_norm_and_quantization, direct_gemm),
        *(through_an_op, through_an_op_that_imports, guarded),
    ),
}


class Model(nn.Module):
    """Layers of one shape of use, with attention between them that splits the graph."""

    def __init__(self, shape: Callable[..., Tensor]) -> None:
        super().__init__()
        self.shape = shape
        self.weight = nn.Parameter(torch.empty(HIDDEN, dtype=torch.bfloat16))

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        for _ in range(sglang_shape.LAYERS):
            x = torch.ops.shape.attention(self.shape(x, self.weight, scale))
        return x


def trace(shape: Callable[..., Tensor]) -> dict[str, Any]:
    torch._dynamo.reset()
    backend = sglang_shape.SplittingBackend()
    with torch.no_grad(), child_side.fake_cuda():
        with torch.device("cuda"):
            model, scale = Model(shape), torch.empty(())
            x = torch.empty(TOKENS, HIDDEN, dtype=torch.bfloat16)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        error = child_side.error_of(lambda: compiled(x, scale))
        if error is None:
            # One graph for any number of tokens.
            error = child_side.error_of(lambda: compiled(x[: TOKENS // 2], scale))
    targets = [str(node.target) for graph in backend.graphs for node in graph.graph.nodes]
    named = [target.split(".")[:2] for target in targets]
    ops = [".".join(name) for name in named if name[0] in ("flashinfer_shim", "framework")]
    return {"error": error, "ops": ops, "graphs": len(backend.graphs)}


if __name__ == "__main__":
    print(json.dumps({shape.__name__: trace(shape) for shape in SHAPES[flashinfer.__version__]}))
