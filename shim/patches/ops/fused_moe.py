"""Mixture of experts: routing, and the experts' two products in one call."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ...opaque.declare import Example, GivenBack, MakeTensor, Op, Uncovered

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


def _bf16_rows(make: MakeTensor, m: int) -> dict[str, Any]:
    weights = {
        "gemm1_weights": make(_EXPERTS, 2 * _INNER, _HIDDEN),
        "gemm2_weights": make(_EXPERTS, _HIDDEN, _INNER),
    }
    return {"hidden_states": make(m, _HIDDEN), **weights}


def _fp8_blocks(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "hidden_states": make(m, _HIDDEN, dtype=_FP8),
        "hidden_states_scale": make(_HIDDEN // 128, m, dtype=_SCALE),
        **_weights(make, _FP8),
        **_scales(make, _SCALE, 128, 128),
    }


def _fp8_shuffled(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_fp8_blocks(make, m), "use_shuffled_weight": True}


def _fp8_tensors(make: MakeTensor, m: int) -> dict[str, Any]:
    names = ("output1_scales_scalar", "output1_scales_gate_scalar", "output2_scales_scalar")
    core = import_module("flashinfer.fused_moe.core")
    # 0.6.3 takes the member of the enum alone, though its own default is a number.
    activation = {"activation_type": core.ActivationType.Swiglu}
    known = inspect.signature(core.trtllm_fp8_per_tensor_scale_moe).parameters
    return {
        **{name: value for name, value in activation.items() if name in known},
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


def _trtllm(name: str, rest: Any, *, always_list: bool = False, **declared: Any) -> Op:
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
        # What it returns beside the output has no form that all kernels share.
        annotations={"gemm1_lora_delta": "None", **declared.pop("annotations", {})},
        fake=functools.partial(_unfinished_or_not, "_fp4_" in name),
        capability=_SM100,
        also={"tile_tokens_dim": 8, "routed_scaling_factor": None},
        **declared,
    )


_HALVED = ("gemm1_weights", "gemm2_weights", "gemm1_weights_scale", "gemm2_weights_scale")


def _parted(name: str, weights: str, rest: Any, **declared: Any) -> Op:
    """Likewise on two parts of a device, each with a stream of its own and half of the weights."""
    whole = _trtllm(name, rest, requires=("cutlass",), **declared)

    def example(make: MakeTensor, m: int) -> dict[str, Any]:
        found = dict(whole.example(make, m))
        for key in found.keys() & set(_HALVED):
            found[key] = [half.contiguous() for half in found[key].chunk(2, 1)]
        return {
            **found,
            **{"topk_ids": None, weights: None},
            "partition_resources": _parts(),
            "partition_strategy": "tp_n_tp_n",
        }

    return dataclasses.replace(
        whole,
        example=example,
        annotations={
            **whole.annotations,
            **dict.fromkeys(_HALVED, "Tensors"),
            "partition_resources": "object",
        },
        capability=(10, 7),
        newest=(10, 7),
        arch="10.7",
    )


@functools.cache  # each has graphs of its own
def _parts() -> Any:
    """Two streams of no device, in place of those of two parts of one."""
    stream = types.SimpleNamespace(cuda_stream=0)
    module = import_module("flashinfer.prims_ts.moe.partition")
    return module.MoePartitionResources((stream, stream))


def _fp4_halves(make: MakeTensor, m: int) -> dict[str, Any]:
    return {key: value for key, value in _fp4(make, m).items() if value is not None}


def _mxfp8(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "hidden_states": make(m, _HIDDEN, dtype=_FP8),
        "hidden_states_scale": make(m, _HIDDEN // 32, dtype="uint8"),
        **_weights(make, _FP8),
        **_scales(make, "uint8", 1, 32),
    }


_WITHOUT_BIAS = (
    *("trtllm_bf16_routed_moe", "trtllm_mxint4_block_scale_routed_moe"),
    "prims_ts_bf16_routed_moe",
)


def _by_itself(given: Mapping[str, Any]) -> int | list[int]:
    return 1 if _finished(given) else [3]


def _always_list(given: Mapping[str, Any]) -> int | list[int]:
    # Before it could be left unfinished, it came by itself.
    if "do_finalize" not in given:
        return 1
    return [1] if _finished(given) else [3]


def _finished(given: Mapping[str, Any]) -> bool:
    finished: bool = given.get("do_finalize", True)
    if not finished and given.get("output") is not None:
        raise TypeError("output cannot be given in a compiled graph where do_finalize is False")
    return finished


# In most releases their library makes what they return, not their Python.
def _unfinished_or_not(
    is_fp4: bool,
    *,
    hidden_states: Any,
    top_k: int,
    do_finalize: bool = True,
    routing_logits: Any = None,
    topk_ids: Any = None,
    num_fused_shared_experts: int | None = None,
    output: Any = None,
    valid_hidden_size: int | None = None,
    **_: object,
) -> tuple[Any, ...]:
    """What a kernel of trtllm returns.

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
    chosen = top_k + (num_fused_shared_experts or 0)
    if isinstance(topk_ids, tuple):
        weights = torch.empty_like(topk_ids[1])
    else:
        like_logits = routing_logits is not None and _weights_are_like_logits(is_fp4)
        kind = routing_logits.dtype if like_logits else bfloat16
        weights = hidden_states.new_empty((rows, chosen), dtype=kind)
    return (
        hidden_states.new_empty((padded, hidden), dtype=bfloat16),
        weights,
        hidden_states.new_empty((rows * chosen,), dtype=_dtype("int32")),
    )


