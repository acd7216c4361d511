"""Attention of FlashInfer's tile schedulers (``attention.prims_ts``): the wrappers' methods.

As in ``wrappers``, an example plans a wrapper. Parameters were renamed and moved between ``plan``
and ``run`` from release to release: an example names them all, and gives those that there are.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ...opaque.declare import Example, MakeTensor, Op
from .wrappers import with_lse

HEADS, KV_HEADS, HEAD, PAGE, PAGES, ROWS = 8, 2, 128, 32, 24, 64
LATENT, ROPE = 512, 64
_BLOCKS = {
    "seq_len_q": ROWS,
    "q_block_size": ROWS,
    "kv_block_size": PAGE,
    "max_blocks_per_row": 1,
    "use_kv_valid_bits": False,
}
MODULE = "flashinfer.attention.prims_ts"

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
    wrapper = getattr(import_module(MODULE), name)()
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
        "num_qo_heads": HEADS,
        "num_kv_heads": KV_HEADS,
        "head_dim": HEAD,
        "page_size": PAGE,
        "max_kv_len": PAGE,
        "lse_mode": "base2",
        **more,
    }


def zeros(make: MakeTensor, *size: int) -> Any:
    """Indices, all of the first."""
    return make(*size, dtype="int32", values=(0,) * math.prod(size))


def pages(make: MakeTensor, m: int) -> dict[str, Any]:
    """Where the keys of ``m`` sequences are, as indices and as a table: all in the first page."""
    lengths = make(m, dtype="int32", values=(PAGE,) * m)
    return {
        "paged_kv_indptr": make(m + 1, dtype="int32", values="range"),
        "paged_kv_indices": zeros(make, m),
        "paged_kv_last_page_len": lengths,
        "block_tables": zeros(make, m, 1),
        "seq_lens": lengths,
        "seq_lens_kv": lengths,
    }


def cache(make: MakeTensor) -> Any:
    """Pages of keys and of values."""
    return tuple(make(PAGES, KV_HEADS, PAGE, HEAD) for _ in range(2))


def _decode(make: MakeTensor, m: int) -> dict[str, Any]:
    q, where = make(m, HEADS, HEAD), pages(make, m)
    # A plan that is told of lengths keeps them, and a call may not give them then.
    told = {name: value for name, value in where.items() if not name.startswith("seq_lens")}
    wrapper = _planned("BatchDecodePagedTSWrapper", **_told(q, m), **told)
    return _call(wrapper, q=q, paged_kv_cache=cache(make), **where)


def _mla(make: MakeTensor, m: int) -> dict[str, Any]:
    query, where = make(m, 1, 128, LATENT + ROPE), pages(make, m)
    sizes = {"kv_lora_rank": LATENT, "qk_rope_head_dim": ROPE}
    heads = {"num_heads": 128, "num_qo_heads": 128}
    wrapper = _planned("BatchMLADecodePagedTSWrapper", **_told(query, m, **heads), **sizes, **where)
    return _call(wrapper, query=query, kv_cache=make(PAGES, PAGE, LATENT + ROPE), **where)


def _prefill(make: MakeTensor, m: int) -> dict[str, Any]:
    q = make(m, ROWS, HEADS, HEAD)
    k, v = (make(m, ROWS, KV_HEADS, HEAD) for _ in range(2))
    told = _told(q, m, max_kv_len=ROWS, max_seq_len_q=ROWS, max_q_len=ROWS)
    wrapper = _planned("BatchPrefillTSWrapper", q=q, k=k, v=v, **told)
    return _call(wrapper, q=q, k=k, v=v)


def _paged_prefill(make: MakeTensor, m: int) -> dict[str, Any]:
    q, where = make(m, HEADS, HEAD), pages(make, 1)
    where["qo_indptr"] = make(2, dtype="int32", values=(0, m))
    k_cache, v_cache = cache(make)
    told = _told(q, 1, max_seq_len_q=m, max_q_len=m)
    caches = {"k_cache": k_cache, "v_cache": v_cache}
    wrapper = _planned("BatchPrefillPagedTSWrapper", q=q, **told, **where, **caches)
    return _call(wrapper, q=q, **where, **caches)


def _block_sparse(make: MakeTensor, m: int) -> dict[str, Any]:
    q = make(m, ROWS, HEADS, HEAD)
    k, v = (make(m, ROWS, KV_HEADS, HEAD) for _ in range(2))
    wrapper = _planned("BlockSparseTSWrapper", **_told(q, m, **_BLOCKS, seq_len_kv=ROWS))
    return _call(wrapper, q=q, k=k, v=v, **first_block(make, m))


def _paged_block_sparse(make: MakeTensor, m: int) -> dict[str, Any]:
    q = make(m, ROWS, HEADS, HEAD)
    told = _told(q, m, **_BLOCKS, max_seq_len_kv=PAGE)
    wrapper = _planned("BlockSparsePagedTSWrapper", **told)
    given = {**pages(make, m), **first_block(make, m)}
    return _call(wrapper, q=q, paged_kv_cache=cache(make), **given)


def first_block(make: MakeTensor, m: int) -> dict[str, Any]:
    """Which blocks of keys each block of queries sees, for ``m`` sequences: the first."""
    rows = m * KV_HEADS
    return {
        "block_indptr": make(m, KV_HEADS, 2, dtype="int32", values=[*(0, 1)] * rows),
        "block_indices": zeros(make, rows),
    }


def _tokens(make: MakeTensor, m: int) -> dict[str, Any]:
    q = make(m, 1, 1, HEADS, HEAD)
    options = {"workspace_buffer": make(32 << 20, dtype="uint8"), "kv_block_size": 4}
    sizes = {"group_size": 1, "seq_len_q": 1, "block_topk": 8, "max_seq_len_kv": PAGE}
    wrapper = _planned("QTokenKvBlockSparsePagedTSWrapper", **_told(q, m, **options, **sizes))
    return _call(
        wrapper,
        q=q,
        paged_kv_cache=cache(make),
        block_table=zeros(make, m, 1),
        indexer_block_ids=zeros(make, m, 8),
        token_to_request=make(m, dtype="int32", values="range"),
        query_positions=zeros(make, m),
    )


def _sparse_mla(make: MakeTensor, m: int) -> dict[str, Any]:
    query = make(m, 1, ROWS, LATENT)
    told = _told(query, m, num_qo_heads=ROWS, max_topk=128, return_lse=True)
    wrapper = _planned("BatchSparseMLADecodePagedTSWrapper", **told)
    return _call(
        wrapper,
        query=query,
        kv_cache=make(PAGES, PAGE, LATENT),
        indices=zeros(make, m, 128),
        lengths=make(m, dtype="int32", values=(PAGE,) * m),
    )


def _by_plan(holder: Any, **given: Any) -> Any:
    """The results of a wrapper that knows its batch, which a graph is not to be tied to."""
    import torch  # declarations are read without torch

    q = given["query"] if "query" in given else given["q"]
    width = _of(holder, _WIDTHS) or q.shape[-1]
    out = q.new_empty((*q.shape[:-1], width), dtype=_of(holder, _TYPES))
    if not given.get("return_lse"):
        return out
    return out, q.new_empty(q.shape[:-1], dtype=torch.float32)


def _by_dict(holder: Any, **given: Any) -> Any:
    """Of the one whose plan, a dict, also says whether it returns the log-sum-exp."""
    import torch

    q = given["query"]
    out = q.new_empty((*q.shape[:-1], LATENT), dtype=torch.bfloat16)
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


ALONE: dict[str, Any] = {"returns": "Tensor", "results": None, "out": ("out",)}
EITHER = {"paged_kv_cache": "Tensor | tuple"}

OPS = (
    _run("BatchDecodePagedTSWrapper", _decode, annotations=EITHER),
    _run("BatchMLADecodePagedTSWrapper", _mla),
    _run("BatchPrefillTSWrapper", _prefill),
    _run("BatchPrefillPagedTSWrapper", _paged_prefill),
    _run("BlockSparseTSWrapper", _block_sparse, **ALONE),
    _run("BlockSparsePagedTSWrapper", _paged_block_sparse, annotations=EITHER, **ALONE),
    _run("QTokenKvBlockSparsePagedTSWrapper", _tokens, annotations=EITHER, **ALONE),
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
