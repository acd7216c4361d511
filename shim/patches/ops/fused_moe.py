"""Mixture of experts: routing, and the experts' two products in one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...opaque.declare import MakeTensor, Op, Uncovered

_EXPERTS, _TOP_K, _HIDDEN, _INNER = 6, 2, 256, 384
_RANK = 16
_FP8, _SCALE = "float8_e4m3fn", "float32"
_SM100 = (10, 0)

#: Of every kernel of trtllm: which experts there are, and how a token's are chosen.
_ROUTING = {
    "num_experts": _EXPERTS,
    "top_k": _TOP_K,
    "n_group": None,
    "topk_group": None,
    "intermediate_size": _INNER,
    "local_expert_offset": 0,
    "local_num_experts": _EXPERTS,
    "routed_scaling_factor": None,
    "routing_method_type": 1,
}
_LOGITS_MUTATE = ("routing_replay_out", "workspace_buffer")


def _dtype(name: str) -> Any:
    import torch  # declarations are read without torch

    return getattr(torch, name)


def _cutlass(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "input": make(m, _HIDDEN),
        "token_selected_experts": make(m, _TOP_K, dtype="int32"),
        "token_final_scales": make(m, _TOP_K, dtype=_SCALE),
        "fc1_expert_weights": make(_EXPERTS, 2 * _INNER, _HIDDEN),
        "fc2_expert_weights": make(_EXPERTS, _HIDDEN, _INNER),
        "output_dtype": _dtype("bfloat16"),
        "quant_scales": [],
    }


def _logits(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"routing_logits": make(m, _EXPERTS), "routing_bias": None, **_ROUTING}


def _routed(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"topk_ids": make(m, _TOP_K, dtype="int32"), "routing_bias": None, **_ROUTING}


def _weights(make: MakeTensor, dtype: str, packed: int = 1) -> dict[str, Any]:
    return {
        "gemm1_weights": make(_EXPERTS, 2 * _INNER, _HIDDEN // packed, dtype=dtype),
        "gemm2_weights": make(_EXPERTS, _HIDDEN, _INNER // packed, dtype=dtype),
    }


def _scales(make: MakeTensor, dtype: str, rows: int, columns: int) -> dict[str, Any]:
    """Of the weights, one for each block of so many rows and columns."""
    return {
        "gemm1_weights_scale": make(_EXPERTS, 2 * _INNER // rows, _HIDDEN // columns, dtype=dtype),
        "gemm2_weights_scale": make(_EXPERTS, _HIDDEN // rows, _INNER // columns, dtype=dtype),
    }


def _bf16(make: MakeTensor, m: int) -> dict[str, Any]:
    blocks = {
        "gemm1_weights": make(_EXPERTS, _HIDDEN // 64, 2 * _INNER, 64),
        "gemm2_weights": make(_EXPERTS, _INNER // 64, _HIDDEN, 64),
    }
    return {"hidden_states": make(m, _HIDDEN), **blocks}


def _fp8_blocks(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "hidden_states": make(m, _HIDDEN, dtype=_FP8),
        "hidden_states_scale": make(_HIDDEN // 128, m, dtype=_SCALE),
        **_weights(make, _FP8),
        **_scales(make, _SCALE, 128, 128),
    }


def _fp8_tensors(make: MakeTensor, m: int) -> dict[str, Any]:
    names = ("output1_scales_scalar", "output1_scales_gate_scalar", "output2_scales_scalar")
    return {
        "hidden_states": make(m, _HIDDEN, dtype=_FP8),
        **_weights(make, _FP8),
        **{name: make(_EXPERTS, dtype=_SCALE) for name in names},
        "use_routing_scales_on_input": False,
    }


def _fp8_channels(make: MakeTensor, m: int) -> dict[str, Any]:
    names = ("output1_scale_scalar", "output1_scale_gate_scalar", "output2_scale_scalar")
    return {
        "hidden_states": make(m, _HIDDEN, dtype=_FP8),
        "hidden_states_scale": make(m, 1, dtype=_SCALE),
        **_weights(make, _FP8),
        "gemm1_per_channel_weight_scale": make(_EXPERTS, 2 * _INNER, dtype=_SCALE),
        "gemm2_per_channel_weight_scale": make(_EXPERTS, _HIDDEN, dtype=_SCALE),
        **{name: make(_EXPERTS, dtype=_SCALE) for name in names},
        "use_routing_scales_on_input": False,
    }


_SWIGLU = dict.fromkeys(("gemm1_alpha", "gemm1_beta", "gemm1_clamp_limit"))


def _fp4(make: MakeTensor, m: int) -> dict[str, Any]:
    names = ("output1_scale_scalar", "output1_scale_gate_scalar", "output2_scale_scalar")
    return {
        "hidden_states": make(m, _HIDDEN // 2, dtype="uint8"),
        "hidden_states_scale": make(m, _HIDDEN // 16, dtype=_FP8),
        **_weights(make, "uint8", packed=2),
        **_scales(make, _FP8, 1, 16),
        "gemm1_bias": None,
        "gemm2_bias": None,
        **_SWIGLU,
        **{name: make(_EXPERTS, dtype=_SCALE) for name in names},
    }


def _int4(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "hidden_states": make(m, _HIDDEN),
        **_weights(make, "uint8", packed=2),
        **_scales(make, "bfloat16", 1, 32),
        **_SWIGLU,
    }


def _trtllm(name: str, rest: Any, *, always_list: bool = False) -> Op:
    routed = "_routed_" in name

    def example(make: MakeTensor, m: int) -> dict[str, Any]:
        found = {**(_routed if routed else _logits)(make, m), **rest(make, m)}
        if name in _WITHOUT_BIAS:
            del found["routing_bias"]
        return found

    return Op(
        name,
        example,
        "(Tensor, Tensor, Tensor)",
        results=_always_list if always_list else _by_itself,
        mutates=_LOGITS_MUTATE,
        out=("output",),
        annotations={"gemm1_lora_delta": "None"},
        fake=_unfinished_or_not,
        capability=_SM100,
        also={"tile_tokens_dim": 8},
    )


_WITHOUT_BIAS = ("trtllm_bf16_routed_moe", "trtllm_mxint4_block_scale_routed_moe")


def _by_itself(given: Mapping[str, Any]) -> int | list[int]:
    return 1 if _finished(given) else [3]


def _always_list(given: Mapping[str, Any]) -> list[int]:
    return [1] if _finished(given) else [3]


def _finished(given: Mapping[str, Any]) -> bool:
    finished: bool = given.get("do_finalize", True)
    if not finished and given.get("output") is not None:
        raise TypeError("output cannot be given in a compiled graph where do_finalize is False")
    return finished


def _unfinished_or_not(
    *,
    hidden_states: Any,
    top_k: int,
    do_finalize: bool = True,
    routing_logits: Any = None,
    output: Any = None,
    valid_hidden_size: int | None = None,
    **_: object,
) -> tuple[Any, ...]:
    """What a kernel of trtllm returns: in most releases its library makes it, not its Python.

    How many rows there are before the experts' outputs are summed up depends on the tile that the
    autotuner has chosen.
    """
    rows, hidden = hidden_states.shape[0], hidden_states.shape[-1]
    if hidden_states.dtype == _dtype("uint8"):
        hidden = 2 * hidden
    bfloat16 = _dtype("bfloat16")
    if do_finalize:
        width = hidden if valid_hidden_size is None else valid_hidden_size
        width = width if output is None else output.shape[1]
        return (hidden_states.new_empty((rows, width), dtype=bfloat16),)
    import torch

    padded = torch.library.get_ctx().new_dynamic_size()
    kind = bfloat16 if routing_logits is None else routing_logits.dtype
    return (
        hidden_states.new_empty((padded, hidden), dtype=bfloat16),
        hidden_states.new_empty((rows, top_k), dtype=kind),
        hidden_states.new_empty((rows * top_k,), dtype=_dtype("int32")),
    )


def _topk(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "scores": make(m, 256, dtype=_SCALE),
        "bias": make(256, dtype=_SCALE),
        "n_group": 8,
        "topk_group": 4,
        "topk": 8,
        "routed_scaling_factor": 2.5,
        "topk_values": make(m, 8, dtype=_SCALE),
        "topk_indices": make(m, 8, dtype="int32"),
    }


def _hash(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "router_logits": make(m, 256, dtype=_SCALE),
        "input_ids": make(m, dtype="int64"),
        "tid2eid": make(1024, 8, dtype="int32"),
    }


def _adapters(make: MakeTensor, m: int) -> dict[str, Any]:
    """What tells the pairs of tokens and experts which adapters they take."""
    return {
        "sorted_token_ids": make(_TOP_K * m, dtype="int32"),
        "expert_ids": make(_TOP_K * m, dtype="int32"),
        "lora_indices": make(m, dtype="int32"),
    }


def _shrink(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "y": make(1, _TOP_K * m, _RANK),
        "x": make(m, _HIDDEN),
        "w_ptr": make(1, _EXPERTS, dtype="int64"),
        **_adapters(make, m),
        "lora_stride": _RANK * _HIDDEN,
    }


def _expand(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "y": make(m, _HIDDEN, dtype=_SCALE),
        "x": make(1, _TOP_K * m, _RANK),
        "w_ptr": make(1, _EXPERTS, dtype="int64"),
        **_adapters(make, m),
        "topk_weights": make(m, _TOP_K, dtype=_SCALE),
        "slice_start_loc": make(1, dtype="int64"),
        "output_slices": [_HIDDEN],
        "lora_stride": _RANK * _HIDDEN,
    }


OPS = (
    Op(
        "cutlass_fused_moe",
        _cutlass,
        "(Tensor, Tensor, Tensor, Tensor)",
        results=lambda given: 1 if given.get("min_latency_mode") else [4],
        mutates=("workspace_buffer",),
        out=("output",),
        annotations={"quant_scales": "Tensors | None"},
        capability=_SM100,
    ),
    _trtllm("trtllm_bf16_moe", _bf16),
    _trtllm("trtllm_bf16_routed_moe", _bf16),
    _trtllm("trtllm_fp8_block_scale_moe", _fp8_blocks),
    _trtllm("trtllm_fp8_block_scale_routed_moe", _fp8_blocks),
    _trtllm("trtllm_fp8_per_tensor_scale_moe", _fp8_tensors),
    _trtllm("trtllm_fp8_per_tensor_scale_routed_moe", _fp8_tensors),
    _trtllm("trtllm_fp8_per_channel_scale_moe", _fp8_channels),
    _trtllm("trtllm_fp8_per_channel_scale_routed_moe", _fp8_channels),
    _trtllm("trtllm_fp4_block_scale_moe", _fp4, always_list=True),
    _trtllm("trtllm_fp4_block_scale_routed_moe", _fp4, always_list=True),
    _trtllm("trtllm_mxint4_block_scale_moe", _int4, always_list=True),
    _trtllm("trtllm_mxint4_block_scale_routed_moe", _int4, always_list=True),
    Op(
        "fused_topk_deepseek",
        _topk,
        "()",
        mutates=("topk_values", "topk_indices", "routing_replay_out"),
        capability=(9, 0),
    ),
    Op(
        "run_cake_megamoe_topk_reduce",
        lambda make, m: {
            "partials": make(m, 6, 4096),
            "out": make(m, 4096),
            "num_tokens": m,
        },
        "()",
        mutates=("out",),
        capability=(10, 0),
    ),
    Op("hash_topk", _hash, "(Tensor, Tensor)", capability=(9, 0)),
    Op("bgmv_moe_shrink", _shrink, "()", mutates=("y",)),
    Op("bgmv_moe_expand", _expand, "()", mutates=("y",)),
)

UNCOVERED = (
    Uncovered("trtllm_gen_routing", "it returns an object of a class of its own"),
    Uncovered("alphamoe_fused_router", "it returns a plan, an object of a class of its own"),
)
