"""Collectives between cards, and what is fused with them.

An example has what a call of rank 0 of two has, and a workspace that no other card knows: a real
kernel would wait for ever. ``prove`` and the benchmarks on one card leave collectives out.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ...opaque.declare import MakeTensor, Op, Traces, Uncovered

_HIDDEN, _EXPERTS, _TOP_K, _RANKS = 256, 4, 2, 2
_HEADS, _HEAD = 8, 128
#: Rows that the workspaces of examples have room for.
_ROOM = 1024
_HOPPER = (9, 0)
#: ``AllReduceFusionPattern``, of which the numbers are the same in all releases.
_NOTHING_FUSED, _NORM, _MOE_REDUCTION, _MOE_FINALIZE, _OUT_MXFP8 = 0, 1, 6, 7, 14

_OUTPUTS = ("residual_out", "norm_out", "quant_out", "scale_out")
_CODES = dict.fromkeys(("pattern_code", "layout_code"), "int | None")


def _pointers(make: MakeTensor) -> Any:
    """Where the buffers of all ranks lie, and what belongs to them."""
    return make(3 * _RANKS + 1, dtype="int64")


def _rows(make: MakeTensor, m: int, *names: str) -> dict[str, Any]:
    return {name: make(m, _HIDDEN) for name in names}


def _trtllm(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "world_size": _RANKS,
        "world_rank": 0,
        "workspace_ptrs": _pointers(make),
        "launch_with_pdl": True,
        **_rows(make, m, "residual_in", "residual_out", "norm_out"),
    }


def _sized(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_trtllm(make, m),
        "token_num": m,
        "hidden_dim": _HIDDEN,
        "rms_gamma": make(_HIDDEN),
        "rms_eps": 1e-6,
        **dict.fromkeys(("quant_out", "scale_out", "layout_code")),
    }


def _allreduce(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_sized(make, m),
        "allreduce_in": make(m, _HIDDEN),
        "allreduce_out": make(m, _HIDDEN),
        "trigger_completion_at_end": True,
        "fp32_acc": False,
        "pattern_code": _NORM,
        "use_oneshot": True,
        "scale_factor": None,
    }


def _moe_allreduce(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_sized(make, m),
        "scale_factor": 1.0,
        "moe_reduction_device_num_experts": _EXPERTS,
        "moe_reduction_scale_input": make(_EXPERTS, m, dtype="float32"),
        "moe_reduction_active_experts_token_input": make(_EXPERTS, m, _HIDDEN),
        "moe_reduction_token_input": make(m, _HIDDEN),
        "moe_allreduce_out": make(m, _HIDDEN),
    }


def _finalized(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "expanded_idx_to_permuted_idx": make(m, _TOP_K, dtype="int32"),
        "expert_scale_factor": make(m, _TOP_K),
        "shared_expert_output": make(m, _HIDDEN),
    }


def _moe_finalize(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_trtllm(make, m),
        **_finalized(make, m),
        "allreduce_in": make(_TOP_K * m, _HIDDEN),
        "norm_weight": make(_HIDDEN),
        "eps": 1e-6,
    }


def _custom(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_rows(make, m, "inp", "out", "residual", "intermediate_buffer"),
        "tp_size": _RANKS,
        "tp_rank": 0,
        "token_num": m,
        "fusion_op_code": _NORM,
        "strategy_code": 4,  # one-shot
        "config_code": 0,
        "launch_with_pdl": True,
        "flag_value": 1,
        "peer_comm_buffer_ptrs": make(_RANKS, dtype="int64"),
        "peer_barrier_ptrs_in": make(_RANKS, dtype="int64"),
        "peer_barrier_ptrs_out": make(_RANKS, dtype="int64"),
        "weight": make(_HIDDEN),
        "eps": 1e-6,
        "bias": None,
        "weight_pre_residual_norm": None,
        **{f"lamport_peer_comm_buffer_ptrs_{i}": None for i in range(3)},
    }


def _vllm(make: MakeTensor, m: int) -> dict[str, Any]:
    # The handle of its C++ object, and the buffer that the ranks share, are addresses.
    addresses = {"fa": 1 << 40, "reg_buffer": 1 << 41}
    return {
        **addresses,
        **_rows(make, m, "inp", "out"),
        "reg_buffer_sz_bytes": 8 << 20,
        "num_ctas": 36,
    }


@functools.cache
def _fusion_workspace() -> Any:
    """A workspace of rank 0 as its constructor leaves it, without the other ranks."""
    import torch

    kind: Any = import_module("flashinfer.comm.allreduce").TRTLLMAllReduceFusionWorkspace
    workspace = kind.__new__(kind)
    vars(workspace).update(
        world_size=_RANKS,
        rank=0,
        _destroyed=True,  # there is nothing to free
        ipc_handles=[[0] * _RANKS] * 3,
        workspace_tensor=torch.zeros(3 * _RANKS + 1, dtype=torch.int64),
        mem_handles=[],
        metadata={
            "max_token_num": _ROOM,
            "tp_size": _RANKS,
            "hidden_dim": _HIDDEN,
            "use_fp32_lamport": False,
        },
    )
    return workspace


def _fusion(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "input": make(m, _HIDDEN),
        "workspace": _fusion_workspace(),
        "pattern": _NORM,
        **_rows(make, m, "residual_in", "residual_out", "norm_out"),
        "rms_gamma": make(_HIDDEN),
        "use_oneshot": True,
    }


def _first(given: Mapping[str, Any], *names: str) -> str:
    """The first of the arguments that the call has; empty if it has none."""
    for name in names:
        if given.get(name) is not None:
            return name
    return ""


def _furthest(given: Mapping[str, Any]) -> str:
    """The output that an all-reduce returns, if it is one that the caller gives."""
    pattern, workspace = given["pattern"], given["workspace"]
    if workspace.backend == "trtllm":
        if pattern == _MOE_REDUCTION:
            return _first(given, "norm_out", "quant_out", "residual_out", "output", "residual_in")
        if pattern == _MOE_FINALIZE:
            return _first(given, "norm_out")
        if pattern == _OUT_MXFP8:
            return _first(given, "quant_out")
        return _first(given, "norm_out", "quant_out", "output")
    if pattern == _NOTHING_FUSED:
        return _first(given, "output")
    if pattern in (_NORM, _MOE_FINALIZE):
        normed = getattr(workspace, "apply_rms_norm", True)
        return _first(given, "norm_out" if normed else "residual_out")
    return _first(given, "quant_out")


def _peers(make: MakeTensor) -> Any:
    """A workspace that is a tensor: a row for each rank."""
    return make(_RANKS, 1 << 20, dtype="uint8")


def _all_to_all(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "workspace": _peers(make),
        # On the host: where in a row of the workspace lies what.
        "metainfo": _on_host(16),
        "ep_rank": 0,
    }


def _on_host(length: int) -> Any:
    import torch

    return torch.zeros(length, dtype=torch.int64)


def _combine(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_all_to_all(make, m),
        "payload": make(_RANKS, m, _HIDDEN),
        "local_num_tokens": m,
        "runtime_max_tokens_per_rank": m,
        "ep_size": _RANKS,
        "top_k": _TOP_K,
        "combine_payload_offset": 1 << 16,
    }


def _combined(
    payload: Any,
    local_num_tokens: Any,
    output_dtype: Any = None,
    use_low_precision: bool = False,
    **_: Any,
) -> Any:
    import torch

    low = torch.bfloat16 if use_low_precision else payload.dtype
    dtype = output_dtype or low
    width = payload.shape[2] // (2 if dtype == torch.uint8 else 1)
    return payload.new_empty((local_num_tokens, width), dtype=dtype)


def _sanitize(make: MakeTensor, m: int) -> dict[str, Any]:
    ids = make(_RANKS, m, _TOP_K, dtype="int32")
    return {**_all_to_all(make, m), "expert_ids": ids, "invalid_expert_id": _EXPERTS}


def _context(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "partial_o": make(m, _EXPERTS, _RANKS, _HEAD),
        "softmax_stats": make(m, _EXPERTS, _RANKS, 2, dtype="float32"),
        "workspace": make(_RANKS, 1 << 16, dtype="int64"),
        "cp_rank": 0,
        "cp_size": _RANKS,
    }


def _exchanged(partial_o: Any, softmax_stats: Any, **_: Any) -> Any:
    return tuple(given.new_empty(given.shape) for given in (partial_o, softmax_stats))


def _ulysses(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "fa": 1 << 40,  # the address of its C++ object
        "inp": make(1, m, _HEADS, _HEAD),
        "out": make(1, _RANKS * m, _HEADS // _RANKS, _HEAD),
        "B": 1,
        "S_local": m,
        "H": _HEADS,
        "D": _HEAD,
        "mode": 0,
    }


def _lowp(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"rank": 0, "world_size": _RANKS}


def _projected(make: MakeTensor, m: int, names: str) -> dict[str, Any]:
    return {name: make(1, m, _HEADS, _HEAD) for name in names}


def _of_heads(make: MakeTensor, **dtypes: str) -> dict[str, Any]:
    return {name: make(1, _HEADS, _HEAD, dtype=dtype) for name, dtype in dtypes.items()}


def _greatest(make: MakeTensor, m: int, group: int) -> Any:
    """One number for each group of rows that m rows can touch, wherever they begin."""
    return make(1, _HEADS, (m + 2 * group - 2) // group, dtype="float32")


def _payload(make: MakeTensor, m: int) -> Any:
    spec = import_module("flashinfer.comm._ulysses_lowp").payload_spec
    sizes = spec(
        batch_size=1, local_sequence=m, num_heads=_HEADS, head_dim=_HEAD, world_size=_RANKS
    )
    return make(_RANKS, sizes["chunk_bytes"], dtype="uint8")


def _sums(make: MakeTensor, m: int) -> dict[str, Any]:
    return _projected(make, m, "kv")


def _q_greatest(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_lowp(make, m), **_projected(make, m, "q")}


def _k_greatest(make: MakeTensor, m: int) -> dict[str, Any]:
    mean = _of_heads(make, k_mean_global="bfloat16")
    return {**_lowp(make, m), **_projected(make, m, "k"), **mean}


def _packed_q(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_q_greatest(make, m),
        "q_amax_final": _greatest(make, m, 32),
        "send_u8": _payload(make, m),
    }


def _kv_statistics(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_of_heads(make, k_mean_global="bfloat16", v_scale_global="float32"),
        "k_amax_final": _greatest(make, m, 64),
    }


def _packed_kv(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = {**_lowp(make, m), **_projected(make, m, "kv")}
    return {**rows, **_kv_statistics(make, m), "send_u8": _payload(make, m)}


def _packed_qkv(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_lowp(make, m),
        **_projected(make, m, "qkv"),
        **_kv_statistics(make, m),
        "q_amax_final": _greatest(make, m, 32),
    }


def _unpacked(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "recv_u8": _payload(make, m),
        "batch_size": 1,
        "local_sequence": m,
        "local_heads": _HEADS // _RANKS,
        "head_dim": _HEAD,
        "world_size": _RANKS,
    }


def _values(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_projected(make, m, "v"), **_of_heads(make, v_scale_global="float32")}


def _head_chunk(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = {name: make(1, m, _HEADS, _HEAD) for name in ("query", "key", "value")}
    return {**rows, "world_size": _RANKS, "head_offset": 1, "head_count": 2}


def _chunk(query: Any, world_size: int, head_count: int, **_: Any) -> Any:
    batch, rows, _heads, size = query.shape
    return query.new_empty((batch, rows, world_size * head_count, 3 * size))


def _merged_chunk(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "received": make(1, m, _RANKS * 2, _HEAD),
        "world_size": _RANKS,
        "local_heads": _HEADS // _RANKS,
        "head_offset": 1,
        "out": make(1, m, _HEADS, _HEAD),
    }


#: Of an example of what runs on compute capability 8.9 and 12.0 alone.
_ADA: Mapping[str, Any] = {"arch": "12.0", "capability": (8, 9), "annotations": {"out": "None"}}

OPS: tuple[Op, ...] = (
    Op(
        "allreduce_fusion",
        _fusion,
        mutates=("output", *_OUTPUTS),
        collective=True,
        returned=_furthest,
        capability=_HOPPER,
    ),
    Op(
        "trtllm_allreduce_fusion",
        _allreduce,
        "()",
        mutates=("allreduce_out", *_OUTPUTS),
        collective=True,
        annotations=_CODES,
        capability=_HOPPER,
    ),
    Op(
        "trtllm_moe_allreduce_fusion",
        _moe_allreduce,
        "()",
        mutates=("moe_allreduce_out", *_OUTPUTS),
        collective=True,
        annotations=_CODES,
        capability=_HOPPER,
    ),
    Op(
        "trtllm_moe_finalize_allreduce_fusion",
        _moe_finalize,
        "()",
        mutates=_OUTPUTS,
        collective=True,
        also={"quant_out": None, "scale_out": None, "routed_scaling_factor": None},
        capability=_HOPPER,
    ),
    Op(
        "trtllm_custom_all_reduce",
        _custom,
        "()",
        mutates=("out", "intermediate_buffer"),
        collective=True,
        annotations=dict.fromkeys(("fusion_op_code", "strategy_code", "config_code"), "int"),
    ),
    Op("all_reduce", _vllm, "()", mutates=("out",), collective=True),
    # What a kernel allocates, in C++, no shadow shows.
    Op(
        "moe_a2a_combine",
        _combine,
        out=("output",),
        mutates=("output_scales",),
        collective=True,
        fake=_combined,
        capability=_HOPPER,
    ),
    # It reads what a dispatch has left in the workspace, and so has to stay behind it.
    Op(
        "moe_a2a_sanitize_expert_ids",
        _sanitize,
        "()",
        mutates=("expert_ids",),
        collective=True,
        capability=_HOPPER,
    ),
    Op(
        "decode_cp_a2a_alltoall",
        _context,
        "(Tensor, Tensor)",
        collective=True,
        annotations={"out": "None"},
        fake=_exchanged,  # likewise
        capability=_HOPPER,
    ),
    Op("ulysses_a2a", _ulysses, "()", mutates=("out",), collective=True, capability=_HOPPER),
    # In shadow both import Triton, which not every torch comes with.
    Op("pack_ulysses_qkv_head_chunk", _head_chunk, out=("out",), fake=_chunk),
    Op(
        "merge_ulysses_output_head_chunk",
        _merged_chunk,
        out=("out",),
        fake=lambda out, **_: out,
    ),
    # On the way to an exchange in eight bits.
    Op("k_sum_v_amax", _sums, "(Tensor, Tensor)", **_ADA),
    Op("q_grouped_amax", _q_greatest, **_ADA),
    Op("k_grouped_amax", _k_greatest, **_ADA),
    Op("quant_q_into_payload", _packed_q, "()", mutates=("send_u8",), **_ADA),
    Op("quant_kv_into_payload", _packed_kv, "()", mutates=("send_u8",), **_ADA),
    Op("quant_qkv_pack", _packed_qkv, out=("out",), **{**_ADA, "annotations": {}}),
    Op("unpack_for_sage", _unpacked, f"({', '.join(['Tensor'] * 5)})", **_ADA),
    Op("quant_v_fp8_with_scale", _values, **_ADA),
)

_WRITTEN_BY_ALL = "it returns views of memory into which the other ranks write"

UNCOVERED = (
    Uncovered("moe_a2a_dispatch", _WRITTEN_BY_ALL),
    Uncovered("MoeAlltoAll.dispatch", _WRITTEN_BY_ALL),
    Uncovered("MoeAlltoAll.get_combine_payload_tensor_in_workspace", _WRITTEN_BY_ALL),
)

TRACES = (
    Traces(
        "moe_a2a_wrap_payload_tensor_in_workspace",
        lambda make, m: {
            "workspace": _peers(make),
            "leading_shape": [_RANKS, 8],
            "slice_start": 0,
            "slice_end": _RANKS * 8 * _HIDDEN * 2,
            "dtype": make(1).dtype,
        },
    ),
)
