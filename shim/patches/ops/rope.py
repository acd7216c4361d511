"""Rotary position embedding."""

from __future__ import annotations

from typing import Any

from ...opaque.declare import MakeTensor, Op

_HEADS, _KV_HEADS, _HEAD = 8, 2, 64
#: As multi-head latent attention has it: one key for all heads, without and with position.
_LATENT, _POSITIONAL = 512, 64
#: One request, with room for as many rows as anybody asks for: 64 pages of 16.
_PAGES = (64, 16)
_PACKED_HEAD = 128
_HOPPER = (9, 0)
_PAIR = "(Tensor, Tensor)"


def _qk(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"q": make(m, _HEADS, _HEAD), "k": make(m, _KV_HEADS, _HEAD)}


def _ragged(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_qk(make, m),
        "indptr": make(2, dtype="int32", values=(0, m)),
        "offsets": make(1, dtype="int32"),
    }


def _pos_ids(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_qk(make, m), "pos_ids": make(m, dtype="int32", values="range")}


def _cached(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "positions": make(m, dtype="int32", values="range"),
        "query": make(m, _HEADS * _HEAD),
        "key": make(m, _KV_HEADS * _HEAD),
        "head_size": _HEAD,
        "cos_sin_cache": make(2048, _HEAD, dtype="float32"),
    }


def _latent(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "q_rope": make(m, _HEADS, _POSITIONAL),
        "k_rope": make(m, _POSITIONAL),
        "q_nope": make(m, _HEADS, _LATENT),
        "k_nope": make(m, _LATENT),
        "cos_sin_cache": make(2048, _POSITIONAL, dtype="float32"),
        "pos_ids": make(m, dtype="int32", values="range"),
    }


def _latent_paged(make: MakeTensor, m: int) -> dict[str, Any]:
    pages, size = _PAGES
    cache = tuple(
        make(pages, size, width, dtype="float8_e4m3fn") for width in (_LATENT, _POSITIONAL)
    )
    return {
        **_latent(make, m),
        "v": None,
        "paged_kv_cache": cache,
        "kv_indices": make(pages, dtype="int32", values="range"),
        "kv_indptr": make(2, dtype="int32", values=(0, pages)),
        "batch_indices": make(m, dtype="int32"),
        "positions": make(m, dtype="int32", values="range"),
        "page_size": size,
    }


def _packed(make: MakeTensor, m: int) -> dict[str, Any]:
    """One request, with 8 heads for queries and one for keys and values in each row."""
    return {
        "qkv": make(m, (8 + 2) * _PACKED_HEAD),
        "seq_lens": make(1, dtype="int32", values=(m,)),
        "q_indptr": make(2, dtype="int32", values=(0, m)),
        "page_indices": make(1, _PAGES[0], dtype="int32"),
    }


def _packed_cache(make: MakeTensor, dtype: str) -> Any:
    return make(*_PAGES, 1, _PACKED_HEAD, dtype=dtype)


def _packed_append(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_packed(make, m),
        "cos_sin": make(2048, _PACKED_HEAD, dtype="float32"),
        **{f"{name}_cache": _packed_cache(make, "bfloat16") for name in ("key", "value")},
        "num_q_heads": 8,
        "num_kv_heads": 1,
    }


def _packed_fp8_append(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_packed(make, m),
        "cos_sin_cache": make(2048, _PACKED_HEAD, dtype="float32"),
        "paged_kv_cache": tuple(_packed_cache(make, "float8_e4m3fn") for _ in "kv"),
        "is_prefill": False,
        **{f"{name}_scale": make(1, dtype="float32", values=(0.5,)) for name in "kv"},
        "quant_policy": 1,
    }


OPS = (
    *(Op(f"apply_{kind}rope", _ragged, _PAIR) for kind in ("", "llama31_")),
    *(Op(f"apply_{kind}rope_pos_ids", _pos_ids, _PAIR) for kind in ("", "llama31_")),
    *(
        Op(f"apply_{kind}rope_inplace", _ragged, "()", mutates=("q", "k"))
        for kind in ("", "llama31_")
    ),
    *(
        Op(f"apply_{kind}rope_pos_ids_inplace", _pos_ids, "()", mutates=("q", "k"))
        for kind in ("", "llama31_")
    ),
    Op("apply_rope_with_cos_sin_cache", _cached, _PAIR),
    Op("apply_rope_with_cos_sin_cache_inplace", _cached, "()", mutates=("query", "key")),
    *(
        Op(
            name,
            _latent,
            "(Tensor, Tensor, Tensor, Tensor)",
            out=("q_rope_out", "k_rope_out", "q_nope_out", "k_nope_out"),
        )
        for name in ("rope_quantize_fp8", "mla_rope_quantize_fp8")
    ),
    Op(
        "rope_quantize_fp8_append_paged_kv_cache",
        _latent_paged,
        _PAIR,
        mutates=("paged_kv_cache",),
        out=("q_rope_out", "q_nope_out"),
    ),
    # Of flashinfer.cake_*; the packages behind them have functions of the same names.
    Op(
        "cake_fused_qk_rmsnorm_rope_append_paged_kv_cache",
        _packed_append,
        mutates=("key_cache", "value_cache", "out_k", "out_v"),
        out=("out_q",),
        module="flashinfer.cake_fused_qk_rope_append",
        capability=_HOPPER,
        newest=(10, 3),
    ),
    Op(
        "cake_fused_qk_rmsnorm_rope_quantize_fp8_append_paged_kv_cache",
        _packed_fp8_append,
        "(Tensor, Tensor, Tensor)",
        mutates=("paged_kv_cache", "out_k", "out_v"),
        out=("out_q", "q_scale", "split_k_flag"),
        module="flashinfer.cake_fused_qk_rope_fp8_append",
        capability=_HOPPER,
        newest=(10, 3),
    ),
)
