"""Rotary position embedding."""

from __future__ import annotations

from typing import Any

from ...opaque.declare import MakeTensor, Op

_HEADS, _KV_HEADS, _HEAD = 8, 2, 64
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
)
