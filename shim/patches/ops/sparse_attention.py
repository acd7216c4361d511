"""Attention over chosen blocks or tokens, and what scores and chooses them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...opaque.declare import MakeTensor, Op, Uncovered

_HEADS, _KV_HEADS, _HEAD, _PAGE, _PAGES, _CHOSEN = 8, 2, 128, 128, 4, 16
_CUTE = ("cutlass",)


def _with_lse(given: Mapping[str, Any]) -> int:
    if given.get("return_temperature_lse"):
        return 3
    return 2 if given.get("return_softmax_lse") else 1


def _paged(make: MakeTensor, m: int) -> dict[str, Any]:
    """M sequences of one query each."""
    return {
        "page_table": make(m, _PAGES, dtype="int32"),
        "seqused_k": make(m, dtype="int32"),
    }


def _msa_score(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "q": make(m, _HEADS, _HEAD),
        "k": make(_PAGES, _KV_HEADS, _PAGE, _HEAD),
        "cu_seqlens_q": make(m + 1, dtype="int32", values="range"),
        **_paged(make, m),
        "max_seqlen_q": 1,
        "max_k_tiles": _PAGES,
    }


def _msa_score_fp4(make: MakeTensor, m: int) -> dict[str, Any]:
    given = _msa_score(make, m)
    del given["q"], given["k"]
    return {
        **given,
        "q_fp4": make(m, _HEADS, _HEAD // 2, dtype="uint8"),
        "k_fp4": make(_PAGES, _KV_HEADS, _PAGE, _HEAD // 2, dtype="uint8"),
        "q_scale": make((-m * _HEADS // -128 or 1) * 128, 8, dtype="uint8"),
        "k_scale": make(_PAGES * _KV_HEADS * _PAGE, 8, dtype="uint8"),
        "q_global_scale": 1.0,
        "k_global_scale": 1.0,
    }


def _msa_choice(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"max_score": make(_HEADS, 64, m, dtype="float32"), "topk": _CHOSEN}


def _msa_decode(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "q": make(m, _HEADS, _HEAD),
        "k": make(_PAGES, _KV_HEADS, _PAGE, _HEAD),
        "v": make(_PAGES, _KV_HEADS, _PAGE, _HEAD),
        "q2k_indices": make(_KV_HEADS, m, _CHOSEN, dtype="int32"),
        **_paged(make, m),
    }


def _msa_prefill(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_msa_decode(make, m),
        **_paged(make, 1),
        "cu_seqlens_q": make(2, dtype="int32", values=(0, m)),
        "cu_seqlens_k": make(2, dtype="int32", values=(0, m)),
        "causal": True,
    }


_OFFSET = {"q_offset": "Tensor | int"}

_MSA = (
    *(
        Op(
            name,
            example,
            out=("output",),
            annotations=_OFFSET,
            requires=_CUTE,
            arch="12.0",
            capability=(9, 0),
        )
        for name, example in (
            ("msa_proxy_score", _msa_score),
            ("msa_proxy_score_fp4", _msa_score_fp4),
            ("msa_topk_select", _msa_choice),
        )
    ),
    *(
        Op(
            name,
            example,
            returns,
            results=_with_lse,
            out=("out",),
            annotations=_OFFSET,
            requires=_CUTE,
            arch="12.0",
            capability=(9, 0),
        )
        for name, example, returns in (
            ("msa_sparse_attention", _msa_prefill, "(Tensor, Tensor, Tensor)"),
            ("msa_sparse_decode_attention", _msa_decode, "(Tensor, Tensor)"),
        )
    ),
)

_INDEX, _INDEX_PAGE, _KEYS = 128, 64, 256


def _logits(make: MakeTensor, m: int) -> dict[str, Any]:
    """M sequences of one query each."""
    return {
        "q": make(m, 1, 64, _INDEX, dtype="float8_e4m3fn"),
        "kv_fused": make(_PAGES, _INDEX_PAGE, 1, _INDEX + 4, dtype="uint8"),
        "weights": make(m, 64, dtype="float32"),
        "block_tables": make(m, _PAGES, dtype="int32"),
        "seq_lens": make(m, dtype="int32"),
        "max_seq_len": _KEYS,
    }


def _logits_fp4(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_logits(make, m),
        "q": make(m, 1, 64, _INDEX // 2, dtype="uint8"),
        "q_sf": make(m, 1, 64, dtype="int32"),
        "kv_fused": make(_PAGES, _INDEX_PAGE, 1, _INDEX // 2 + 4, dtype="uint8"),
    }


def _first_columns(given: Mapping[str, Any], out: Any) -> Any:
    return out[: given["q"].shape[0] * given["q"].shape[1], : given["max_seq_len"]]


def _schedule(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"seq_lens": make(m, dtype="int32")}


def _deepgemm_dense(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "q": make(m, 32, _INDEX, dtype="float8_e4m3fn"),
        "kv": (make(512, _INDEX, dtype="float8_e4m3fn"), make(512, dtype="float32")),
        "weights": make(m, 32, dtype="float32"),
        "ks": make(m, dtype="int32"),
        "ke": make(m, dtype="int32"),
    }


def _deepgemm_paged(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "q": make(m, 1, 64, _INDEX, dtype="float8_e4m3fn"),
        "kv_cache": make(_PAGES, _INDEX_PAGE, 1, _INDEX + 4, dtype="uint8"),
        "weights": make(m, 64, dtype="float32"),
        "context_lens": make(m, 1, dtype="int32"),
        "block_table": make(m, _PAGES, dtype="int32"),
        "schedule_meta": make(133, 2, dtype="int32"),
        "max_context_len": _KEYS,
    }


def _deepgemm_schedule(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"context_lens": make(m, 1, dtype="int32"), "block_kv": _INDEX_PAGE, "num_sms": 132}


def _deepgemm_schedule_sm120(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"context_lens": make(m, 1, dtype="int32"), "page_kv": _INDEX_PAGE, "num_sms": 132}


_DEEPGEMM = {
    **dict.fromkeys(("q", "weights", "ks", "ke", "kv_cache", "context_lens"), "Tensor"),
    **dict.fromkeys(("block_table", "schedule_meta", "indices", "out"), "Tensor"),
    **dict.fromkeys(("max_context_len", "block_kv", "page_kv", "num_sms"), "int"),
    **dict.fromkeys(("num_heads", "max_context_hint", "sm_count"), "int"),
    "kv": "tuple",
}

_LOGITS = (
    *(
        Op(
            name,
            example,
            module="flashinfer.attn_scores*",
            out=("out",),
            part=part,
            requires=_CUTE,
            capability=(10, 0),
            newest=(10, 9),
        )
        for name, example, part in (
            ("fp8_paged_mqa_logits", _logits, _first_columns),
            ("fp4_paged_mqa_logits", _logits_fp4, _first_columns),
            ("compute_paged_mqa_logits_schedule", _schedule, None),
        )
    ),
    Op(
        "fp8_mqa_logits",
        _deepgemm_dense,
        module="flashinfer.dense_mqa",
        annotations=_DEEPGEMM,
        capability=(10, 0),
        newest=(10, 3),
    ),
    *(
        Op(
            f"{where}_{function}",
            example,
            function=function,
            module=f"flashinfer.{where}*",
            out=out,
            # That of compute capability 12.0 is made anew; the other is never read.
            mutates=("schedule_meta",) if arch else (),
            annotations=_DEEPGEMM,
            arch=arch,
            capability=capability,
        )
        for where, arch, capability, paged in (
            ("paged_mqa", "", (10, 0), _deepgemm_schedule),
            ("sm120_paged_mqa", "12.0", (12, 0), _deepgemm_schedule_sm120),
        )
        for function, example, out in (
            ("fp8_paged_mqa_logits", _deepgemm_paged, ()),
            ("get_paged_mqa_logits_metadata", paged, ("out",)),
        )
    ),
)


def _key_sample(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "key_cache": make(_PAGES, _INDEX_PAGE, _INDEX),
        "block_table": make(m, _PAGES, dtype="int32"),
        "offsets": make(_KEYS, dtype="uint8"),
        "sample_ends": make(m, dtype="int32"),
        "sample_keys": make(m, _KEYS, _INDEX),
        "samples_per_run": 4,
        "pages_per_run": 1,
    }


def _scores(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "query": make(m, _INDEX),
        "key_cache": make(_PAGES, _INDEX_PAGE, _INDEX),
        "block_table": make(m, _PAGES, dtype="int32"),
        "context_lengths": make(m, dtype="int32"),
        "requests": make(m, dtype="int32"),
        "scores": make(m, _KEYS, dtype="float32"),
    }


def _selection(make: MakeTensor, m: int) -> dict[str, Any]:
    """M tiles of 128 queries each."""
    rows = 128 * m
    return {
        "query": make(rows, _INDEX),
        "key_cache": make(_PAGES, _INDEX_PAGE, _INDEX),
        "row_ends": make(rows, dtype="int32"),
        "tile_requests": make(m, dtype="int32"),
        "block_table": make(m, _PAGES, dtype="int32"),
        "thresholds": make(rows, dtype="float32"),
        "counters": make(rows, 2, dtype="int32"),
        "candidates": make(rows, 40, 2, dtype="int32"),
        "max_context": _KEYS,
        "top_k": 16,
    }


def _index_write(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "key": make(m, _INDEX),
        "slots": make(m, dtype="int64"),
        "query": make(m, _INDEX),
        "query_rows": make(m, dtype="int64"),
        "key_cache": make(_PAGES, _INDEX_PAGE, _INDEX // 2, dtype="uint8"),
        "key_scales": make(_PAGES, _INDEX_PAGE, 8, dtype="uint8"),
        "packed_query": make(m, _INDEX // 2, dtype="uint8"),
        "query_scales": make(m, 8, dtype="uint8"),
    }


def _sampled_thresholds(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "sample_scores": make(m, _KEYS, dtype="float32"),
        "sample_top": make(m, 16, dtype="int32"),
        "thresholds": make(m, dtype="float32"),
        "counters": make(m, 2, dtype="int32"),
    }


def _candidates(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "candidates": make(m, 40, 2, dtype="int32"),
        "ranges": make(2, m, dtype="int32"),
        "top_keys": make(m, 16, dtype="int32"),
    }


def _token_slots(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "positions": make(m, 1024, dtype="int32"),
        "requests": make(m, dtype="int32"),
        "block_table": make(m, _PAGES, dtype="int32"),
        "block_tables": make(2 * m, 2, 1024, dtype="int32"),
        "seq_lens": make(2 * m, dtype="int32"),
        "requests_per_token": 2,
    }


def _union_masks(make: MakeTensor, m: int) -> dict[str, Any]:
    """M groups of two tokens each."""
    return {
        "positions": make(2 * m, 1024, dtype="int32"),
        "query_rows": make(2 * m, dtype="int32"),
        "group_unions": make(m, dtype="int32"),
        "requests": make(m, dtype="int32"),
        "block_table": make(m, _PAGES, dtype="int32"),
        "union": make(m, _KEYS, dtype="int32"),
        "union_sizes": make(m, dtype="int32"),
        "mask": make(2 * m, _KEYS // 32, dtype="int32"),
        "num_keys": _KEYS,
    }


_WRITERS = tuple(
    Op(name, example, "()", mutates=mutates, requires=_CUTE, capability=capability)
    for name, example, mutates, capability in (
        ("indexer_scores", _scores, ("scores",), (9, 0)),
        ("gather_key_sample", _key_sample, ("sample_keys", "sample_scales"), (10, 0)),
        (
            "indexer_threshold_select",
            _selection,
            ("thresholds", "counters", "candidates", "arrivals", "ranges"),
            (10, 0),
        ),
        (
            "quantize_write_index_qk_nvfp4",
            _index_write,
            ("key_cache", "key_scales", "packed_query", "query_scales"),
            (10, 0),
        ),
        ("thresholds_from_sample", _sampled_thresholds, ("thresholds", "counters"), (10, 0)),
        ("top_k_from_candidates", _candidates, ("top_keys",), (10, 0)),
        ("token_sparse_kv_indices", _token_slots, ("block_tables", "seq_lens"), (8, 0)),
        ("group_union_masks", _union_masks, ("union", "union_sizes", "mask"), (8, 0)),
    )
)

OPS: tuple[Op, ...] = (*_MSA, *_LOGITS, *_WRITERS)

UNCOVERED: tuple[Uncovered, ...] = ()
