"""Paged caches of keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...opaque.declare import MakeTensor, Op, Traces

_KV_HEADS, _HEAD = 2, 128
_CKV, _KPE = 512, 64
#: One request, with room for as many rows as anybody asks for: 128 pages of 16.
_PAGES = (128, 16)


def _pages(make: MakeTensor, m: int) -> Mapping[str, Any]:
    pages, size = _PAGES
    return {
        "batch_indices": make(m, dtype="int32"),
        "positions": make(m, dtype="int32", values="range"),
        "kv_indices": make(pages, dtype="int32", values="range"),
        "kv_indptr": make(2, dtype="int32", values=(0, pages)),
        "kv_last_page_len": make(1, dtype="int32", values=(size,)),
    }


def _rows(make: MakeTensor, m: int) -> dict[str, Any]:
    return {name: make(m, _KV_HEADS, _HEAD) for name in ("append_key", "append_value")}


def _paged(make: MakeTensor, m: int) -> dict[str, Any]:
    cache = tuple(make(*_PAGES, _KV_HEADS, _HEAD) for _ in range(2))
    return {**_rows(make, m), "paged_kv_cache": cache, **_pages(make, m)}


def _mla_rows(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"append_ckv": make(m, _CKV), "append_kpe": make(m, _KPE)}


def _paged_mla(make: MakeTensor, m: int) -> dict[str, Any]:
    cache = {"ckv_cache": make(*_PAGES, _CKV), "kpe_cache": make(*_PAGES, _KPE)}
    return {**_mla_rows(make, m), **cache, **_pages(make, m)}


def _nvfp4(make: MakeTensor, m: int) -> dict[str, Any]:
    packed = (make(*_PAGES, _KV_HEADS, _HEAD // 2, dtype="uint8") for _ in range(2))
    scales = (make(*_PAGES, _KV_HEADS, _HEAD // 16, dtype="float8_e4m3fn") for _ in range(2))
    return {
        **_rows(make, m),
        "paged_kv_cache": tuple(packed),
        "kv_cache_sf": tuple(scales),
    }


def _nvfp4_paged(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_nvfp4(make, m), **_pages(make, m), "k_scale": 0.5, "v_scale": 0.5}


def _nvfp4_slots(make: MakeTensor, m: int) -> dict[str, Any]:
    scales = {name: make(1, dtype="float32", values=(0.5,)) for name in ("k_scale", "v_scale")}
    slots = make(m, dtype="int64", values="range")
    return {**_nvfp4(make, m), "slot_mapping": slots, **scales}


def _nvfp4_mla(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = 3 * m  # not just any number: a row of the cache has 32 scales
    return {
        **_mla_rows(make, rows),
        "ckv_cache": make(*_PAGES, _CKV // 2, dtype="uint8"),
        "ckv_sf_cache": make(*_PAGES, _CKV // 16, dtype="float8_e4m3fn"),
        "kpe_cache": make(*_PAGES, _KPE, dtype="float8_e4m3fn"),
        **_pages(make, rows),
        "ckv_scale": 0.5,
        "kpe_scale": 0.5,
    }


def _ragged(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "append_indptr": make(2, dtype="int32", values=(0, m)),
        "seq_lens": make(1, dtype="int32", values=(m,)),
        "nnz": m,
    }


def _indices_fake(append_indptr: Any, nnz: Any, **_: Any) -> Any:
    import torch

    return tuple(append_indptr.new_empty((nnz,), dtype=torch.int32) for _ in range(2))


_NVFP4_CACHES = ("paged_kv_cache", "kv_cache_sf")

OPS = (
    Op("append_paged_kv_cache", _paged, "()", mutates=("paged_kv_cache",)),
    Op("append_paged_mla_kv_cache", _paged_mla, "()", mutates=("ckv_cache", "kpe_cache")),
    Op("nvfp4_quantize_append_paged_kv_cache", _nvfp4_paged, "()", mutates=_NVFP4_CACHES),
    Op(
        "nvfp4_quantize_append_paged_kv_cache_with_slot_mapping",
        _nvfp4_slots,
        "()",
        mutates=_NVFP4_CACHES,
    ),
    Op(
        "nvfp4_quantize_append_paged_mla_kv_cache",
        _nvfp4_mla,
        "()",
        mutates=("ckv_cache", "ckv_sf_cache", "kpe_cache"),
    ),
    Op(
        "get_batch_indices_positions",
        _ragged,
        "(Tensor, Tensor)",
        out=("batch_indices", "positions"),
        # In shadow it imports Triton, which not every torch comes with.
        fake=_indices_fake,
        requires=("triton",),
    ),
)

TRACES = (
    Traces(
        "get_seq_lens",
        lambda make, m: {
            "kv_indptr": make(m + 1, dtype="int32", values="range"),
            "kv_last_page_len": make(m, dtype="int32"),
            "page_size": _PAGES[1],
        },
    ),
)
