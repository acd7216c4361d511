"""Attention of FlashInfer's tile schedulers (``attention.prims_ts``): the wrappers' methods.

As in ``wrappers``, an example plans a wrapper. Parameters were renamed and moved between ``plan``
and ``run`` from release to release: an example names them all, and gives those that there are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ...opaque.declare import Example, MakeTensor, Op
from .wrappers import with_lse

_HEADS, _KV_HEADS, _HEAD, _PAGE, _PAGES, _ROWS = 8, 2, 128, 32, 24, 64
_LATENT, _ROPE = 512, 64
_BLOCKS = {
    "seq_len_q": _ROWS,
    "q_block_size": _ROWS,
    "kv_block_size": _PAGE,
    "max_blocks_per_row": 1,
    "use_kv_valid_bits": False,
}
_MODULE = "flashinfer.attention.prims_ts"

#: Where releases keep the type of the output, and how wide it is.
_TYPES = (
    "_plan_state.out_dtype",
    "_plan_state.output_dtype",
    "_config.out_dtype",
    "_config.o_data_type",
    "_plan_state.geometry.out_dtype",
    "_plan_state.geometry.output_dtype",
    "_geometry.output_dtype",
    "_output_dtype",
)
_WIDTHS = ("_plan_state.kv_lora_rank", "_kv_lora_rank", "_plan_state.geometry.head_dim_vo")


def accepted(function: Callable[..., Any], **given: Any) -> dict[str, Any]:
    """Of the arguments ``given`` those for which this release's function has a parameter."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in given.items() if name in parameters}


def _planned(name: str, **told: Any) -> Any:
    """A wrapper with a plan."""
    wrapper = getattr(import_module(_MODULE), name)()
    wrapper.plan(**accepted(wrapper.plan, **told))
    return wrapper


def _call(wrapper: Any, **given: Any) -> dict[str, Any]:
    return {"self": wrapper, **accepted(wrapper.run, **given)}


def _told(q: Any, m: int, **more: Any) -> dict[str, Any]:
    """What a plan is told of ``m`` sequences, the types of tensors under all their names."""
    tensors = ("q", "k", "v", "kv", "o", "out")
    return {
        **{f"{name}_{kind}": q.dtype for name in tensors for kind in ("dtype", "data_type")},
        "device": q.device,
        "batch_size": m,
        "max_q_len": 1,
        "max_seq_len_q": 1,
        "packed_query": False,
        "num_qo_heads": _HEADS,
        "num_kv_heads": _KV_HEADS,
        "head_dim": _HEAD,
        "page_size": _PAGE,
        "max_kv_len": _PAGE,
        "lse_mode": "base2",
        **more,
    }


def _pages(make: MakeTensor, m: int) -> dict[str, Any]:
    """Where the keys of ``m`` sequences are, as indices and as a table: all in the first page."""
    lengths = make(m, dtype="int32", values=(_PAGE,) * m)
    return {
        "paged_kv_indptr": make(m + 1, dtype="int32", values="range"),
        "paged_kv_indices": make(m, dtype="int32"),
        "paged_kv_last_page_len": lengths,
        "block_tables": make(m, 1, dtype="int32"),
        "seq_lens": lengths,
        "seq_lens_kv": lengths,
    }


def _cache(make: MakeTensor) -> Any:
    return tuple(make(_PAGES, _KV_HEADS, _PAGE, _HEAD) for _ in range(2))


def _decode(make: MakeTensor, m: int) -> dict[str, Any]:
    q, pages = make(m, _HEADS, _HEAD), _pages(make, m)
    # A plan that is told of lengths keeps them, and a call may not give them then.
    told = {name: value for name, value in pages.items() if not name.startswith("seq_lens")}
    wrapper = _planned("BatchDecodePagedTSWrapper", **_told(q, m), **told)
    return _call(wrapper, q=q, paged_kv_cache=_cache(make), **pages)


