"""Quantization."""

from __future__ import annotations

from typing import Any

from ...opaque.declare import MakeTensor, Op, Uncovered

_HIDDEN = 256
_PAIR = "(Tensor, Tensor)"


def _batched(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"a": make(3, m, _HIDDEN), "a_global_sf": make(3, dtype="float32")}


OPS = (
    Op("mxfp8_quantize", lambda make, m: {"input": make(m, _HIDDEN)}, _PAIR),
    Op(
        "nvfp4_batched_quantize",
        _batched,
        _PAIR,
        annotations={"a": "Tensor", "a_global_sf": "Tensor"},
    ),
    Op(
        "block_scale_interleave",
        lambda make, m: {"unswizzled_sf": make(m, 16, dtype="uint8")},
        out=("out",),
    ),
)

UNCOVERED = (
    Uncovered("segment_packbits", "its output's size is read from the GPU"),
    Uncovered("nvfp4_quantize_paged_kv_cache", "it returns numbers that are read from the GPU"),
)
