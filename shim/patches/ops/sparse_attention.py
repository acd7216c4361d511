"""Attention over chosen blocks or tokens, and what scores and chooses them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ...opaque.declare import Count, Example, MakeTensor, Op, Uncovered

_HEADS, _KV_HEADS, _HEAD, _PAGE, _PAGES, _CHOSEN = 8, 2, 128, 128, 4, 16
_CUTE = ("cutlass",)


def _with_lse(given: Mapping[str, Any]) -> int:
    if given.get("return_temperature_lse"):
        return 3
    return 2 if given.get("return_softmax_lse") else 1


def _paged(make: MakeTensor, m: int) -> dict[str, Any]:
    """Of m sequences of one query each."""
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


#: What FlashInfer 0.7.0 calls parameters.
_AT_FIRST = {
    "seq_lens": "context_lens",
    "block_tables": "block_table",
    "max_seq_len": "max_context_len",
    "q_sf": "sf_q",
}


def _as_called(function: str, example: Example) -> Example:
    """The example by the names that the installed function's parameters have."""

    def named(make: MakeTensor, m: int) -> dict[str, Any]:
        scores = import_module("flashinfer.attn_scores.attn_scores")
        parameters = inspect.signature(getattr(scores, function)).parameters
        given = example(make, m).items()
        return {name if name in parameters else _AT_FIRST[name]: value for name, value in given}

    return named


def _logits(make: MakeTensor, m: int) -> dict[str, Any]:
    """Of m sequences of one query each."""
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
    columns = given["max_seq_len"] if "max_seq_len" in given else given["max_context_len"]
    return out[: given["q"].shape[0] * given["q"].shape[1], :columns]


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
            _as_called(name, example),
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
    """Of m tiles of 128 queries each."""
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
    """Of m groups of two tokens each."""
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

_LATENT, _FP4_ROW = 512, 384


def _latent_append(row: int) -> Example:
    def example(make: MakeTensor, m: int) -> dict[str, Any]:
        return {
            "latent_kv": make(m, _LATENT),
            "slot_mapping": make(m, dtype="int64"),
            "cache": make(_PAGES, _INDEX_PAGE, row, dtype="uint8"),
        }

    return example


def _packed(row: int) -> Callable[..., Any]:
    """The cache, with so many bytes for each token."""

    def fake(latent_kv: Any, kv_layout: str = "HND", **_: Any) -> Any:
        import torch  # declarations are read without torch

        if latent_kv.ndim == 2:
            raise ValueError("latent_kv has no dimension of pages")
        pages, *rest = latent_kv.shape[:-1]
        tokens = rest[0] if len(rest) == 1 or rest[0] != 1 else rest[1]
        size = (pages, 1, tokens, row) if kv_layout == "HND" else (pages, tokens, 1, row)
        return latent_kv.new_empty(size, dtype=torch.uint8)

    return fake


def _latent_pack(make: MakeTensor, m: int) -> dict[str, Any]:
    """Of m pages."""
    return {"latent_kv": make(m, _INDEX_PAGE, _LATENT)}


def _latent_insert(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "kv": make(m, _LATENT),
        "cache": make(_PAGES, _INDEX_PAGE, _FP4_ROW, dtype="uint8"),
        "slot_mapping": make(m, dtype="int64"),
        "positions": make(m, dtype="int64"),
        "cos_sin_cache": make(1024, 64, dtype="float32"),
    }


def _latent_query_insert(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_latent_insert(make, m), "q": make(m, _HEADS, _LATENT), "q_head_padded": 16}


def _latent_decode(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "query": make(m, 16, _LATENT + 64, dtype="float8_e4m3fn"),
        "kv_cache": make(_PAGES, _INDEX_PAGE, 352, dtype="uint8"),
        "indices": make(m, 1024, dtype="int32"),
        "bmm1_scale": 0.1,
    }


_LATENT_CACHES = (
    *(
        Op(
            f"{name}_quantize_append_sparse_mla_cache",
            _latent_append(row),
            "()",
            mutates=("cache",),
            arch=arch,
            capability=capability,
        )
        for name, row, arch, capability in (
            ("nvfp4", _FP4_ROW, "", (10, 0)),
            ("dsv41_fp4", 288, "12.0", (12, 0)),
            ("dsv41_fp8", 528, "12.0", (12, 0)),
        )
    ),
    *(
        Op(
            f"{name}_quantize_pack_sparse_mla_cache",
            _latent_pack,
            fake=fake,
            arch=arch,
            capability=capability,
        )
        for name, fake, arch, capability in (
            ("nvfp4", None, "", (10, 0)),
            # Upstream asks the library of its kernels how many bytes a token has.
            ("dsv41_fp4", _packed(288), "12.0", (12, 0)),
            ("dsv41_fp8", _packed(528), "12.0", (12, 0)),
        )
    ),
    Op(
        "cake_dsv4_nvfp4_kv_rope_quantize_insert",
        _latent_insert,
        "()",
        mutates=("cache",),
        arch="12.0",
        capability=(12, 0),
    ),
    Op(
        "cake_dsv4_nvfp4_rope_quantize_insert",
        _latent_query_insert,
        mutates=("cache",),
        # In place it returns its argument, which no op may.
        annotations={"q_inplace": "None"},
        arch="12.0",
        capability=(12, 0),
    ),
    Op(
        "nvfp4_sparse_mla_decode",
        _latent_decode,
        out=("out",),
        capability=(10, 0),
        newest=(10, 3),
    ),
)


