"""Methods of attention wrappers, which keep a plan between calls.

An example makes a wrapper and plans it, so it takes a device with kernels, or kernels that do
nothing: it is not one for fake tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ...opaque.declare import Example, MakeTensor, Op

_HEADS, _KV_HEADS, _HEAD, _PAGE, _PAGES = 8, 2, 128, 16, 32
_LATENT, _ROPE, _SHARED = 512, 64, 96
_PAIR = "(Tensor, Tensor)"

#: What the results depend on, besides the tensors given.
_STATE = (
    "_kv_layout",
    "_backend",
    "_use_tensor_cores",
    "_cached_q_data_type",
    "_cached_kv_data_type",
    "_cached_o_data_type",
    "_o_dtype",
)


#: Likewise, of those by CuTe DSL.
_CUTE_DSL_STATE = ("_q_data_type", "_o_data_type", "_q_dtype", "_o_dtype", "_paged_kv_layout")


def with_lse(given: Mapping[str, Any]) -> int:
    """How many results a call has that may ask for the log-sum-exp."""
    return 2 if given.get("return_lse") else 1


def _made(name: str, *arguments: Any, module: str = "flashinfer", **options: Any) -> Any:
    return getattr(import_module(module), name)(*arguments, **options)


def _workspace(make: MakeTensor) -> Any:
    return make(64 << 20, dtype="uint8")


def _cache(make: MakeTensor, dtype: str = "bfloat16") -> Any:
    return tuple(make(_PAGES, _PAGE, _KV_HEADS, _HEAD, dtype=dtype) for _ in range(2))


def _one_page_each(make: MakeTensor, m: int) -> tuple[Any, Any, Any]:
    """indptr, indices and lengths of last pages of m sequences that all lie in the first page."""
    return (
        make(m + 1, dtype="int32", values="range"),
        make(m, dtype="int32"),
        make(m, dtype="int32", values=(_PAGE,) * m),
    )


def _decode(make: MakeTensor, m: int) -> dict[str, Any]:
    wrapper = _made("BatchDecodeWithPagedKVCacheWrapper", _workspace(make))
    wrapper.plan(*_one_page_each(make, m), _HEADS, _KV_HEADS, _HEAD, _PAGE, q_data_type="bfloat16")
    return {"self": wrapper, "q": make(m, _HEADS, _HEAD), "paged_kv_cache": _cache(make)}


def _prefill(make: MakeTensor, m: int) -> dict[str, Any]:
    wrapper = _made("BatchPrefillWithPagedKVCacheWrapper", _workspace(make))
    pages = -(-m // _PAGE)
    wrapper.plan(
        make(2, dtype="int32", values=(0, m)),
        make(2, dtype="int32", values=(0, pages)),
        make(pages, dtype="int32", values="range"),
        make(1, dtype="int32", values=(m - (pages - 1) * _PAGE,)),
        *(_HEADS, _KV_HEADS, _HEAD, _PAGE),
        causal=True,
        q_data_type="bfloat16",
    )
    return {"self": wrapper, "q": make(m, _HEADS, _HEAD), "paged_kv_cache": _cache(make)}


def _ragged(make: MakeTensor, m: int) -> dict[str, Any]:
    wrapper = _made("BatchPrefillWithRaggedKVCacheWrapper", _workspace(make))
    indptr = make(2, dtype="int32", values=(0, m))
    wrapper.plan(indptr, indptr, _HEADS, _KV_HEADS, _HEAD, causal=True, q_data_type="bfloat16")
    rows = {name: make(m, _KV_HEADS, _HEAD) for name in ("k", "v")}
    return {"self": wrapper, "q": make(m, _HEADS, _HEAD), **rows}


def _mla(make: MakeTensor, m: int) -> dict[str, Any]:
    wrapper = _made(
        "BatchMLAPagedAttentionWrapper", _workspace(make), module="flashinfer.mla", backend="fa2"
    )
    indptr, indices, lengths = _one_page_each(make, m)
    q = make(m, _HEADS, _LATENT)
    wrapper.plan(
        *(indptr, indptr, indices, lengths),
        *(_HEADS, _LATENT, _ROPE, _PAGE),
        *(False, 0.1, q.dtype, q.dtype),
    )
    return {
        "self": wrapper,
        "q_nope": q,
        "q_pe": make(m, _HEADS, _ROPE),
        "ckv_cache": make(_PAGES, _PAGE, _LATENT),
        "kpe_cache": make(_PAGES, _PAGE, _ROPE),
    }


def _decode_mla(make: MakeTensor, m: int) -> dict[str, Any]:
    wrapper = _made("BatchDecodeMlaWithPagedKVCacheWrapper", _workspace(make))
    wrapper.plan(*_one_page_each(make, m), _HEADS, _LATENT, _PAGE, 0.1, data_type="bfloat16")
    return {
        "self": wrapper,
        "q_nope": make(m, _HEADS, _LATENT),
        "q_pe": make(m, _HEADS, _ROPE),
        "paged_ckv_cache": make(_PAGES, _PAGE, _LATENT),
        "paged_kpe_cache": make(_PAGES, _PAGE, _ROPE),
    }


def _block_sparse(make: MakeTensor, m: int) -> dict[str, Any]:
    wrapper = _made("BlockSparseAttentionWrapper", _workspace(make), module="flashinfer.sparse")
    rows = {name: make(_PAGE, _KV_HEADS, _HEAD) for name in ("k", "v")}
    q = make(m, _HEADS, _HEAD)
    wrapper.plan(
        make(2, dtype="int32", values=(0, 1)),
        make(1, dtype="int32"),
        *(m, _PAGE, m, _PAGE, _HEADS, _KV_HEADS, _HEAD),
        q_data_type=q.dtype,
        o_data_type=q.dtype,
    )
    return {"self": wrapper, "q": q, **rows}


def _variable_block_sparse(make: MakeTensor, m: int) -> dict[str, Any]:
    wrapper = _made(
        "VariableBlockSparseAttentionWrapper", _workspace(make), module="flashinfer.sparse"
    )
    sizes = make(_KV_HEADS, 1, dtype="int32", values=(m,) * _KV_HEADS)
    q = make(_HEADS, m, _HEAD)
    wrapper.plan(
        make(_KV_HEADS, 1, 1, dtype="bool", values=(1,) * _KV_HEADS),
        *(sizes, sizes, _HEADS, _KV_HEADS, _HEAD),
        q_data_type=q.dtype,
    )
    return {"self": wrapper, "q": q, "k": make(_KV_HEADS, m, _HEAD), "v": make(_KV_HEADS, m, _HEAD)}


def _attention(make: MakeTensor, m: int) -> dict[str, Any]:
    q = make(m, _HEADS, _HEAD)
    wrapper = _made("BatchAttention", "NHD", str(q.device))
    pages = -(-m // _PAGE)
    wrapper.plan(
        make(2, dtype="int32", values=(0, m)),
        make(2, dtype="int32", values=(0, pages)),
        make(pages, dtype="int32", values="range"),
        make(1, dtype="int32", values=(m,)),
        *(_HEADS, _KV_HEADS, _HEAD, _HEAD, _PAGE),
        causal=True,
        q_data_type=q.dtype,
        kv_data_type=q.dtype,
    )
    return {"self": wrapper, "q": q, "kv_cache": _cache(make)}


def _cascade(make: MakeTensor, m: int) -> dict[str, Any]:
    wrapper = _made("MultiLevelCascadeAttentionWrapper", 2, _workspace(make))
    together = [make(2, dtype="int32", values=values) for values in ((0, m), (0, 1))]
    own = make(m + 1, dtype="int32", values="range")
    wrapper.plan(
        [together[0], own],
        [together[1], own],
        [make(1, dtype="int32"), make(m, dtype="int32")],
        [make(n, dtype="int32", values=(_PAGE,) * n) for n in (1, m)],
        *(_HEADS, _KV_HEADS, _HEAD, _PAGE),
        q_data_type="bfloat16",
    )
    return {"self": wrapper, "q": make(m, _HEADS, _HEAD), "paged_kv_cache": _cache(make)}


def _shared_prefix(make: MakeTensor) -> dict[str, Any]:
    return {
        name: make(_SHARED, _KV_HEADS, _HEAD, dtype="float16") for name in ("k_shared", "v_shared")
    }


def _decode_shared(make: MakeTensor, m: int) -> dict[str, Any]:
    wrapper = _made("BatchDecodeWithSharedPrefixPagedKVCacheWrapper", _workspace(make))
    wrapper.begin_forward(*_one_page_each(make, m), _HEADS, _KV_HEADS, _HEAD, _PAGE)
    return {
        "self": wrapper,
        "q": make(m, _HEADS, _HEAD, dtype="float16"),
        **_shared_prefix(make),
        "unique_kv_cache": _cache(make, "float16"),
    }


def _prefill_shared(make: MakeTensor, m: int) -> dict[str, Any]:
    given = _decode_shared(make, m)
    wrapper = _made("BatchPrefillWithSharedPrefixPagedKVCacheWrapper", _workspace(make))
    indptr, indices, lengths = _one_page_each(make, m)
    wrapper.begin_forward(indptr, indptr, indices, lengths, _HEADS, _KV_HEADS, _HEAD, _PAGE)
    return {**given, "self": wrapper, "causal": True}


def _pod(make: MakeTensor, m: int) -> dict[str, Any]:
    wrapper = _made("PODWithPagedKVCacheWrapper", _workspace(make))
    wrapper.plan(*_one_page_each(make, m), _HEADS, _KV_HEADS, _HEAD, _PAGE, q_data_type="bfloat16")
    return {
        "self": wrapper,
        "q_p": make(_SHARED, _HEADS, _HEAD),
        "k_p": make(_SHARED, _KV_HEADS, _HEAD),
        "v_p": make(_SHARED, _KV_HEADS, _HEAD),
        "q_d": make(m, _HEADS, _HEAD),
        "paged_kv_cache_d": _cache(make),
        "causal_p": True,
    }


def _batch_pod(make: MakeTensor, m: int) -> dict[str, Any]:
    wrapper = _made("BatchPODWithPagedKVCacheWrapper", _workspace(make))
    pages = _SHARED // _PAGE
    indptr, indices, lengths = _one_page_each(make, m)
    wrapper.plan(
        make(2, dtype="int32", values=(0, _SHARED)),
        make(2, dtype="int32", values=(0, pages)),
        make(pages, dtype="int32", values="range"),
        make(1, dtype="int32", values=(_PAGE,)),
        *(indptr, indptr, indices, lengths),
        *(_HEADS, _KV_HEADS, _HEAD, _PAGE),
        q_data_type="bfloat16",
    )
    return {
        "self": wrapper,
        "q_p": make(_SHARED, _HEADS, _HEAD),
        "paged_kv_cache_p": _cache(make),
        "q_d": make(m, _HEADS, _HEAD),
        "paged_kv_cache_d": _cache(make),
        "causal_p": True,
    }


def _cute_dsl(name: str, make: MakeTensor) -> Any:
    return _made(name, make(64 << 20, dtype="int8"), module="flashinfer.cute_dsl.attention")


def _decode_cute_dsl(make: MakeTensor, m: int) -> dict[str, Any]:
    wrapper = _cute_dsl("BatchDecodeCuteDSLWrapper", make)
    q = make(m, 1, _HEADS, _HEAD)
    wrapper.plan(m, _PAGE, _HEADS, _KV_HEADS, _HEAD, q_data_type=q.dtype, kv_splits=1)
    return {"self": wrapper, "q": q, **{n: make(m, _PAGE, _KV_HEADS, _HEAD) for n in ("k", "v")}}


def _paged_decode_cute_dsl(make: MakeTensor, m: int) -> dict[str, Any]:
    wrapper = _cute_dsl("BatchDecodePagedCuteDSLWrapper", make)
    q = make(m, _HEADS, _HEAD)
    shape = (_HEADS, _KV_HEADS, _HEAD, _PAGE)
    wrapper.plan(*_one_page_each(make, m), *shape, q_data_type=q.dtype, kv_splits=1)
    k, v = _cache(make)
    return {"self": wrapper, "q": q, "k_cache": k, "v_cache": v}


def _mla_cute_dsl(make: MakeTensor, m: int) -> dict[str, Any]:
    wrapper = _cute_dsl("BatchMLADecodeCuteDSLWrapper", make)
    wrapper.plan(num_heads=128, page_size=_PAGE)
    return {
        "self": wrapper,
        "q": make(m, 1, 128, _LATENT + _ROPE),
        "kv_cache": make(_PAGES, _PAGE, _LATENT + _ROPE),
        "block_tables": make(m, 2, dtype="int32"),
        "seq_lens": make(m, dtype="int32", values=(_PAGE,) * m),
        "max_seq_len": _PAGE,
        "softmax_scale": 0.1,
    }


def _prefill_cute_dsl(make: MakeTensor, m: int) -> dict[str, Any]:
    wrapper = _cute_dsl("BatchPrefillCuteDSLWrapper", make)
    q, indptr = make(m, _HEADS, _HEAD), make(2, dtype="int32", values=(0, m))
    types = {"q_data_type": q.dtype, "kv_data_type": q.dtype}
    wrapper.plan(indptr, indptr, _HEADS, _KV_HEADS, _HEAD, **types)
    return {"self": wrapper, "q": q, **{name: make(m, _KV_HEADS, _HEAD) for name in ("k", "v")}}


def _paged_prefill_cute_dsl(make: MakeTensor, m: int) -> dict[str, Any]:
    wrapper = _cute_dsl("BatchPrefillCuteDSLWrapper", make)
    q, pages = make(m, _HEADS, _HEAD), -(-m // _PAGE)
    wrapper.plan(
        make(2, dtype="int32", values=(0, m)),
        **{"num_qo_heads": _HEADS, "num_kv_heads": _KV_HEADS, "head_dim_qk": _HEAD},
        **{"q_data_type": q.dtype, "kv_data_type": q.dtype, "page_size": _PAGE},
        paged_kv_indptr=make(2, dtype="int32", values=(0, pages)),
        paged_kv_indices=make(pages, dtype="int32", values="range"),
        paged_kv_last_page_len=make(1, dtype="int32", values=(m - (pages - 1) * _PAGE,)),
    )
    return {"self": wrapper, "q": q, "paged_kv_cache": _cache(make)}


def _decoded_by_plan(holder: Any, **given: Any) -> Any:
    """The output of a wrapper that knows its batch, which a graph is not to be tied to."""
    return given["q"].new_empty(given["q"].shape, dtype=holder._o_data_type)


def _mla_by_plan(holder: Any, **given: Any) -> Any:
    """Of one that asks CuTe DSL how wide a number is."""
    size = (*given["q"].shape[:-1], holder._kv_lora_rank)
    return given["q"].new_empty(size, dtype=holder._o_dtype)


def _prefilled_by_plan(holder: Any, **given: Any) -> Any:
    """Of one that knows its number of rows, with the log-sum-exp."""
    import torch  # declarations are read without torch

    q = given["q"]
    out = q.new_empty(q.shape, dtype=holder._o_scratch.dtype)
    if not given.get("return_lse"):
        return out
    return out, q.new_empty(q.shape[:-1], dtype=torch.float32)


def _run(wrapper: str, example: Example, **declared: Any) -> Op:
    options: dict[str, Any] = {"results": with_lse, "out": ("out", "lse"), **declared}
    return Op(f"{wrapper}.run", example, _PAIR, state=_STATE, **options)


def _deprecated(wrapper: str, example: Example, *names: str) -> tuple[Op, ...]:
    """The methods that set attributes of the wrapper and then run it."""
    returns = {"forward": "Tensor", "forward_return_lse": _PAIR}
    either = {"paged_kv_cache": "Tensor | tuple"}
    return tuple(
        Op(f"{wrapper}.{name}", example, returns[name], annotations=either, state=_STATE)
        for name in names
    )


def _cute_dsl_run(method: str, example: Example, returns: str = "Tensor", **declared: Any) -> Op:
    options: dict[str, Any] = {
        "out": ("out",) if returns == "Tensor" else ("out", "lse"),
        "results": None if returns == "Tensor" else with_lse,
        "requires": ("cutlass",),
        "arch": "10.0",
        "capability": (10, 0),
    }
    return Op(method, example, returns, state=_CUTE_DSL_STATE, **options | declared)


#: What the CuTe DSL wrappers' decode takes by ``**kwargs``.
_BY_KEYWORD = {
    "out": "Tensor",
    "sm_scale": "float",
    "o_scale": "float",
    "sinks": "Tensor",
    "lse": "Tensor",
    "enable_pdl": "bool",
}

_BOTH = ("forward", "forward_return_lse")

OPS = (
    _run("BatchDecodeWithPagedKVCacheWrapper", _decode),
    *_deprecated("BatchDecodeWithPagedKVCacheWrapper", _decode, *_BOTH),
    _run("BatchPrefillWithPagedKVCacheWrapper", _prefill),
    *_deprecated("BatchPrefillWithPagedKVCacheWrapper", _prefill, *_BOTH),
    _run("BatchPrefillWithRaggedKVCacheWrapper", _ragged),
    *_deprecated("BatchPrefillWithRaggedKVCacheWrapper", _ragged, *_BOTH),
    _run(
        "BatchMLAPagedAttentionWrapper",
        _mla,
        annotations={"query": "Tensor | tuple", "kv_cache": "Tensor | tuple"},
    ),
    _run("BatchDecodeMlaWithPagedKVCacheWrapper", _decode_mla),
    _run("BatchAttention", _attention, results=None),
    _run("BlockSparseAttentionWrapper", _block_sparse),
    *_deprecated("BlockSparseAttentionWrapper", _block_sparse, "forward"),
    # What the caller gives as its outputs has another shape than what is returned.
    _run(
        "VariableBlockSparseAttentionWrapper",
        _variable_block_sparse,
        out=(),
        annotations={"out": "None", "lse": "None"},
    ),
    *_deprecated("VariableBlockSparseAttentionWrapper", _variable_block_sparse, "forward"),
    Op(
        "MultiLevelCascadeAttentionWrapper.run",
        _cascade,
        annotations={"paged_kv_cache": "Tensor | tuple"},
        state=_STATE,
    ),
    *(
        Op(
            f"{wrapper}.forward",
            example,
            annotations={"unique_kv_cache": "Tensor | tuple"},
            state=_STATE,
        )
        for wrapper, example in (
            ("BatchDecodeWithSharedPrefixPagedKVCacheWrapper", _decode_shared),
            ("BatchPrefillWithSharedPrefixPagedKVCacheWrapper", _prefill_shared),
        )
    ),
    *(
        _cute_dsl_run(
            f"{wrapper}.run",
            example,
            fake=_decoded_by_plan,
            mutates=("lse",),
            keywords=(*_BY_KEYWORD, *more),
            annotations={
                **dict.fromkeys(("deprecated_positional_args",), "None"),
                **_BY_KEYWORD,
                **more,
            },
        )
        for wrapper, example, more in (
            ("BatchDecodeCuteDSLWrapper", _decode_cute_dsl, {}),
            (
                "BatchDecodePagedCuteDSLWrapper",
                _paged_decode_cute_dsl,
                {"skip_softmax_threshold_scale_factor": "float"},
            ),
        )
    ),
    _cute_dsl_run("BatchMLADecodeCuteDSLWrapper.run", _mla_cute_dsl, fake=_mla_by_plan),
    _cute_dsl_run(
        "BatchPrefillCuteDSLWrapper.run", _prefill_cute_dsl, _PAIR, fake=_prefilled_by_plan
    ),
    _cute_dsl_run(
        "BatchPrefillCuteDSLWrapper.run_paged",
        _paged_prefill_cute_dsl,
        _PAIR,
        fake=_prefilled_by_plan,
        annotations={"paged_kv_cache": "Tensor | tuple"},
    ),
    Op("PODWithPagedKVCacheWrapper.run", _pod, _PAIR, state=_STATE),
    Op(
        "BatchPODWithPagedKVCacheWrapper.run",
        _batch_pod,
        "(Tensor, Tensor, Tensor, Tensor)",
        results=lambda given: ((2,), (2,)) if given.get("return_lse") else 2,
        state=_STATE,
    ),
)
