"""Collectives between cards, and what is fused with them.

An example has what a call of rank 0 of two has, and a workspace that no other card knows: a real
kernel would wait for ever. ``prove`` and the benchmarks on one card leave collectives out.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ...opaque.declare import Example, MakeTensor, Op, Traces, Uncovered

_HIDDEN, _EXPERTS, _TOP_K, _RANKS = 256, 4, 2, 2
_HEADS, _HEAD, _WIDE = 8, 128, 2048
_STREAMS, _MIX, _SPLITS = 4, 24, 8
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


def _k_extremes(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_lowp(make, m), **_projected(make, m, "k")}


def _minmax_fake(k: Any, **_: Any) -> Any:
    import torch

    batch, _rows, heads, size = k.shape
    return k.new_empty((batch, heads, 2, 2, size), dtype=torch.float32)


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


class _Idle:
    """Stands for kernels that a workspace holds, where no other rank is there to meet."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: object, **options: object) -> None:
        """Compute nothing."""


_IDLE = _Idle()


@functools.cache
def _made(module: str, name: str, **attributes: Any) -> Any:
    """An object of ``flashinfer.comm`` as its constructor leaves it, without the other ranks."""
    import torch

    kind: Any = getattr(import_module(f"flashinfer.comm.{module}"), name)
    made = kind.__new__(kind)
    vars(made).update({"device": torch.device("cuda", 0)} | attributes)
    return made


def _mnnvl() -> Any:
    return _made(
        "trtllm_mnnvl_ar",
        "MNNVLAllReduceFusionWorkspace",
        **{"world_size": _RANKS, "tp_size": _RANKS, "rank": 0, "_destroyed": True},
        **{"handle": None, "buffer_size_bytes": 1 << 30, "buffer_flags": None},
        **{"mc_ptr": 1 << 40, "uc_ptr_local": 1 << 41, "uc_ptrs_dev": 1 << 42},
    )


def _gemm(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "x": make(m, _HIDDEN),
        "w": make(2 * _HIDDEN, _HIDDEN),
        "out": make(m, 2 * _HIDDEN),
        "workspace": _mnnvl(),
    }


def _mhc(make: MakeTensor, m: int) -> dict[str, Any]:
    mixes = {"post_layer_mix": (m, _STREAMS), "comb_res_mix": (m, _STREAMS, _STREAMS)}
    return {
        "input": make(m, _HIDDEN),
        "residual": make(m, _STREAMS, _HIDDEN),
        **{name: make(*size, dtype="float32") for name, size in mixes.items()},
        "fn": make(_MIX, _STREAMS * _HIDDEN, dtype="float32"),
        "workspace": _mnnvl(),
    }


def _mhc_fake(residual: Any, fn: Any, **_: Any) -> Any:
    import torch

    rows, mix = residual.shape[0], fn.shape[0]
    sizes = ((_SPLITS, rows, mix), (_SPLITS, rows))
    partial = (residual.new_empty(size, dtype=torch.float32) for size in sizes)
    return (*partial, torch.empty_like(residual))


def _gathered(name: str) -> Any:
    module = "mnnvl_cutedsl_ag"
    return _made(module, name, _impl=_IDLE, tp_size=_RANKS, max_token_num=_ROOM, hidden_dim=_WIDE)


