"""Attention of FlashInfer's tile schedulers by functions that plan and run in one call.

They are for code that keeps no plan. To plan they read lengths on the host, unless they are given
bounds and told to trust them: a compiled graph may hold such a call, a CUDA graph may not.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

from ...opaque.declare import MakeTensor, Op
from .task_scheduled import (
    ALONE,
    EITHER,
    HEAD,
    HEADS,
    KV_HEADS,
    LATENT,
    MODULE,
    PAGE,
    PAGES,
    ROPE,
    ROWS,
    accepted,
    cache,
    first_block,
    pages,
    zeros,
)
from .wrappers import with_lse


def _given(name: str, **arguments: Any) -> dict[str, Any]:
    return accepted(getattr(import_module(MODULE), name), **arguments)


def _workspace(make: MakeTensor) -> Any:
    return make(8 << 20, dtype="uint8")


def _decode(name: str, make: MakeTensor, m: int) -> dict[str, Any]:
    q, kv_cache = make(m, HEADS, HEAD), cache(make)
    return _given(
        name,
        **{"q": q, "query": q, "paged_kv_cache": kv_cache, "kv_cache": kv_cache},
        **pages(make, m),
        **{"workspace_buffer": _workspace(make), "max_seq_len": PAGE, "max_kv_len": PAGE},
    )


def _mla(name: str, make: MakeTensor, m: int) -> dict[str, Any]:
    return _given(
        name,
        query=make(m, 1, 128, LATENT + ROPE),
        kv_cache=make(PAGES, PAGE, LATENT + ROPE),
        **{"kv_lora_rank": LATENT, "qk_rope_head_dim": ROPE},
        **pages(make, m),
        **{"workspace_buffer": _workspace(make), "max_seq_len": PAGE, "max_kv_len": PAGE},
    )


def _prefill(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = {name: make(m, ROWS, KV_HEADS, HEAD) for name in ("k", "v")}
    return {"q": make(m, ROWS, HEADS, HEAD), **rows}


def _paged_prefill(make: MakeTensor, m: int) -> dict[str, Any]:
    k_cache, v_cache = cache(make)
    return _given(
        "batch_prefill_with_paged_kv_cache",
        **{"q": make(m, HEADS, HEAD), "k_cache": k_cache, "v_cache": v_cache},
        qo_indptr=make(2, dtype="int32", values=(0, m)),
        **pages(make, 1),
    )


def _block_sparse(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_prefill(make, m),
        **first_block(make, m),
        "q_block_size": ROWS,
        "kv_block_size": PAGE,
    }


def _paged_block_sparse(make: MakeTensor, m: int) -> dict[str, Any]:
    return _given(
        "block_sparse_attention_with_paged_kv_cache",
        q=make(m, ROWS, HEADS, HEAD),
        paged_kv_cache=cache(make),
        **pages(make, m),
        **first_block(make, m),
        **{"q_block_size": ROWS, "kv_block_size": PAGE, "max_seq_len_kv": PAGE},
    )


def _tokens(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "q": make(m, 1, 1, HEADS, HEAD),
        "paged_kv_cache": cache(make),
        "block_table": zeros(make, m, 1),
        "indexer_block_ids": zeros(make, m, 8),
        "token_to_request": make(m, dtype="int32", values="range"),
        "query_positions": zeros(make, m),
        "workspace_buffer": _workspace(make),
        "max_seq_len_kv": PAGE,
    }


def _sparse_mla(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "query": make(m, 1, ROWS, LATENT),
        "kv_cache": make(PAGES, PAGE, LATENT),
        "indices": zeros(make, m, 128),
        "lengths": make(m, dtype="int32", values=(PAGE,) * m),
    }


def _attended(*, q: Any = None, query: Any = None, v: Any = None, **given: Any) -> Any:
    """Rows as wide as values are, of the type that is asked for."""
    import torch  # declarations are read without torch

    q = query if q is None else q
    width = given.get("kv_lora_rank", q.shape[-1] if v is None else v.shape[-1])
    dtype = given.get("out_dtype", given.get("o_data_type")) or q.dtype
    out = q.new_empty((*q.shape[:-1], width), dtype=dtype)
    if not given.get("return_lse"):
        return out
    return out, q.new_empty(q.shape[:-1], dtype=torch.float32)


def _attended_latent(**given: Any) -> Any:
    import torch

    return _attended(**{"kv_lora_rank": LATENT, "out_dtype": torch.bfloat16, **given})


def _call(name: str, example: Any, **declared: Any) -> Op:
    options: dict[str, Any] = {
        "returns": "(Tensor, Tensor)",
        "results": with_lse,
        "out": ("out", "lse"),
        "mutates": ("workspace_buffer",),
        "fake": _attended,
        "captured": False,
        "requires": ("cutlass",),
        "capability": (10, 0),
        "module": f"{MODULE}.*",
    }
    return Op(name, example, **options | declared)


OPS = (
    *(
        _call(name, functools.partial(_decode, name), annotations={cached: "Tensor | tuple"})
        for name, cached in (
            ("batch_decode_with_paged_kv_cache", "paged_kv_cache"),
            ("prims_ts_batch_decode_with_kv_cache", "kv_cache"),
        )
    ),
    *(
        _call(name, functools.partial(_mla, name), fake=_attended_latent)
        for name in (
            "batch_mla_decode_with_paged_kv_cache",
            "batch_decode_mla_with_paged_kv_cache",
            "prims_ts_batch_decode_with_kv_cache_mla",
        )
    ),
    _call("batch_prefill", _prefill),
    _call("batch_prefill_with_paged_kv_cache", _paged_prefill),
    _call("block_sparse_attention", _block_sparse, **ALONE),
    _call(
        "block_sparse_attention_with_paged_kv_cache",
        _paged_block_sparse,
        annotations=EITHER,
        **ALONE,
    ),
    _call(
        "q_token_kv_block_sparse_attention_with_paged_kv_cache",
        _tokens,
        annotations=EITHER,
        **ALONE,
    ),
    _call(
        "batch_sparse_mla_decode_with_paged_kv_cache",
        _sparse_mla,
        fake=_attended_latent,
        annotations={
            **dict.fromkeys(("query", "kv_cache", "indices", "lengths"), "Tensor"),
            **dict.fromkeys(("extra_kv_cache", "extra_indices", "extra_lengths"), "Tensor"),
            **dict.fromkeys(("qo_indptr", "attention_sinks", "out", "lse"), "Tensor"),
            "workspace_buffer": "Tensor",
            "max_q_len": "int",
            "softmax_scale": "float",
            "extra_kv_cache_format": "str",
            # A call that quantizes returns scales between the two.
            **dict.fromkeys(("output_quant_block_size", "num_output_groups"), "None"),
            **dict.fromkeys(("token_positions", "cos_sin_cache", "out_scale", "tuning"), "None"),
        },
    ),
)