def _mla(make: MakeTensor, m: int) -> dict[str, Any]:
    query, pages = make(m, 1, 128, _LATENT + _ROPE), _pages(make, m)
    sizes = {"kv_lora_rank": _LATENT, "qk_rope_head_dim": _ROPE}
    heads = {"num_heads": 128, "num_qo_heads": 128}
    wrapper = _planned("BatchMLADecodePagedTSWrapper", **_told(query, m, **heads), **sizes, **pages)
    return _call(wrapper, query=query, kv_cache=make(_PAGES, _PAGE, _LATENT + _ROPE), **pages)


def _prefill(make: MakeTensor, m: int) -> dict[str, Any]:
    q = make(m, _ROWS, _HEADS, _HEAD)
    k, v = (make(m, _ROWS, _KV_HEADS, _HEAD) for _ in range(2))
    told = _told(q, m, max_kv_len=_ROWS, max_seq_len_q=_ROWS, max_q_len=_ROWS)
    wrapper = _planned("BatchPrefillTSWrapper", q=q, k=k, v=v, **told)
    return _call(wrapper, q=q, k=k, v=v)


def _paged_prefill(make: MakeTensor, m: int) -> dict[str, Any]:
    q, pages = make(m, _HEADS, _HEAD), _pages(make, 1)
    pages["qo_indptr"] = make(2, dtype="int32", values=(0, m))
    k_cache, v_cache = _cache(make)
    told = _told(q, 1, max_seq_len_q=m, max_q_len=m)
    caches = {"k_cache": k_cache, "v_cache": v_cache}
    wrapper = _planned("BatchPrefillPagedTSWrapper", q=q, **told, **pages, **caches)
    return _call(wrapper, q=q, **pages, **caches)


def _block_sparse(make: MakeTensor, m: int) -> dict[str, Any]:
    q = make(m, _ROWS, _HEADS, _HEAD)
    k, v = (make(m, _ROWS, _KV_HEADS, _HEAD) for _ in range(2))
    wrapper = _planned("BlockSparseTSWrapper", **_told(q, m, **_BLOCKS, seq_len_kv=_ROWS))
    return _call(wrapper, q=q, k=k, v=v, **_first_block(make, m))


def _paged_block_sparse(make: MakeTensor, m: int) -> dict[str, Any]:
    q = make(m, _ROWS, _HEADS, _HEAD)
    told = _told(q, m, **_BLOCKS, max_seq_len_kv=_PAGE)
    wrapper = _planned("BlockSparsePagedTSWrapper", **told)
    given = {**_pages(make, m), **_first_block(make, m)}
    return _call(wrapper, q=q, paged_kv_cache=_cache(make), **given)


def _first_block(make: MakeTensor, m: int) -> dict[str, Any]:
    """Which blocks of keys each block of queries sees, for ``m`` sequences: the first."""
    rows = m * _KV_HEADS
    return {
        "block_indptr": make(m, _KV_HEADS, 2, dtype="int32", values=[*(0, 1)] * rows),
        "block_indices": make(rows, dtype="int32"),
    }


def _tokens(make: MakeTensor, m: int) -> dict[str, Any]:
    q = make(m, 1, 1, _HEADS, _HEAD)
    options = {"workspace_buffer": make(32 << 20, dtype="uint8"), "kv_block_size": 4}
    sizes = {"group_size": 1, "seq_len_q": 1, "block_topk": 8, "max_seq_len_kv": _PAGE}
    wrapper = _planned("QTokenKvBlockSparsePagedTSWrapper", **_told(q, m, **options, **sizes))
    return _call(
        wrapper,
        q=q,
        paged_kv_cache=_cache(make),
        block_table=make(m, 1, dtype="int32"),
        indexer_block_ids=make(m, 8, dtype="int32"),
        token_to_request=make(m, dtype="int32", values="range"),
        query_positions=make(m, dtype="int32"),
    )


