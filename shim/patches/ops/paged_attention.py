"""Attention by the kernels of one backend each: CuTe DSL, tile schedulers, Cake, cuDNN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...opaque.declare import MakeTensor, Op, PassedOn, Traces, Uncovered

_PAIR = "(Tensor, Tensor)"
_BLACKWELL, _CONSUMER = (10, 0), (12, 0)
_SCRATCH = ("workspace_buffer",)
#: The model that some of these functions are for: its heads, their width, and what follows of them.
_H3_HEADS, _H3_HEAD, _H3_HIDDEN, _H3_ROPE = 56, 128, 5376, 96
_H3_WIDTH = _H3_HEADS * _H3_HEAD


def _attended(**given: Any) -> Any:
    """An output with the shape of the queries."""
    import torch  # declarations are read without torch

    query = given["query"] if "query" in given else given["q"]
    halves = (torch.float16, torch.bfloat16)
    return query.new_empty(
        query.shape, dtype=query.dtype if query.dtype in halves else torch.bfloat16
    )


def _fp4_qkv(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "q": make(m, 4, 130, 64),
        "k": make(m, 2, 140, 64),
        "v": make(m, 2, 140, 64),
    }


def _fp4_attention(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "q_fp4": make(m, 4, 256, 32, dtype="uint8"),
        "k_fp4": make(m, 2, 384, 32, dtype="uint8"),
        "v_fp4_t": make(m, 2, 64, 192, dtype="uint8"),
        "q_scale": make(m, 4, 256, 4, dtype="float8_e4m3fn"),
        "k_scale": make(m, 2, 384, 4, dtype="float8_e4m3fn"),
        "v_scale_t": make(m, 2, 64, 24, dtype="float8_e4m3fn"),
        "qk_correction": make(m, 4, 2, 384, dtype="float32"),
    }


def _fmha_v2(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "qkv": (make(m, 8, 128), make(m, 2, 2, 128)),
        "input_layout": "CONTIGUOUS_Q_KV",
        "workspace_buffer": make(1 << 12, dtype="uint8"),
        "seq_lens": make(1, dtype="int32", values=(m,)),
        "max_q_len": 1024,
        "max_kv_len": 1024,
        "bmm1_scale": 0.1,
        "bmm2_scale": 1.0,
        "batch_size": 1,
        "cum_seq_lens_q": make(2, dtype="int32", values=(0, m)),
        "cum_seq_lens_kv": make(2, dtype="int32", values=(0, m)),
    }


def _sage(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = {name: make(m, 2, 128) for name in ("key", "value")}
    return {"query": make(m, 8, 128), **rows, "k_block_size": 1}


def _dsv4(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "query": make(m, 1, 64, 512),
        "swa_kv_cache": make(5, 1, 64, 512),
        "workspace_buffer": make(1 << 12, dtype="uint8"),
        "sparse_indices": make(m, 256, dtype="int32"),
        "compressed_kv_cache": make(5, 1, 64, 512),
        "sparse_topk_lens": make(m, dtype="int32"),
        "seq_lens": make(m, dtype="int32"),
        "bmm1_scale": 0.1,
        "bmm2_scale": 1.0,
    }


def _mla_swa(make: MakeTensor, m: int) -> dict[str, Any]:
    # It takes a few batch sizes and no other, so m is the number of pages.
    return {
        "query": make(2, 1, 64, 1088),
        "kv_cache": make(m, 64, 1088),
        "workspace_buffer": make(5 << 20, dtype="uint8"),
        "block_tables": make(2, 10, dtype="int32"),
        "seq_lens": make(2, dtype="int32"),
        "window_left": 512,
        "sm_scale": 0.1,
    }


def _mla_pack(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"kv_nope": make(m, 12, 256), "k_pe": make(m, 64)}


def _h3_dense(make: MakeTensor, m: int) -> dict[str, Any]:
    return {name: make(m, _H3_WIDTH) for name in ("q", "k", "v")}


def _h3_varlen(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **{name: make(m, 4, _H3_HEAD) for name in ("q", "k", "v")},
        "cu_seqlens": make(2, dtype="int32", values=(0, m)),
        "cu_seqlens_host": [0, m],
    }


def _h3_packed(make: MakeTensor, m: int, dtype: str = "bfloat16") -> dict[str, Any]:
    return {
        **{name: make(m, 4, _H3_HEAD, dtype=dtype) for name in ("query", "key", "value")},
        "cu_seqlens": make(2, dtype="int32", values=(0, m)),
        "cu_seqlens_host": [0, m],
    }


def _h3_packed_fp8(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_h3_packed(make, m, "float8_e4m3fn"),
        **dict.fromkeys(("q_descale", "k_descale", "v_descale"), 1.0),
    }


def _h3_projected(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "x": make(m, _H3_HIDDEN),
        "x_norm_weight": make(_H3_HIDDEN),
        "adaln_scale": make(9, _H3_HIDDEN),
        "adaln_shift": make(9, _H3_HIDDEN),
        "adaln_index": make(m, dtype="int32"),
        "q_norm_weight": make(_H3_HEAD),
        "k_norm_weight": make(_H3_HEAD),
        "rope_cos_sin": make(m, _H3_ROPE),
    }


def _h3_projected_fp8(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_h3_projected(make, m),
        "qkv_weight_q": make(3 * _H3_WIDTH, _H3_HIDDEN, dtype="float8_e4m3fn"),
        "qkv_weight_scale": make(3 * _H3_WIDTH, dtype="float32"),
    }


def _h3_projected_fp4(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_h3_projected(make, m),
        "qkv_weight_q": make(3 * _H3_WIDTH, _H3_HIDDEN // 2, dtype="uint8"),
        "qkv_weight_sf": make(3 * _H3_WIDTH * _H3_HIDDEN // 16, dtype="uint8"),
        "qkv_weight_global_scale": 1.0,
        "act_global_scale": make(1, dtype="float32", values=(1.0,)),
        "alpha": 1.0,
    }


def _xqa_sm110(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "q": make(m, 32, 128, dtype="float16"),
        "kv": make(m, 2, 8, 256, 128, dtype="float16"),
        "sequence_lengths": make(m, dtype="int32"),
    }


def _with_scales(given: Mapping[str, Any]) -> Any:
    """The scales come with queries, keys and values that are in FP4."""
    return 6 if given.get("out_mode") == "nvfp4" else (3, 6)


_XQA_SM110 = {
    **dict.fromkeys(("mask", "out", "page_table", "q_cu_seq_lens"), "Tensor"),
    **dict.fromkeys(("page_size", "max_q_len", "partition_tokens"), "int"),
    **dict.fromkeys(("sm_scale", "k_scale", "v_scale"), "float"),
    "workspace": "tuple",
    "kernel": "str",
}
_H3_ACTIVATIONS = ("act_q", "act_scale", "act_sf")
_H3_OUT = ("q", "k", "v", "q_sf", "k_sf", "v_sf")

OPS: tuple[Op, ...] = (
    Op(
        "nvfp4_attention_sm120_quantize_qkv",
        _fp4_qkv,
        f"({', '.join(['Tensor'] * 7)})",
        arch="12.0",
        capability=_CONSUMER,
    ),
    Op(
        "nvfp4_attention_sm120_fwd",
        _fp4_attention,
        _PAIR,
        results=lambda given: 2 if given.get("return_lse", True) else 1,
        out=("out", "lse"),
        arch="12.0",
        capability=_CONSUMER,
    ),
    Op(
        "trtllm_fmha_v2_prefill",
        _fmha_v2,
        _PAIR,
        results=lambda given: 2 if given.get("save_softmax_stats") else 1,
        mutates=_SCRATCH,
        out=("out",),
        annotations={"qkv": "Tensor | tuple", "out_dtype": "dtype"},
        capability=(9, 0),
    ),
    Op(
        "trtllm_sage_attention_quantize",
        _sage,
        f"({', '.join(['Tensor'] * 7)})",
        results=lambda given: 7 if given.get("smooth_k") else 6,
        capability=_BLACKWELL,
    ),
    Op(
        "trtllm_batch_decode_sparse_mla_dsv4",
        _dsv4,
        _PAIR,
        results=lambda given: 1 if given.get("dsv4_inv_rope_cos_sin_cache") is None else 2,
        mutates=(*_SCRATCH, "remapped_sparse_indices_buffer", "multi_ctas_kv_counter_buffer"),
        out=("out", "dsv4_output_scale"),
        capability=_BLACKWELL,
    ),
    Op(
        "batch_decode_with_kv_cache_mla_swa",
        _mla_swa,
        # It compares addresses, which tensors without data do not have.
        fake=lambda query, **_: query.new_empty((*query.shape[:-1], 1024)),
        mutates=_SCRATCH,
        out=("out",),
        arch="9.0",
        capability=(9, 0),
        newest=(9, 0),
    ),
    Op("concat_mla_kv_quant_fp8", _mla_pack, _PAIR, out=("key", "value")),
    Op("minimax_h3_dense_attention", _h3_dense, out=("out",), capability=(9, 0)),
    *(
        Op(
            name,
            _h3_varlen,
            out=("out",),
            # It plans on the host, from lengths that it reads from the GPU.
            fake=_attended,
            annotations={"cu_seqlens_host": "ints"},
            arch="12.0",
            capability=_CONSUMER,
        )
        for name in (
            "minimax_h3_sm120_varlen_attention_fp8",
            "minimax_h3_sm120_varlen_attention_nvfp4",
            "minimax_h3_sm120_varlen_attention_nvfp4_nodelta",
        )
    ),
    *(
        Op(
            name,
            example,
            out=("out",),
            # Likewise.
            fake=_attended,
            annotations={"cu_seqlens_host": "ints"},
            module="flashinfer.prefill",
            capability=_BLACKWELL,
        )
        for name, example in (
            ("minimax_h3_varlen_attention", _h3_packed),
            ("minimax_h3_varlen_fp8_attention", _h3_packed_fp8),
            ("minimax_h3_varlen_fp8_attention_bf16", _h3_packed),
            ("minimax_h3_varlen_nvfp4_attention", _h3_packed),
        )
    ),
    *(
        Op(
            name,
            example,
            f"({', '.join(['Tensor'] * 6)})",
            results=_with_scales,
            named="MiniMaxH3PreAttentionOutput",
            mutates=_H3_ACTIVATIONS,
            out=_H3_OUT,
            arch="12.0",
            capability=_CONSUMER,
        )
        for name, example in (
            ("minimax_h3_fp8_pre_attention", _h3_projected_fp8),
            ("minimax_h3_nvfp4_pre_attention", _h3_projected_fp4),
        )
    ),
    Op(
        "sm110_attention",
        _xqa_sm110,
        function="attention",
        module="flashinfer.sm110_xqa",
        out=("out",),
        mutates=("workspace",),
        # Likewise.
        fake=_attended,
        keywords=tuple(_XQA_SM110),
        annotations=_XQA_SM110,
        arch="11.0",
        capability=(11, 0),
        newest=(11, 0),
    ),
)

_NO_KERNELS = "the released package lacks the list of its kernels, so every call raises"
UNCOVERED: tuple[Uncovered, ...] = (
    Uncovered("sm110_gqa_decode", _NO_KERNELS),
    Uncovered("launch_sm110_gqa_decode_prepared", _NO_KERNELS),
    Uncovered(
        "split_varlen_input", "its result is as long as numbers say that it reads on the host"
    ),
    Uncovered("run_cake_vsa", "it takes a plan, a dictionary of its own with functions in it"),
)

PASSED_ON = tuple(
    PassedOn(f"cake_batch_{each}", "flashinfer.cake_fmha", f"trtllm_batch_{each}")
    for each in ("decode_with_kv_cache", "context_with_kv_cache")
)

TRACES: tuple[Traces, ...] = ()