def _weights_are_like_logits(is_fp4: bool) -> bool:
    """Whether the weights of experts have the dtype of the logits, or are bfloat16 throughout."""
    from packaging.version import Version

    release = Version(import_module("flashinfer").__version__)
    if is_fp4:
        return release < Version("0.6.15")
    return Version("0.6.8") <= release < Version("0.6.16")


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
        "sorted_token_ids": make(_TOP_K * m, dtype="int64"),
        "expert_ids": make(_TOP_K * m, dtype="int64"),
        "lora_indices": make(m, dtype="int64"),
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
        "topk_weights": make(_TOP_K * m, dtype=_SCALE),
        "slice_start_loc": make(1, dtype="int64"),
        "output_slices": [_HIDDEN],
        "lora_stride": _RANK * _HIDDEN,
    }


def _adapted(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "x": make(m, _HIDDEN),
        "lora_a_weights": [make(1, _EXPERTS, _RANK, _HIDDEN)],
        "lora_b_weights": [make(1, _EXPERTS, _HIDDEN, _RANK)],
        **_adapters(make, m),
        "topk_weights": make(_TOP_K * m, dtype=_SCALE),
        "num_experts": _EXPERTS,
    }


def _pointers(make: MakeTensor, m: int, slices: int) -> dict[str, Any]:
    """Tables of the addresses of the adapters' weights, and whose they are."""
    return {
        "w_ptr_a": make(slices, _EXPERTS, dtype="int64"),
        "lora_stride_a": _RANK * _HIDDEN,
        "w_ptr_b": make(slices, _EXPERTS, dtype="int64"),
        "lora_stride_b": _RANK * _INNER,
        "topk_ids": make(m, _TOP_K, dtype="int32"),
        "lora_ids": make(m, dtype="int32"),
        "rank": _RANK,
    }


def _first_delta(make: MakeTensor, m: int) -> dict[str, Any]:
    states = {"hidden_states": make(m, _HIDDEN), "intermediate_size": _INNER}
    return {**states, **_pointers(make, m, 2)}


def _second_delta(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "gemm1_activation_output": make(_TOP_K * m, _INNER),
        "expanded_idx_to_permuted_idx": make(_TOP_K * m, dtype="int32", values="range"),
        **_pointers(make, m, 1),
        "topk_weights": make(m, _TOP_K, dtype=_SCALE),
        "hidden_size": _HIDDEN,
    }


