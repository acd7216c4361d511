"""Paged caches of keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...opaque.declare import MakeTensor, Op

_KV_HEADS, _HEAD = 2, 64


def _pages(make: MakeTensor, m: int) -> Mapping[str, Any]:
    return {
        "batch_indices": make(m, dtype="int32"),
        "positions": make(m, dtype="int32", values="range"),
        "kv_indices": make(16, dtype="int32", values="range"),
        "kv_indptr": make(2, dtype="int32", values=(0, 16)),
        "kv_last_page_len": make(1, dtype="int32", values=(16,)),
    }


def _paged(make: MakeTensor, m: int) -> dict[str, Any]:
    cache = tuple(make(16, 16, _KV_HEADS, _HEAD) for _ in range(2))
    rows = {name: make(m, _KV_HEADS, _HEAD) for name in ("append_key", "append_value")}
    return {**rows, "paged_kv_cache": cache, **_pages(make, m)}


def _paged_mla(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "append_ckv": make(m, 512),
        "append_kpe": make(m, 64),
        "ckv_cache": make(16, 16, 512),
        "kpe_cache": make(16, 16, 64),
        **_pages(make, m),
    }


OPS = (
    Op("append_paged_kv_cache", _paged, "()", mutates=("paged_kv_cache",)),
    Op("append_paged_mla_kv_cache", _paged_mla, "()", mutates=("ckv_cache", "kpe_cache")),
)