def _gated(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "branch_shard": make(m, _WIDE // _RANKS),
        "residual": make(m, _WIDE, dtype="float32"),
        **{name: make(_WIDE, dtype="float32") for name in ("alpha", "beta")},
        "next_weight": make(_WIDE),
        "workspace": _gathered("MNNVLCuteDSLAllGatherDualNormWorkspace"),
        "post_eps": 1e-6,
        "next_eps": 1e-6,
    }


def _gated_fake(residual: Any, **_: Any) -> Any:
    import torch

    return torch.empty_like(residual), torch.empty_like(residual, dtype=torch.bfloat16)


def _normed(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "shard": make(m, _WIDE // _RANKS),
        "weight": make(_WIDE),
        "global_scale": make(1, dtype="float32"),
        "workspace": _gathered("MNNVLCuteDSLAllGatherNormQuantWorkspace"),
        "eps": 1e-6,
    }


def _normed_fake(shard: Any, weight: Any, **_: Any) -> Any:
    import torch

    rows, width = shard.shape[0], weight.shape[0]
    return tuple(shard.new_empty((rows, width // n), dtype=torch.uint8) for n in (2, 16))


def _finalize_norm(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "routed_rows": make(_TOP_K * m, _WIDE),
        "route_weights": make(m, _TOP_K),
        "permuted_idx": make(m, _TOP_K, dtype="int32"),
        "norm_weight": make(_WIDE),
        "output": make(m, _WIDE),
        "workspace": _made(
            "mnnvl_cutedsl_moe_finalize",
            "MNNVLCuteDSLMoEFinalizeAllReduceWorkspace",
            **{"_impl": _IDLE, "max_token_num": _ROOM, "hidden_dim": _WIDE, "top_k": _TOP_K},
        ),
        "eps": 1e-6,
    }


def _tp_finalize(make: MakeTensor, m: int) -> dict[str, Any]:
    experts, width = 8, 4096
    return {
        "gemm2_permuted": make(m * experts, width),
        "expert_weights": make(m, experts),
        "expanded_idx_to_permuted_idx": make(m, experts, dtype="int32"),
        "norm_weight": make(width),
        "output": make(m, width),
        "eps": 1e-6,
        "gain_center": 0.0,
        "weight_before_norm": True,
    }


#: Numbers in a row of Cake's all-reduce in FP4, and bytes of a row that has been quantized.
_FP4_ROW, _FP4_RECORD = 6144, 3456


class _Whatever(dict[str, Any]):
    """Has whatever it is asked for: programs, and windows into which other ranks write."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Any:
        return _IDLE


@functools.cache
def _fp4_workspace(input_format: str) -> Any:
    made = _made(
        "cake_fp4_allreduce",
        "CakeFp4AllReduceWorkspace",
        **{"family": "allreduce", "input_format": input_format, "target": "sm_100a"},
        **{"world_size": _RANKS, "rank": 0, "capacity": _ROOM, "grid": 128},
        **{"ctrl": None, "table": None, "_shared": (0,)},
    )
    vars(made).update(windows=_Whatever(), _modules=_Whatever())
    return made


def _fp4(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"x": make(m, _FP4_ROW), "workspace": _fp4_workspace("bf16")}


def _fp4_records(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "records": make(m, _FP4_RECORD, dtype="uint8"),
        "global_scales": make(_RANKS, dtype="float32"),
        "workspace": _fp4_workspace("nvfp4"),
    }


def _combine_norms(make: MakeTensor, m: int) -> dict[str, Any]:
    tracks, width = 2, 2560
    names = ("x", "residual", "norm_out", "residual_out")
    return {
        **{name: make(m, tracks, width) for name in names},
        "weight": make(tracks, width),
        "collective_out": make(m, width),
        "workspace": _made(
            "cake_fused_norm_combine",
            "CakeFusedNormCombineWorkspace",
            **{"rank": 0, "world_size": 8, "max_tokens": _ROOM, "hidden": width},
            **{"workspace_ptrs": None, "_closed": False},
        ),
        "epsilon": 1e-6,
    }


def _reduced(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "partial_o": make(m, _EXPERTS, _RANKS, _HEAD),
        "partial_lse": make(m, _EXPERTS, _RANKS, dtype="float32"),
        "workspace": make(1 << 20, dtype="uint8"),
        "cp_rank": 0,
        "cp_size": _RANKS,
    }


def _reduced_fake(partial_o: Any, **_: Any) -> Any:
    return partial_o.new_empty((*partial_o.shape[:-2], partial_o.shape[-1]))


def _fp4_fake(x: Any = None, records: Any = None, **_: Any) -> Any:
    import torch

    rows = records if x is None else x
    return rows.new_empty((rows.shape[0], _FP4_ROW), dtype=torch.bfloat16)


def _always(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda given: name


def _cake(*written: str) -> dict[str, Any]:
    """Collectives for Blackwell, of which upstream annotates no workspace."""
    return {
        "mutates": written,
        "collective": True,
        "annotations": {"workspace": "object"},
        "capability": (10, 0),
    }


_PAIR, _TRIPLE = "(Tensor, Tensor)", "(Tensor, Tensor, Tensor)"


def _communicator(like: Any) -> Any:
    return _made(
        "ulysses",
        "UlyssesCommunicator",
        **{"_state": "open", "backend": "nccl", "transport": None, "group": None},
        **{"world_size": _RANKS, "rank": 0, "device": like.device, "dtype": like.dtype},
        **{"max_bytes": 1 << 30, "max_elems": 1 << 29},
    )


def _scatter(make: MakeTensor, m: int) -> dict[str, Any]:
    x = make(1, m, _HEADS, _HEAD)
    return {"self": _communicator(x), "x": x}


def _scattered(communicator: Any, x: Any, **_: Any) -> Any:
    batch, rows, heads, size = x.shape
    ranks = communicator.world_size
    return x.new_empty((batch, rows * ranks, heads // ranks, size))


def _gather(make: MakeTensor, m: int) -> dict[str, Any]:
    x = make(1, _RANKS * m, _HEADS // _RANKS, _HEAD)
    return {"self": _communicator(x), "x": x}


def _gathered_fake(communicator: Any, x: Any, **_: Any) -> Any:
    batch, rows, heads, size = x.shape
    ranks = communicator.world_size
    return x.new_empty((batch, rows // ranks, heads * ranks, size))


def _chunks(make: MakeTensor, m: int) -> dict[str, Any]:
    x = make(1, 1, _RANKS, m * _HEAD)
    return {"self": _communicator(x), "x": x}


def _scatter_chunk(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = {name: make(1, m, _HEADS, _HEAD) for name in ("query", "key", "value")}
    communicator = _communicator(rows["query"])
    return {"self": communicator, **rows, "head_offset": 1, "head_count": 2}


def _scattered_chunk(communicator: Any, query: Any, head_count: int, **_: Any) -> Any:
    batch, rows, _heads, size = query.shape
    return query.new_empty((batch, rows * communicator.world_size, head_count, 3 * size))


def _gather_chunk(make: MakeTensor, m: int) -> dict[str, Any]:
    x = make(1, _RANKS * m, 2, _HEAD)
    return {
        "self": _communicator(x),
        "x": x,
        "local_heads": _HEADS // _RANKS,
        "head_offset": 1,
        "out": make(1, m, _HEADS, _HEAD),
    }


def _launch(inp: Any) -> Any:
    """How a workspace launches its kernel, which it settles with the other ranks."""
    return types.SimpleNamespace(blocks=8, threads=128, variant=0)


def _pcie(name: str, module: str) -> Example:
    def example(make: MakeTensor, m: int) -> dict[str, Any]:
        inp = make(_RANKS * m, _HIDDEN)
        workspace = _made(
            module,
            name,
            **{"device": inp.device, "_device": inp.device, "_world_size": _RANKS, "_handle": 1},
            **{"tuned_launch_config": _launch, "_check_stream": _IDLE},
        )
        return {"self": workspace, "inp": inp}

    return example


def _over_pcie(name: str, method: str, module: str, fake: Callable[..., Any]) -> Op:
    return Op(
        f"{name}.{method}",
        _pcie(name, module),
        out=("out",),
        collective=True,
        state=("_world_size",),
        fake=fake,
    )


def _all_reduced(workspace: Any, inp: Any, **_: Any) -> Any:
    return inp.new_empty(inp.shape)


def _all_gathered(workspace: Any, inp: Any, **_: Any) -> Any:
    return inp.new_empty((inp.shape[0] * workspace.world_size, inp.shape[1]))


def _reduce_scattered(workspace: Any, inp: Any, **_: Any) -> Any:
    return inp.new_empty((inp.shape[0] // workspace.world_size, inp.shape[1]))


#: What decides the form of a communicator's results. Outputs that it has registered with the other
#: ranks, by their addresses, cannot be copies.
_METHOD: Mapping[str, Any] = {
    "collective": True,
    "state": ("world_size", "backend"),
    "annotations": {"out": "None"},
    "capability": _HOPPER,
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
    Op(
        "decode_cp_a2a_lse_reduce",
        _reduced,
        collective=True,
        fake=_reduced_fake,  # it knows a workspace by its address
        capability=_HOPPER,
    ),
    Op("cake_gemm_allreduce", _gemm, "()", returned=_always("out"), **_cake("out")),
    # In shadow the number of tokens would choose between two ways, and so make two graphs.
    Op(
        "allreduce_mhc_post_prenorm",
        _mhc,
        _TRIPLE,
        out=("yp", "rp", "residual_out"),
        fake=_mhc_fake,
        **_cake(),
    ),
    # The kernels of these are in their workspaces.
    Op(
        "all_gather_gated_residual_next_rmsnorm",
        _gated,
        _PAIR,
        fake=_gated_fake,
        requires=("cutlass",),
        **_cake(),
    ),
    Op(
        "all_gather_rmsnorm_fp4_quantize",
        _normed,
        _PAIR,
        fake=_normed_fake,
        requires=("cutlass",),
        **_cake(),
    ),
    Op(
        "moe_finalize_rmsnorm_allreduce",
        _finalize_norm,
        "()",
        requires=("cutlass",),
        **_cake("output"),
    ),
    Op("tp_moe_finalize_rmsnorm", _tp_finalize, "()", requires=("cutlass",), **_cake("output")),
    Op("cake_fp4_allreduce", _fp4, out=("out",), fake=_fp4_fake, **_cake()),
    Op("cake_fp4_allreduce_nvfp4", _fp4_records, out=("out",), fake=_fp4_fake, **_cake()),
    Op(
        "cake_fused_norm_combine",
        _combine_norms,
        "()",
        **_cake("norm_out", "residual_out", "collective_out"),
    ),
    # In shadow both import Triton, which not every torch comes with.
    Op("pack_ulysses_qkv_head_chunk", _head_chunk, out=("out",), fake=_chunk),
    Op(
        "merge_ulysses_output_head_chunk",
        _merged_chunk,
        out=("out",),
        fake=lambda out, **_: out,
    ),
    # Which way they take depends on the link between cards; the result does not.
    Op("UlyssesCommunicator.scatter_heads", _scatter, fake=_scattered, **_METHOD),
    Op("UlyssesCommunicator.gather_heads", _gather, fake=_gathered_fake, **_METHOD),
    Op(
        "UlyssesCommunicator.exchange_chunks",
        _chunks,
        fake=lambda communicator, x, **_: x.new_empty(x.shape),
        **_METHOD,
    ),
    Op(
        "UlyssesCommunicator.scatter_qkv_head_chunk",
        _scatter_chunk,
        fake=_scattered_chunk,
        **_METHOD,
    ),
    Op(
        "UlyssesCommunicator.gather_output_head_chunk",
        _gather_chunk,
        "()",
        mutates=("out",),
        returned=_always("out"),
        **{**_METHOD, "annotations": {}},
    ),
    # How they launch, which may take a word with the other ranks, is not to be asked in shadow.
    _over_pcie("PcieIpcAllReduceWorkspace", "all_reduce", "pcie_ipc_ar", _all_reduced),
    _over_pcie(
        *("PcieIpcAllGatherWorkspace", "all_gather"),
        *("pcie_ipc_collectives.all_gather", _all_gathered),
    ),
    _over_pcie(
        *("PcieIpcReduceScatterWorkspace", "reduce_scatter"),
        *("pcie_ipc_collectives.reduce_scatter", _reduce_scattered),
    ),
    # On the way to an exchange in eight bits.
    Op("k_sum_v_amax", _sums, "(Tensor, Tensor)", **_ADA),
    Op("q_grouped_amax", _q_greatest, **_ADA),
    Op("k_grouped_amax", _k_greatest, **_ADA),
    # It asks for the address of its tensor.
    Op("k_boundary_minmax", _k_extremes, fake=_minmax_fake, **_ADA),
    Op("quant_q_into_payload", _packed_q, "()", mutates=("send_u8",), **_ADA),
    Op("quant_kv_into_payload", _packed_kv, "()", mutates=("send_u8",), **_ADA),
    Op("quant_qkv_pack", _packed_qkv, out=("out",), **{**_ADA, "annotations": {}}),
    Op("unpack_for_sage", _unpacked, f"({', '.join(['Tensor'] * 5)})", **_ADA),
    Op("quant_v_fp8_with_scale", _values, **_ADA),
)

_ALLOCATES = "it may set up memory that the ranks share, with all of them, in the midst of a call"
_HOLDS_TENSORS = "it takes or returns an object of its own class, which holds tensors"
_WRITTEN_BY_ALL = "it returns views of memory into which the other ranks write"

UNCOVERED = (
    Uncovered("moe_a2a_dispatch", _WRITTEN_BY_ALL),
    Uncovered("MoeAlltoAll.dispatch", _WRITTEN_BY_ALL),
    Uncovered("MoeAlltoAll.get_combine_payload_tensor_in_workspace", _WRITTEN_BY_ALL),
    Uncovered("MoeAlltoAll.combine", "it ends what a dispatch has begun, which cannot be an op"),
    Uncovered("quantized_all_reduce", _ALLOCATES),
    Uncovered("all_gather_matmul", _ALLOCATES),
    Uncovered("fp8_rowwise_gemm_allreduce", _ALLOCATES),
    Uncovered("cake_fp4_allreduce_rmsnorm", _HOLDS_TENSORS),
    Uncovered("cake_fp4_allreduce_rmsnorm_nvfp4", _HOLDS_TENSORS),
    Uncovered("local_stats", _HOLDS_TENSORS),
    Uncovered("finalize_stats", _HOLDS_TENSORS),
    Uncovered("quant_and_pack", _HOLDS_TENSORS),
    Uncovered("UlyssesCommunicator.scatter_qkv", _HOLDS_TENSORS),
)


def _boundaries(m: int, group: int, **sizes: tuple[int, ...]) -> dict[str, Any]:
    # On the host: the tests' pretended device cannot be indexed.
    import torch

    sizes = {"grouped_amax": (1, _HEADS, (m + 2 * group - 2) // group), **sizes}
    tensors = {name: torch.zeros(size) for name, size in sizes.items()}
    return {**tensors, "rank": 0, "local_sequence": m, "world_size": _RANKS}


TRACES = (
    Traces("boundary_descriptors", lambda make, m: {**_boundaries(m, 32), "group": 32}),
    Traces(
        "merge_boundary_amax",
        lambda make, m: {
            **_boundaries(m, 32, gathered_descriptors=(_RANKS, 1, _HEADS, 2)),
            "group": 32,
        },
    ),
    Traces(
        "derive_k_boundary_amax",
        lambda make, m: _boundaries(
            *(m, 64),
            gathered_minmax=(_RANKS, 1, _HEADS, 2, 2, _HEAD),
            k_mean_global=(1, _HEADS, _HEAD),
        ),
    ),
    Traces(
        "zero_scale_and_padding",
        lambda make, m: {
            "send_u8": make(_RANKS, 1024 * m, dtype="uint8"),
            "spec": {"q_scale_offset": 512 * m},
        },
    ),
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