def _sparse_mla(make: MakeTensor, m: int) -> dict[str, Any]:
    query = make(m, 1, _ROWS, _LATENT)
    told = _told(query, m, num_qo_heads=_ROWS, max_topk=128, return_lse=True)
    wrapper = _planned("BatchSparseMLADecodePagedTSWrapper", **told)
    return _call(
        wrapper,
        query=query,
        kv_cache=make(_PAGES, _PAGE, _LATENT),
        indices=make(m, 128, dtype="int32"),
        lengths=make(m, dtype="int32", values=(_PAGE,) * m),
    )


def _by_plan(holder: Any, **given: Any) -> Any:
    """The results of a wrapper that knows its batch, which a graph is not to be tied to."""
    import torch  # declarations are read without torch

    q = given.get("query", given.get("q"))
    assert q is not None
    width = _of(holder, _WIDTHS) or q.shape[-1]
    out = q.new_empty((*q.shape[:-1], width), dtype=_of(holder, _TYPES))
    if not given.get("return_lse"):
        return out
    return out, q.new_empty(q.shape[:-1], dtype=torch.float32)


def _by_dict(holder: Any, **given: Any) -> Any:
    """Of the one whose plan, a dict, also says whether it returns the log-sum-exp."""
    import torch

    q = given["query"]
    out = q.new_empty((*q.shape[:-1], _LATENT), dtype=torch.bfloat16)
    if not holder._state["return_lse"]:
        return out
    return out, q.new_empty(q.shape[:-1], dtype=torch.float32)


def _count_by_dict(given: Mapping[str, Any]) -> int:
    return 2 if "return_lse=True" in given["holder_state"] else 1


def _of(holder: Any, paths: tuple[str, ...]) -> Any:
    """The first of some attributes that the object has."""
    for path in paths:
        value = holder
        for name in path.split("."):
            value = getattr(value, name, None)
        if value is not None:
            return value
    return None


def _run(wrapper: str, example: Example, **declared: Any) -> Op:
    options: dict[str, Any] = {
        "returns": "(Tensor, Tensor)",
        "results": with_lse,
        "out": ("out", "lse"),
        # Unless told not to, they look at the numbers in lengths and tables.
        "fake": _by_plan,
        "requires": ("cutlass",),
        "arch": "10.0",
        "capability": (10, 0),
        "state": (*_TYPES, *_WIDTHS),
    }
    return Op(f"{wrapper}.run", example, **options | declared)


_ALONE: dict[str, Any] = {"returns": "Tensor", "results": None, "out": ("out",)}
_EITHER = {"paged_kv_cache": "Tensor | tuple"}

OPS = (
    _run("BatchDecodePagedTSWrapper", _decode, annotations=_EITHER),
    _run("BatchMLADecodePagedTSWrapper", _mla),
    _run("BatchPrefillTSWrapper", _prefill),
    _run("BatchPrefillPagedTSWrapper", _paged_prefill),
    _run("BlockSparseTSWrapper", _block_sparse, **_ALONE),
    _run("BlockSparsePagedTSWrapper", _paged_block_sparse, annotations=_EITHER, **_ALONE),
    _run("QTokenKvBlockSparsePagedTSWrapper", _tokens, annotations=_EITHER, **_ALONE),
    _run(
        "BatchSparseMLADecodePagedTSWrapper",
        _sparse_mla,
        fake=_by_dict,
        results=_count_by_dict,
        state=("_state.return_lse",),
        annotations={
            **dict.fromkeys(("query", "kv_cache", "indices", "lengths"), "Tensor"),
            **dict.fromkeys(("extra_kv_cache", "extra_indices", "extra_lengths"), "Tensor"),
            **dict.fromkeys(("qo_indptr", "attention_sinks", "out", "lse"), "Tensor"),
            **dict.fromkeys(("softmax_scale", "output_scale", "kv_cache_scale"), "float"),
            "validate": "bool",
            # Plans that quantize return scales between the two.
            **dict.fromkeys(("token_positions", "cos_sin_cache", "out_scale"), "None"),
        },
    ),
)
