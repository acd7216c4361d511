"""Attention over caches of keys and values; the wrappers' methods are in ``wrappers``."""

from __future__ import annotations

from typing import Any

from ...opaque.declare import MakeTensor, Op, Uncovered
from . import (
    cake_mla,
    paged_attention,
    sparse_attention,
    task_scheduled,
    task_scheduled_calls,
    wrappers,
)

_HEADS, _KV_HEADS, _HEAD, _PAGE, _PAGES = 8, 2, 128, 64, 4
_PAIR = "(Tensor, Tensor)"
_BLACKWELL = (10, 0)
#: Upstream's FP4Tensor and the name "nvfp4" cannot travel; every other output can.
_NO_FP4 = {"out": "Tensor", "out_dtype": "dtype", "sinks": "Tensor | tuple"}


def _workspace(make: MakeTensor) -> Any:
    return make(9 << 20, dtype="uint8")


def _sequences(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "block_tables": make(m, _PAGES, dtype="int32"),
        "seq_lens": make(m, dtype="int32"),
    }


def _single_decode(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "q": make(_HEADS, _HEAD),
        "k": make(m, _KV_HEADS, _HEAD),
        "v": make(m, _KV_HEADS, _HEAD),
    }


def _single_prefill(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_single_decode(make, m), "q": make(m, _HEADS, _HEAD)}


def _paged(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "query": make(m, _HEADS, _HEAD),
        "kv_cache": make(_PAGES, 2, _KV_HEADS, _PAGE, _HEAD),
        "workspace_buffer": _workspace(make),
        **_sequences(make, m),
        "bmm1_scale": 0.1,
        "bmm2_scale": 1.0,
    }


def _paged_decode(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_paged(make, m), "max_seq_len": _PAGE * _PAGES}


def _paged_context(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_paged(make, m),
        **_sequences(make, 1),
        "max_q_len": 512,
        "max_kv_len": _PAGE * _PAGES,
        "batch_size": 1,
        "cum_seq_lens_q": make(2, dtype="int32", values=(0, m)),
        "cum_seq_lens_kv": make(2, dtype="int32", values=(0, m)),
    }


def _ragged(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "query": make(m, _HEADS, 192),
        "key": make(m, _HEADS, 192),
        "value": make(m, _HEADS, 128),
        "workspace_buffer": _workspace(make),
        "seq_lens": make(1, dtype="int32", values=(m,)),
        "max_q_len": 512,
        "max_kv_len": 512,
        "bmm1_scale": 0.1,
        "bmm2_scale": 1.0,
        "o_sf_scale": 1.0,
        "batch_size": 1,
        "window_left": -1,
        "cum_seq_lens_q": make(2, dtype="int32", values=(0, m)),
        "cum_seq_lens_kv": make(2, dtype="int32", values=(0, m)),
        "enable_pdl": False,
        "is_causal": True,
        "return_lse": True,
    }


def _mla(make: MakeTensor, m: int, heads: int = _HEADS, dtype: str = "bfloat16") -> dict[str, Any]:
    return {
        "query": make(m, 1, heads, 576, dtype=dtype),
        "kv_cache": make(_PAGES, 1, _PAGE, 576, dtype=dtype),
        "workspace_buffer": _workspace(make),
        "qk_nope_head_dim": 128,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        **_sequences(make, m),
        "max_seq_len": _PAGE * _PAGES,
        "bmm1_scale": 0.1,
        "bmm2_scale": 1.0,
    }


def _mla_fp8(make: MakeTensor, m: int) -> dict[str, Any]:
    return _mla(make, m, 128, "float8_e4m3fn")


def _xqa(make: MakeTensor, m: int) -> dict[str, Any]:
    cache = {name: make(_PAGES, _PAGE, _KV_HEADS, _HEAD) for name in ("k_cache", "v_cache")}
    return {
        "q": make(m, 1, _HEADS, _HEAD),
        **cache,
        "page_table": make(m, _PAGES, dtype="int32"),
        "seq_lens": make(m, 1, dtype="uint32"),
        "output": make(m, 1, _HEADS, _HEAD),
        "workspace_buffer": _workspace(make),
        "semaphores": make(1 << 16, dtype="uint32"),
        "num_kv_heads": _KV_HEADS,
        "page_size": _PAGE,
    }


def _xqa_mla(make: MakeTensor, m: int) -> dict[str, Any]:
    given = _xqa(make, m)
    del given["num_kv_heads"]
    return {
        **given,
        "q": make(m, 1, 128, 576, dtype="float8_e4m3fn"),
        "k_cache": make(_PAGES, _PAGE, 1, 576, dtype="float8_e4m3fn"),
        "v_cache": make(_PAGES, _PAGE, 1, 576, dtype="float8_e4m3fn"),
        "output": make(m, 1, 128, 512),
    }


def _cudnn(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "q": make(m, _HEADS, _HEAD),
        "k_cache": make(_PAGES, _KV_HEADS, _PAGE, _HEAD),
        "v_cache": make(_PAGES, _KV_HEADS, _PAGE, _HEAD),
        "scale": 0.1,
        "workspace_buffer": _workspace(make),
        "max_sequence_kv": _PAGE * _PAGES,
    }