def _blocks(make: MakeTensor, m: int) -> dict[str, Any]:
    """Of m sequences of 128 queries and 256 keys, in that order of dimensions."""
    rows = {name: make(m, 256, _KV_HEADS, _HEAD) for name in ("k", "v")}
    return {
        "q": make(m, 128, _KV_HEADS, _HEAD),
        **rows,
        "q2k_block_index": make(m, _KV_HEADS, 2, 3, dtype="int32"),
        "block_sparse_num": 3,
    }


def _sage(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = {name: make(m, 256, _KV_HEADS, _HEAD, dtype="float8_e4m3fn") for name in ("k", "v")}
    return {
        **_blocks(make, m),
        "q": make(m, 128, _KV_HEADS, _HEAD, dtype="float8_e4m3fn"),
        **rows,
        "q_scale": make(m, _KV_HEADS, 128, dtype="float32"),
        "k_scale": make(m, _KV_HEADS, 16, dtype="float32"),
        "v_scale": make(_KV_HEADS, _HEAD, dtype="float32"),
    }


def _sage_int8(make: MakeTensor, m: int) -> dict[str, Any]:
    """The sequences behind the heads."""
    return {
        "q_int8": make(m, _KV_HEADS, 128, _HEAD, dtype="int8"),
        "k_int8": make(m, _KV_HEADS, 256, _HEAD, dtype="int8"),
        "v_fp8": make(m, _KV_HEADS, _HEAD, 256, dtype="float8_e4m3fn"),
        "q_scale": make(m, _KV_HEADS, 4, dtype="float32"),
        "k_scale": make(m, _KV_HEADS, 4, dtype="float32"),
        "v_scale": make(m, _KV_HEADS, _HEAD, dtype="float32"),
        "q2k_block_index": make(m, _KV_HEADS, 2, 3, dtype="int32"),
        "block_sparse_num": 3,
        "out": make(m, _KV_HEADS, 128, _HEAD),
    }


def _sage_rows(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = {name: make(1, 256, _HEADS, _HEAD) for name in ("k", "v")}
    return {"q": make(1, m, _HEADS, _HEAD), **rows}


def _sage_heads(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = {name: make(_HEADS, 256, _HEAD) for name in ("k", "v")}
    return {"q": make(_HEADS, m, _HEAD), **rows}


def _asked_for_lse(given: Mapping[str, Any]) -> Count:
    return 2 if given.get("return_lse") else (1, 2)


_SIX = "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"

_BLOCKS = (
    *(
        Op(
            name,
            example,
            "(Tensor, Tensor)",
            results=results,
            out=("out", "lse"),
            requires=requires,
            arch=arch,
            capability=capability,
        )
        for name, example, results, requires, arch, capability in (
            ("bsa_attn_sm120_blk64_fwd", _blocks, _asked_for_lse, _CUTE, "12.0", (12, 0)),
            ("bsa_attn_sm100_sage_fwd_cake", _sage, _asked_for_lse, (), "", (10, 0)),
        )
    ),
    Op(
        "bsa_attn_sm120_blk64_sage_fwd",
        _sage_int8,
        out=("out",),
        requires=_CUTE,
        arch="12.0",
        capability=(12, 0),
    ),
    Op(
        "bsa_attn_sm120_blk64_sage_fwd_cake",
        _sage_int8,
        out=("out",),
        arch="12.0",
        capability=(12, 0),
    ),
    Op("sage_fp8_quantize_sm100", _sage_rows, _SIX, capability=(10, 0), newest=(10, 9)),
    Op("sage_fp8_quantize_sm90", _sage_heads, _SIX, arch="9.0", capability=(9, 0), newest=(9, 0)),
)


def _ragged_choice(make: MakeTensor, m: int) -> dict[str, Any]:
    """Of m queries of one sequence."""
    return {
        "q": make(m, 32, _INDEX, dtype="float8_e4m3fn"),
        "k": make(1024, _INDEX, dtype="float8_e4m3fn"),
        "w": make(m, 32, dtype="float32"),
        "cu_seqlens_q": make(2, dtype="int32", values=(0, m)),
        "cu_seqlens_k": make(2, dtype="int32", values=(0, 1024)),
        "k_scale": make(1024, dtype="float32"),
        "top_k": 256,
        "backend": "sm120",
    }


def _qsa(make: MakeTensor, m: int) -> dict[str, Any]:
    """Of m queries of one sequence; the last index of each is how many there are."""
    return {
        "q": make(m, _HEADS, 256),
        "k_cache": make(_PAGES, _INDEX_PAGE, _KV_HEADS, 256),
        "v_cache": make(_PAGES, _INDEX_PAGE, _KV_HEADS, 256),
        "logical_indices": make(m, 257, dtype="int32"),
        "block_table": make(3, _PAGES, dtype="int32"),
        "token_to_req": make(m, dtype="int32"),
        "use_prefill_config": False,
        "output_gate": make(m, _HEADS, 256),
    }


def _packed_rows(make: MakeTensor, m: int) -> dict[str, Any]:
    """Of m tokens of one sequence."""
    return {"q": make(m, 12, 256), "k": make(m, 1, 256), "v": make(m, 1, 256)}


def _chosen_tokens(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_packed_rows(make, m), "indices": make(m, 64, dtype="int32")}


def _chosen_blocks(make: MakeTensor, m: int) -> dict[str, Any]:
    each = ("lo", "hi", "blk_base", "tok_base")
    return {
        **_packed_rows(make, m),
        "sel_blocks": make(m, 130, dtype="uint8"),
        **{name: make(m, dtype="int32") for name in each},
        **{name: make(130, dtype="int32") for name in ("block_first", "block_last")},
    }


def _with_float_and_lse(q: Any, **_: Any) -> Any:
    import torch  # declarations are read without torch

    rows, heads, _dim = q.shape
    return (
        q.new_empty(q.shape),
        q.new_empty(q.shape, dtype=torch.float32),
        q.new_empty((heads, rows), dtype=torch.float32),
    )


def _sharded_scores(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "index_q": make(m, 4, _INDEX, dtype="float8_e4m3fn"),
        "index_k": make(_PAGES, _PAGE // 2, _INDEX, dtype="float8_e4m3fn"),
        "block_table": make(m, _PAGES, dtype="int32"),
        "seq_lens": make(m, dtype="int32"),
        "score_out": make(m, 4, 64, dtype="float32"),
        "rank": 0,
        "world_size": 2,
        "page_size": _PAGE,
        "decode_query_len": 1,
        "max_decode_query_len": 1,
    }


def _carried_choice(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "scores": make(m, 4, 64, dtype="float32"),
        "num_valid_pages": make(m, dtype="int32"),
        "carrier": make(4, m, 33, dtype="int32"),
    }


_OTHERS = (
    Op(
        "dsa_indexer_det_topk",
        _ragged_choice,
        "(Tensor, Tensor)",
        results=lambda given: 2 if given.get("return_scores", True) else (1, 2),
        mutates=("workspace_buffer",),
        out=("indices", "scores"),
        arch="12.0",
        capability=(10, 0),
    ),
    Op(
        "qsa_sparse_paged_attention",
        _qsa,
        out=("out",),
        arch="9.0",
        capability=(8, 0),
    ),
    *(
        Op(
            name,
            example,
            "(Tensor, Tensor, Tensor)",
            # cuDNN allocates what it returns.
            fake=_with_float_and_lse,
            capability=(10, 0),
            newest=(10, 9),
        )
        for name, example in (
            ("qsa_forward", _chosen_blocks),
            ("qsa_indexed_forward", _chosen_tokens),
        )
    ),
    Op(
        "msa_icp_decode_index_score_sharded",
        _sharded_scores,
        "()",
        mutates=("score_out",),
        capability=(10, 0),
    ),
    Op(
        "msa_icp_topk_select_prefill",
        _carried_choice,
        "()",
        mutates=("carrier",),
        capability=(10, 0),
    ),
)

OPS: tuple[Op, ...] = (*_MSA, *_LOGITS, *_WRITERS, *_LATENT_CACHES, *_BLOCKS, *_OTHERS)

_BY_ADDRESS = "ranks write into each other's memory by address, which no compiler sees"
_OWN_PLAN = "it takes a plan of its own class"
_LAUNCH = "it returns the numbers by which it was launched, in a dict"

UNCOVERED: tuple[Uncovered, ...] = (
    Uncovered(
        "FP8MQATopKWrapper.run",
        "its plan binds kernels to the addresses of keys, and its calls share one output",
    ),
    Uncovered(
        "bsa_attn_sm100_blk64_fwd",
        "in some releases an extension of torch's makes what it returns",
    ),
    Uncovered(
        "bsa_attn_sm100_blk128_fwd", "it needs quack-kernels, which FlashInfer does not install"
    ),
    *(
        Uncovered(f"msa_icp_{name}", _BY_ADDRESS)
        for name in ("decode_score_publish", "topk_select_publish", "merge_candidates")
    ),
    *(
        Uncovered(f"msa_icp_{name}", _OWN_PLAN)
        for name in ("index_score_sharded", "prefill_score_select")
    ),
    *(
        Uncovered(f"cake_sparse_mla_sm120_dsv4_nvfp4_{name}", _LAUNCH)
        for name in ("decode", "prefill")
    ),
)