# It picks rows by a mask: without data nobody knows how many that are.
def _second_delta_alike(
    *, topk_ids: Any, hidden_size: int, out_dtype: Any = None, **_: object
) -> Any:
    kind = _dtype("bfloat16") if out_dtype is None else out_dtype
    return topk_ids.new_empty((topk_ids.shape[0], hidden_size), dtype=kind)


def _chosen(make: MakeTensor, m: int) -> dict[str, Any]:
    """The experts of each token, and of all."""
    return {
        "token_selected_experts": make(m, _TOP_K, dtype="int32"),
        "token_final_scales": make(m, _TOP_K, dtype=_SCALE),
        "num_experts": _EXPERTS,
        "top_k": _TOP_K,
    }


def _tiled_scales(make: MakeTensor, rows: int, columns: int) -> Any:
    """Scales of the experts' matrices, in the order in which tensor cores take them."""
    made = make(_EXPERTS, -(-rows // 128), -(-columns // 4), 32, 4, 4, dtype="uint8")
    return made.permute(3, 4, 1, 5, 2, 0)


def _cute_weights(make: MakeTensor, block: int) -> dict[str, Any]:
    return {
        "w1_weight": make(_EXPERTS, 2 * _INNER, _HIDDEN // 2, dtype="uint8"),
        "w1_weight_sf": _tiled_scales(make, 2 * _INNER, _HIDDEN // block),
        "w1_alpha": make(_EXPERTS, dtype=_SCALE),
        "w2_weight": make(_EXPERTS, _HIDDEN, _INNER // 2, dtype="uint8"),
        "w2_weight_sf": _tiled_scales(make, _HIDDEN, _INNER // block),
        "w2_alpha": make(_EXPERTS, dtype=_SCALE),
    }


def _cute_fp4(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "x": make(m, _HIDDEN // 2, dtype="uint8"),
        "x_sf": make(m, _HIDDEN // 16, dtype="uint8"),
        **_cute_weights(make, 16),
        "fc2_input_scale": make(1, dtype=_SCALE),
        **_chosen(make, m),
    }


def _cute_fp8(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "x": make(m, _HIDDEN, dtype=_FP8),
        "x_sf": make(m, _HIDDEN // 32, dtype="uint8"),
        **_cute_weights(make, 32),
        **_chosen(make, m),
    }


def _cute_bf16(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "x": make(m, _HIDDEN),
        "w1_weight": make(_EXPERTS, 2 * _INNER, _HIDDEN),
        "w2_weight": make(_EXPERTS, _HIDDEN, _INNER),
        **_chosen(make, m),
    }


def _b12x(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "x": make(m, _HIDDEN),
        **_cute_weights(make, 16),
        "fc2_input_scale": make(1, dtype=_SCALE),
        **_chosen(make, m),
    }


def _padded(m: int) -> int:
    """Rows of scales, which begin at a multiple of four for every expert."""
    return (m + 3 * _EXPERTS) // 4 * 4


def _grouped_fp8(make: MakeTensor, m: int, rows: int, columns: int) -> dict[str, Any]:
    return {
        "a_q": make(m, columns, dtype=_FP8),
        "a_scale": make(columns // 128, _padded(m), dtype=_SCALE),
        "b_q": make(_EXPERTS, rows, columns, dtype=_FP8),
        "b_scale": make(_EXPERTS, columns // 128, rows // 128, dtype=_SCALE),
        "m_indptr": make(_EXPERTS + 1, dtype="int32"),
    }


def _grouped_fp4(make: MakeTensor, m: int, rows: int, columns: int) -> dict[str, Any]:
    return {
        "a_q": make(m, columns, dtype=_FP8),
        "a_scale": make(-(-columns // 512), 4 * _padded(m), dtype="uint8"),
        "b_q": make(_EXPERTS, rows, columns // 2, dtype="uint8"),
        "b_scale": make(_EXPERTS, columns // 128, 4 * rows, dtype="uint8"),
        "m_indptr": make(_EXPERTS + 1, dtype="int32"),
    }


def _sm12x(name: str, kind: str, **declared: Any) -> Op:
    """One step of the experts' products on SM12x, by rows that lie in the experts' order."""
    grouped = _grouped_fp8 if kind == "fp8" else _grouped_fp4

    def first(make: MakeTensor, m: int) -> dict[str, Any]:
        return grouped(make, m, 2 * _INNER, _HIDDEN)

    def second(make: MakeTensor, m: int) -> dict[str, Any]:
        return {
            **grouped(make, m, _HIDDEN, _INNER),
            "src_token": make(m, dtype="int32"),
            "pair_scales": make(m, dtype=_SCALE),
            "num_tokens": m,
        }

    tensors = ("a_q", "a_scale", "b_q", "b_scale", "m_indptr", "src_token", "pair_scales")
    return Op(
        f"cute_dsl_sm12x_{name}_{kind}",
        second if name == "fc2_finalize" else first,
        annotations=dict.fromkeys(tensors, "Tensor"),
        requires=("cutlass", "triton"),
        capability=(12, 0),
        arch="12.0",
        **declared,
    )


def _planned(make: MakeTensor, blocks: int) -> dict[str, Any]:
    """Which pairs of tokens and experts each block of eight rows is for."""
    return {
        "sorted_token_ids": make(8 * blocks, dtype="int32"),
        "expert_ids": make(blocks, dtype="int32"),
        "num_tokens_post_padded": make(1, dtype="int32"),
    }


def _alpha_fp8(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "hidden_states": make(m, _HIDDEN, dtype=_FP8),
        "hidden_states_scale": make(m, _HIDDEN // 128, dtype=_SCALE),
        **_weights(make, _FP8),
        **_scales(make, _SCALE, 128, 128),
        **_planned(make, _TOP_K * m),
        "topk_weights": make(m, _TOP_K, dtype=_SCALE),
        "top_k": _TOP_K,
    }


def _alpha_fp4(make: MakeTensor, m: int, experts: int, top_k: int) -> dict[str, Any]:
    names = ("output1_scale_gate_scalar", "output1_scale_scalar", "output2_scale_scalar")
    return {
        "hidden_states": make(m, _HIDDEN // 2, dtype="uint8"),
        "hidden_states_scale": make(m, _HIDDEN // 16, dtype=_FP8),
        "gemm1_weights": make(experts, 256, _HIDDEN // 2, dtype="uint8"),
        "gemm1_weights_scale": make(experts, 256, _HIDDEN // 16, dtype=_FP8),
        "gemm2_weights": make(experts, _HIDDEN, 64, dtype="uint8"),
        "gemm2_weights_scale": make(experts, _HIDDEN, 8, dtype=_FP8),
        **{name: make(experts, dtype=_SCALE) for name in names},
        **_planned(make, top_k * m),
        "topk_weights": make(m, top_k, dtype=_SCALE),
        "out": make(m, _HIDDEN),
        "top_k": top_k,
    }


def _alpha_aligned(make: MakeTensor, m: int) -> dict[str, Any]:
    return _alpha_fp4(make, m, _EXPERTS, _TOP_K)


def _alpha_routed(make: MakeTensor, m: int) -> dict[str, Any]:
    # Of small sizes it takes 1 or 8 tokens, and 8 of 256 or 512 experts.
    return {
        **_alpha_fp4(make, 8, 256, 8),
        "topk_ids": make(8, 8, dtype="int32"),
        "cumsum_buffer": make(258, dtype="int32"),
    }


def _wrapped(make: MakeTensor, m: int, kind: str, example: Example, name: str = "") -> Any:
    """A call of ``run`` of a wrapper, which holds what is the same in every call."""
    arguments = dict(example(make, m))
    sizes = {name: arguments.pop(name) for name in ("num_experts", "top_k")}
    module = import_module(f"flashinfer.fused_moe.cute_dsl{name}")
    wrapper = getattr(module, kind)(**sizes, hidden_size=_HIDDEN, intermediate_size=_INNER)
    return {"self": wrapper, **arguments}


def _logits_alone(make: MakeTensor, m: int, experts: int) -> dict[str, Any]:
    return {"logits": make(m, experts, dtype=_SCALE), "block_m": 8}


def _planned_result(number: int) -> GivenBack:
    """The tensor of this number in a plan that is given."""

    def planned(given: Mapping[str, Any]) -> Any:
        plan = given.get("plan")
        return None if plan is None else plan[number]

    return planned


def _blocks(tokens: Any, chosen: int, experts: int, block: int) -> Any:
    """How many blocks of tokens there can be, each of them for one expert."""
    from ...opaque.symbolic import BUILTINS

    pairs = tokens * chosen
    met = BUILTINS["min"](experts, pairs)
    return met + (pairs - met) // block


def _kimi_routes(*, logits: Any, block_m: int = 8, **_: object) -> tuple[Any, ...]:
    tokens, experts = logits.shape
    blocks = _blocks(tokens, 16, experts, block_m)

    def whole(*size: Any) -> Any:
        return logits.new_empty(size, dtype=_dtype("int32"))

    return (
        logits.new_empty((tokens, 16), dtype=_dtype(_SCALE)),
        *(whole(tokens, 16), whole(blocks * block_m), whole(blocks), whole(1)),
        *(whole(experts), whole(experts + 1), whole(experts)),
    )


def _routing(make: MakeTensor, m: int) -> dict[str, Any]:
    method = import_module("flashinfer.fused_moe").RoutingMethodType.Renormalize
    return {
        "routing_logits": make(m, 64),
        "routing_bias": None,
        "routing_method": method,
        "top_k": 8,
    }


def _routed_like(
    *,
    routing_logits: Any,
    top_k: int,
    num_fused_shared_experts: int = 0,
    tile_tokens_dim: int = 8,
    **_: object,
) -> tuple[Any, ...]:
    tokens, experts = routing_logits.shape
    chosen = top_k + num_fused_shared_experts
    blocks = _blocks(tokens, chosen, experts + num_fused_shared_experts, tile_tokens_dim)

    def whole(*size: Any) -> Any:
        return routing_logits.new_empty(size, dtype=_dtype("int32"))

    return (
        whole(tokens, chosen),
        routing_logits.new_empty((tokens, chosen), dtype=_dtype("bfloat16")),
        *(whole(1), whole(tokens, chosen), whole(blocks * tile_tokens_dim)),
        *(whole(blocks), whole(blocks), whole(1)),
    )


def _wrapped_like(wrapper: Any, *, x: Any, token_selected_experts: Any, **_: object) -> Any:
    size = (token_selected_experts.shape[0], wrapper.hidden_size)
    return x.new_empty(size, dtype=_dtype("bfloat16"))


def _frost(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "grouped_tokens": make(m, _HIDDEN),
        **{name: make(_EXPERTS, _INNER, _HIDDEN) for name in ("gate_weights", "up_weights")},
        "first_token_offset": make(_EXPERTS + 1, dtype="int32"),
        "scale": make(1, dtype=_SCALE),
        "workspace": make(1 << 20, dtype="uint8"),
    }


def _frost_like(*, grouped_tokens: Any, gate_weights: Any, **_: object) -> Any:
    size = (grouped_tokens.shape[0], gate_weights.shape[1])
    return grouped_tokens.new_empty(size, dtype=_dtype("bfloat16"))


def _mono(make: MakeTensor, m: int) -> dict[str, Any]:
    """Of the one size that there is a kernel for, with fewer tokens than the eight that it takes.

    Weights of nothing: to draw as many numbers takes longer than all else.
    """
    experts, inner, hidden, m = 256, 512, 2048, min(m, 7)

    def weights(rows: int, columns: int) -> Any:
        return make(experts, rows, columns, dtype="uint8").view(_dtype(_FP8))

    return {
        "activations_in": make(m, hidden),
        "router_logits": make(m, experts),
        "expert_weights_up": weights(2 * inner, hidden),
        "expert_scales_up": make(experts, 2 * inner // 128, hidden // 128, dtype=_SCALE),
        "expert_weights_down": weights(hidden, inner),
        "expert_scales_down": make(experts, hidden // 128, inner // 128, dtype=_SCALE),
        "top_k": 8,
        "scratchpad": make(1 << 20, dtype="uint8"),
        "interleave_up": False,
    }


#: What a router returns: which experts each token takes, and in which order.
_PLAN = f"({', '.join(['Tensor'] * 8)})"
_KIMI_PLAN = "flashinfer.experimental.kimi_k3_fused_router.cake_backend.KimiK3RoutePlan"

_SM12X = ("fp8", "mxfp8_mxfp4")
_CUTE: dict[str, Any] = {"out": ("moe_output",), "requires": ("cutlass", "triton")}
#: What the results of their wrappers depend on, besides the tensors given.
_WRAPPED: dict[str, Any] = {
    "state": ("hidden_size", "output_dtype"),
    "requires": ("cutlass", "triton"),
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
    _trtllm(
        "trtllm_fp8_per_tensor_scale_moe",
        _fp8_tensors,
        annotations={"activation_type": "flashinfer.fused_moe.core.ActivationType"},
    ),
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
    Op(
        "trtllm_gen_routing",
        _routing,
        _PLAN,
        annotations={"routing_method": "flashinfer.fused_moe.RoutingMethodType"},
        # In shadow it asks whether there are more pairs than experts.
        fake=_routed_like,
        capability=_SM100,
    ),
    Op(
        "alphamoe_fused_router",
        lambda make, m: {**_logits_alone(make, m, 256), "top_k": 8},
        _PLAN,
        mutates=("plan",),
        inputs={i: _planned_result(i) for i in range(8)},
        capability=_SM100,
        newest=(10, 3),
    ),
    Op(
        "kimi_k3_fused_router",
        lambda make, m: {**_logits_alone(make, m, 896), "bias": make(896, dtype=_SCALE)},
        _PLAN,
        mutates=("plan",),
        inputs={i: _planned_result(i) for i in range(8)},
        named=_KIMI_PLAN,
        annotations={"plan": _KIMI_PLAN},
        # In shadow it looks up a program for the number of tokens.
        fake=_kimi_routes,
        capability=_SM100,
        newest=(10, 3),
    ),
    Op("bgmv_moe_shrink", _shrink, "()", mutates=("y",)),
    Op("bgmv_moe_expand", _expand, "()", mutates=("y",)),
    Op("bgmv_moe", _adapted),
    Op("bgmv_moe_gemm1_lora_delta", _first_delta),
    Op("bgmv_moe_gemm2_lora_delta", _second_delta, fake=_second_delta_alike),
    Op("cute_dsl_fused_moe", _cute_fp4, capability=_SM100, **_CUTE),
    Op("cute_dsl_fused_moe_nvfp4", _cute_fp4, capability=_SM100, **_CUTE),
    Op("cute_dsl_fused_moe_mxfp8_mxfp4", _cute_fp8, capability=_SM100, **_CUTE),
    Op(
        "cute_dsl_fused_moe_bf16",
        _cute_bf16,
        mutates=("intermediate_buffer",),
        capability=(9, 0),
        arch="9.0",
        **_CUTE,
    ),
    Op(
        "b12x_fused_moe",
        _b12x,
        out=("output",),
        requires=("cutlass", "triton"),
        capability=(12, 0),
        arch="12.0",
    ),
    Op(
        "CuteDslMoEWrapper.run",
        lambda make, m: _wrapped(make, m, "CuteDslMoEWrapper", _cute_fp4),
        capability=_SM100,
        **_WRAPPED,
    ),
    Op(
        "CuteDslMxfp8Mxfp4MoEWrapper.run",
        lambda make, m: _wrapped(make, m, "CuteDslMxfp8Mxfp4MoEWrapper", _cute_fp8),
        # In 0.6.18 it binds itself to the stream of its first call.
        fake=_wrapped_like,
        capability=_SM100,
        **_WRAPPED,
    ),
    Op(
        "B12xMoEWrapper.run",
        lambda make, m: _wrapped(make, m, "B12xMoEWrapper", _b12x, ".b12x_moe"),
        capability=(12, 0),
        arch="12.0",
        **_WRAPPED,
    ),
    Op(
        "mono_moe",
        _mono,
        mutates=("scratchpad",),
        out=("out",),
        capability=(9, 0),
        newest=(9, 0),
        arch="9.0",
    ),
    Op(
        "cudnn_frost_grouped_gemm1_swiglu",
        _frost,
        mutates=("workspace",),
        out=("out",),
        # In shadow it looks for kernels that are made for the sizes.
        fake=_frost_like,
        annotations={"tactic": "int"},
        requires=("cutlass",),
        capability=_SM100,
    ),
    *(_sm12x("fc1_act", kind) for kind in _SM12X),
    *(
        _sm12x("fc1_act_q1", kind, returns="(Tensor, Tensor)", out=("out_q", "out_sf"))
        for kind in _SM12X
    ),
    *(_sm12x("fc2_finalize", kind, out=("out",)) for kind in _SM12X),
    Op("alphamoe_fp8_block_scale_aligned_moe", _alpha_fp8, out=("out",), capability=_SM100),
    Op("alphamoe_nvfp4_aligned_moe", _alpha_aligned, "()", mutates=("out",), capability=_SM100),
    Op(
        "alphamoe_nvfp4_routed_moe",
        _alpha_routed,
        mutates=("sorted_token_ids", "expert_ids", "num_tokens_post_padded", "cumsum_buffer"),
        out=("out",),
        capability=_SM100,
    ),
    _trtllm("prims_ts_bf16_moe", _bf16_rows, requires=("cutlass",)),
    _trtllm("prims_ts_bf16_routed_moe", _bf16_rows, requires=("cutlass",)),
    _trtllm("prims_ts_fp8_block_scale_moe", _fp8_shuffled, requires=("cutlass",)),
    _trtllm("prims_ts_fp8_block_scale_routed_moe", _fp8_shuffled, requires=("cutlass",)),
    _trtllm("prims_ts_fp8_per_tensor_scale_moe", _fp8_tensors, requires=("cutlass",)),
    _trtllm("prims_ts_fp4_block_scale_moe", _fp4, always_list=True, requires=("cutlass",)),
    _trtllm("prims_ts_fp4_block_scale_routed_moe", _fp4, always_list=True, requires=("cutlass",)),
    _parted("prims_ts_bf16_moe_partitioned", "expert_weights", _bf16_rows),
    _parted("prims_ts_fp8_block_scale_moe_partitioned", "expert_weights", _mxfp8),
    _parted("prims_ts_fp8_per_tensor_scale_moe_partitioned", "expert_weights", _fp8_tensors),
    _parted(
        *("prims_ts_fp4_block_scale_moe_partitioned", "topk_weights", _fp4_halves),
        always_list=True,
    ),
)

_STAGED = (
    "it reads what was staged in memory that several GPUs share, held by an object of a class of "
    "its own"
)

UNCOVERED = (
    Uncovered(
        "alphamoe_nvfp4_routed_moe_deferred",
        "it returns an object of its own class, which tells what ran and so what is left to do",
    ),
    Uncovered(
        "alphamoe_nvfp4_finalize_deferred",
        "it takes an object of its own class, which tells what is left to do",
    ),
    Uncovered(
        "populate_trtllm_moe_routing_metadata_",
        "it writes into tensors that an object holds, where no compiler sees what it changes",
    ),
    Uncovered("nvfp4_mega_moe", _STAGED),
    Uncovered("mxfp4_mega_moe", _STAGED),
    Uncovered("run_split_kernel", "it takes its kernel's configuration and inputs as objects"),
)
