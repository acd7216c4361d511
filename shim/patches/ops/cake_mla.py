"""Attention over latent caches by Cake's programs."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ...opaque.declare import Example, MakeTensor, Op
from .wrappers import with_lse

_HEADS, _PAGE, _PAGES = 16, 64, 4


def _tables(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"block_tables": make(m, _PAGES, dtype="int32"), "seq_lens": make(m, dtype="int32")}


def _ragged(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "query": make(m, _HEADS, 576),
        "kv_cache": make(_PAGES, _PAGE, 576),
        "workspace_buffer": make(1 << 20, dtype="uint8"),
        **_tables(make, m),
        "max_seq_len": _PAGE * _PAGES,
        "softmax_scale": 0.1,
        "cum_seq_lens_q": make(m + 1, dtype="int32", values="range"),
        "max_q_len": 1,
    }


def _quantized(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "q_nope": make(m, 1, _HEADS, 256, dtype="uint8"),
        "q_sf": make(m, 1, _HEADS, 32, dtype="float8_e4m3fn"),
        "q_rope": make(m, 1, _HEADS, 64, dtype="float8_e4m3fn"),
        "q_scale": make(m, 1, _HEADS, dtype="float32"),
    }


def _paged(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_quantized(make, m),
        "ckv_cache": make(_PAGES, _PAGE, 256, dtype="uint8"),
        "ckv_sf_cache": make(_PAGES, _PAGE, 32, dtype="float8_e4m3fn"),
        "kpe_cache": make(_PAGES, _PAGE, 64, dtype="float8_e4m3fn"),
        **_tables(make, m),
        "workspace_buffer": make(1 << 20, dtype="uint8"),
        "sm_scale": 0.1,
        "ckv_scale": 1.0,
        "out": make(m, 1, _HEADS, 512),
        "lse": make(m, 1, _HEADS, dtype="float32"),
        "return_lse": True,
    }


def _query(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "query": make(m, 1, _HEADS, 576),
        "ckv_scale": 1.0,
        "kpe_scale": 1.0,
        "out": tuple(_quantized(make, m).values()),
    }


def _attended(*, return_lse: bool, query: Any = None, q_nope: Any = None, **_: Any) -> Any:
    import torch  # declarations are read without torch

    q = q_nope if query is None else query
    out = q.new_empty((*q.shape[:-1], 512), dtype=torch.bfloat16)
    return (out, q.new_empty(q.shape[:-1], dtype=torch.float32)) if return_lse else out


def _given(i: int, arguments: Mapping[str, Any]) -> Any:
    """One of the buffers that the caller has to give, in a tuple."""
    return None if arguments.get("out") is None else arguments["out"][i]


def _decode(name: str, example: Example, **declared: Any) -> Op:
    options: dict[str, Any] = {
        "results": with_lse,
        "mutates": ("workspace_buffer",),
        "out": ("out", "lse"),
        "module": "flashinfer.mla.*",
        "capability": (10, 0),
    }
    return Op(name, example, "(Tensor, Tensor)", **options | declared)


OPS = (
    # How they divide the work depends on how many rows there are.
    _decode(
        "cake_mla_varq_dcp_decode", _ragged, fake=functools.partial(_attended, return_lse=True)
    ),
    _decode(
        "cake_mla_nvfp4_paged_decode",
        _paged,
        fake=functools.partial(_attended, return_lse=False),
        annotations=dict.fromkeys(
            ("seq_lens_host", "kv_len_global_host", "cum_seq_lens_q_host"), "ints"
        ),
    ),
    Op(
        "quantize_mla_nvfp4_query",
        _query,
        f"({', '.join(['Tensor'] * 4)})",
        mutates=("out",),
        inputs={i: functools.partial(_given, i) for i in range(4)},
        module="flashinfer.mla.*",
        capability=(10, 0),
    ),
)