def _cudnn_decode(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_cudnn(make, m),
        "actual_seq_lens_kv": make(m, 1, 1, 1, dtype="int32"),
        "block_tables": make(m, _PAGES, dtype="int32"),
    }


def _cudnn_prefill(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_cudnn(make, m),
        "max_token_per_sequence": 512,
        "actual_seq_lens_q": make(1, 1, 1, 1, dtype="int32", values=(m,)),
        "actual_seq_lens_kv": make(1, 1, 1, 1, dtype="int32", values=(m,)),
        "block_tables": make(1, _PAGES, dtype="int32"),
        "causal": True,
        "return_lse": True,
        "is_cuda_graph_compatible": True,
    }


def _fmha_v2(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "query": make(1, m, _HEADS, 192),
        "key": make(1, m, _HEADS, 192),
        "value": make(1, m, _HEADS, 128),
        "out": make(1, m, _HEADS, 128),
        "num_heads": _HEADS,
        "head_dim": 192,
        "seq_len": m,
        "scale_softmax": 0.1,
    }


def _fmha_v2_fp8(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = {
        name: make(1, m, _HEADS, _HEAD, dtype="float8_e4m3fn") for name in ("query", "key", "value")
    }
    return {**_fmha_v2(make, m), **rows, "head_dim": _HEAD}


def _lse(name: str, example: Any, **declared: Any) -> Op:
    return Op(name, example, _PAIR, results=wrappers.with_lse, **declared)


_OUT, _OUT_LSE = ("out",), ("out", "lse")
_SCRATCH = ("workspace_buffer",)

OPS = (
    _lse("single_decode_with_kv_cache", _single_decode),
    _lse("single_prefill_with_kv_cache", _single_prefill),
    _lse(
        "trtllm_batch_decode_with_kv_cache",
        _paged_decode,
        mutates=_SCRATCH,
        out=_OUT_LSE,
        annotations=_NO_FP4,
        capability=_BLACKWELL,
    ),
    _lse(
        "trtllm_batch_context_with_kv_cache",
        _paged_context,
        mutates=_SCRATCH,
        out=_OUT_LSE,
        annotations=_NO_FP4,
        capability=_BLACKWELL,
    ),
    _lse(
        "trtllm_ragged_attention_deepseek",
        _ragged,
        mutates=_SCRATCH,
        out=_OUT_LSE,
        # 0.6.18 reads from the GPU whether each sequence has a row, and computes on those that do.
        unseen=("q_seq_lens_cpu", "kv_seq_lens_cpu"),
        assumed={"skip_all_rows_active_check": True},
        capability=_BLACKWELL,
    ),
    *(
        _lse(
            name,
            _mla,
            mutates=_SCRATCH,
            out=_OUT_LSE,
            annotations={"sinks": "Tensor | tuple"},
            capability=_BLACKWELL,
        )
        for name in ("trtllm_batch_decode_with_kv_cache_mla", "trtllm_prefill_with_kv_cache_mla")
    ),
    Op(
        "xqa_batch_decode_with_kv_cache",
        lambda make, m: {**_paged_decode(make, m), "kv_layout": "HND"},
        mutates=_SCRATCH,
        out=_OUT,
        annotations={"kv_cache_sf": "Tensor | tuple"},
        capability=(9, 0),
    ),
    Op(
        "xqa_batch_decode_with_kv_cache_mla",
        _mla_fp8,
        mutates=_SCRATCH,
        out=_OUT,
        annotations={"sinks": "Tensor | tuple"},
        arch="12.0",
        capability=(12, 0),
    ),
    Op("xqa", _xqa, "()", mutates=("output", *_SCRATCH, "semaphores"), capability=(9, 0)),
    Op(
        "xqa_mla",
        _xqa_mla,
        "()",
        mutates=("output", *_SCRATCH, "semaphores"),
        arch="12.0",
        capability=(12, 0),
    ),
    _lse("cudnn_batch_decode_with_kv_cache", _cudnn_decode, mutates=_SCRATCH, out=_OUT_LSE),
    Op(
        "cudnn_batch_prefill_with_kv_cache",
        _cudnn_prefill,
        _PAIR,
        results=lambda given: 2 if given["return_lse"] else (1, 2),
        mutates=_SCRATCH,
        out=_OUT_LSE,
    ),
    *(
        _lse(name, example, out=_OUT_LSE, arch="12.0", capability=(12, 0))
        for name, example in (
            ("fmha_v2_prefill_deepseek", _fmha_v2),
            ("fmha_v2_prefill_sm120", _fmha_v2_fp8),
        )
    ),
    *wrappers.OPS,
    *cake_mla.OPS,
    *task_scheduled.OPS,
    *task_scheduled_calls.OPS,
    *sparse_attention.OPS,
    *paged_attention.OPS,
)

_TAKES_MODULE = "it takes a module of kernels as an argument"
UNCOVERED = (
    Uncovered("single_decode_with_kv_cache_with_jit_module", _TAKES_MODULE),
    Uncovered("single_prefill_with_kv_cache_with_jit_module", _TAKES_MODULE),
    *sparse_attention.UNCOVERED,
    *paged_attention.UNCOVERED,
)

PASSED_ON = paged_attention.PASSED_ON
