"""Linear attention and state space models: gated delta rules, KDA, Mamba.

States lie outside of the calls and are written in place; some functions return them, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ...opaque.declare import Count, GivenBack, MakeTensor, Op, PassedOn, Uncovered

_HEADS, _VALUE_HEADS, _HEAD = 2, 4, 128
_DIM, _DSTATE = 64, 128
_FLOAT, _SM90, _SM100 = "float32", (9, 0), (10, 0)
_PAIR = "(Tensor, Tensor)"


def _with_state(given: Mapping[str, Any]) -> int:
    """How many results a call has that may ask for the last state."""
    return 2 if given.get("output_final_state") else 1


def _ssd_results(given: Mapping[str, Any]) -> Count:
    return 2 if given.get("return_final_states", True) else (1, 2)


def _first(*names: str) -> GivenBack:
    """The first of these parameters that a call gives."""

    def first(given: Mapping[str, Any]) -> Any:
        for name in names:
            if given.get(name) is not None:
                return given[name]
        return None

    return first


def _gated(make: MakeTensor, m: int, tokens: int = 1) -> dict[str, Any]:
    """What all decoding by gated delta rules takes, for m sequences."""
    return {
        "q": make(m, tokens, _HEADS, _HEAD),
        "k": make(m, tokens, _HEADS, _HEAD),
        "v": make(m, tokens, _VALUE_HEADS, _HEAD),
        "A_log": make(_VALUE_HEADS, dtype=_FLOAT),
        "a": make(m, tokens, _VALUE_HEADS),
        "dt_bias": make(_VALUE_HEADS, dtype=_FLOAT),
        "b": make(m, tokens, _VALUE_HEADS),
    }


def _state(make: MakeTensor, m: int) -> Any:
    return make(m, _VALUE_HEADS, _HEAD, _HEAD, dtype=_FLOAT)


def _gdn_decode(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_gated(make, m), "state": _state(make, m)}


def _gdn_mtp(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_gated(make, m, tokens=4),
        "initial_state": _state(make, m),
        "initial_state_indices": make(m, dtype="int32", values="range"),
        "disable_state_update": False,
    }


def _gdn_prefill(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "q": make(m, _HEADS, _HEAD),
        "k": make(m, _HEADS, _HEAD),
        "v": make(m, _VALUE_HEADS, _HEAD),
        "g": make(m, _VALUE_HEADS, dtype=_FLOAT),
        "beta": make(m, _VALUE_HEADS, dtype=_FLOAT),
        "output_final_state": True,
        "cu_seqlens": make(2, dtype="int64", values=(0, m)),
    }


def _ssu(make: MakeTensor, m: int) -> dict[str, Any]:
    """A step of m sequences, each with a state; what is the same in a head is spread out."""
    return {
        "state": make(m, _HEADS, _DIM, _DSTATE),
        "x": make(m, _HEADS, _DIM),
        "dt": make(m, _HEADS).unsqueeze(-1).expand(-1, -1, _DIM),
        "A": make(_HEADS, dtype=_FLOAT).view(-1, 1, 1).expand(-1, _DIM, _DSTATE),
        "B": make(m, 1, _DSTATE),
        "C": make(m, 1, _DSTATE),
        "D": make(_HEADS).view(-1, 1).expand(-1, _DIM),
    }


def _paged(make: MakeTensor, pages: int, last: int) -> dict[str, Any]:
    """The pages of one sequence, of which the last holds so many tokens."""
    return {
        "page_indices": make(pages, dtype="int32", values="range"),
        "page_indptr": make(2, dtype="int32", values=(0, pages)),
        "last_page_len": make(1, dtype="int32", values=(last,)),
    }


def _page_each(make: MakeTensor, m: int) -> dict[str, Any]:
    """One page for each of m sequences."""
    return {
        "page_indices": make(m, dtype="int32", values="range"),
        "page_indptr": make(m + 1, dtype="int32", values="range"),
        "last_page_len": make(m, dtype="int32", values=(1,) * m),
    }


def _prefill_slots(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "cu_seqlens": make(m + 1, dtype="int32", values="range"),
        **_page_each(make, m),
        "page_size": 64,
    }


def _gdn_prefill_paged(make: MakeTensor, m: int) -> dict[str, Any]:
    """A prompt of m tokens on one page."""
    found = _gdn_prefill(make, m)
    del found["output_final_state"]
    return {**found, **_paged(make, 1, m), "page_size": 1024, "state_pool": _state(make, 3)}


def _gdn_decode_paged(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_gated(make, m), **_page_each(make, m), "state_pool": _state(make, m)}


def _replay_commit(make: MakeTensor, m: int) -> dict[str, Any]:
    layers, window = 3, 6
    rows = {"state_indices": make(m, dtype="int32", values="range")}
    return {
        "checkpoint_state": make(layers, m, _VALUE_HEADS, _HEAD, _HEAD, dtype=_FLOAT),
        "rawv_cache": make(layers, m, _VALUE_HEADS, window, _HEAD, dtype="bfloat16"),
        "rawk_cache": make(layers, m, _HEADS, window, _HEAD, dtype="bfloat16"),
        "g_cache": make(layers, m, _VALUE_HEADS, window, dtype=_FLOAT),
        "beta_cache": make(layers, m, _VALUE_HEADS, window, dtype=_FLOAT),
        **rows,
        "accept_lens": make(m, dtype="int32"),
    }


def _fused_gdn(make: MakeTensor, m: int) -> dict[str, Any]:
    hidden, channels = 256, 2 * _HEADS * _HEAD + _VALUE_HEADS * _HEAD
    return {
        "hidden_states": make(m, hidden),
        "w_ba": make(hidden, 2 * _VALUE_HEADS),
        "mixed_qkv": make(m, channels),
        "conv_weight": make(channels, 4),
        "conv_bias": make(channels),
        "conv_state": make(m, channels, 3),
        "A_log": make(_VALUE_HEADS, dtype=_FLOAT),
        "dt_bias": make(_VALUE_HEADS),
        "scale": None,
        "ssm_state": _state(make, m),
        "state_indices": make(m, dtype="int32", values="range"),
    }


def _gdn2(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "q": make(m, _HEADS, _HEAD),
        "k": make(m, _HEADS, _HEAD),
        "v": make(m, _HEADS, _HEAD),
        "g": make(m, _HEADS, _HEAD, dtype=_FLOAT),
        "beta": make(m, _HEADS, _HEAD, dtype=_FLOAT),
        "w": make(m, _HEADS, _HEAD, dtype=_FLOAT),
        "output_final_state": True,
        "cu_seqlens": make(2, dtype="int64", values=(0, m)),
    }


def _gdp(make: MakeTensor, m: int) -> dict[str, Any]:
    steps = 2
    return {
        "q": make(m, _HEADS, _HEAD),
        "k": make(m * steps, _HEADS, _HEAD),
        "v": make(m * steps, _HEADS, _HEAD),
        "g": make(m, _HEADS, dtype=_FLOAT),
        "beta": make(m * steps, _HEADS, dtype=_FLOAT),
        "num_householder": steps,
        "output_final_state": True,
        "cu_seqlens": make(2, dtype="int64", values=(0, m)),
    }


def _gdp_mtp(make: MakeTensor, m: int) -> dict[str, Any]:
    tokens, steps, value = 4, 2, 64
    return {
        "q": make(m, tokens, _HEADS, _HEAD),
        "k": make(m, tokens, steps, _HEADS, _HEAD),
        "v": make(m, tokens, steps, _HEADS, value),
        "initial_state": make(m, _HEADS, value, _HEAD, dtype=_FLOAT),
        "initial_state_indices": make(m, dtype="int32", values="range"),
        "A_log": make(_HEADS, dtype=_FLOAT),
        "a": make(m, tokens, _HEADS),
        "dt_bias": make(_HEADS, dtype=_FLOAT),
        "b": make(m, tokens, steps, _HEADS),
    }


def _kda(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = {name: make(m, 1, _HEADS, _HEAD) for name in ("q", "k", "v", "g")}
    return {
        **rows,
        "beta": make(m, 1, _HEADS),
        "initial_state": make(m, _HEADS, _HEAD, _HEAD),
        "output_final_state": True,
    }


def _kda_prefill(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = {name: make(1, m, _HEADS, _HEAD) for name in ("q", "k", "v", "g")}
    return {
        **rows,
        "beta": make(1, m, _HEADS),
        "initial_state": make(1, _HEADS, _HEAD, _HEAD),
        "output_final_state": True,
        "cu_seqlens": make(2, dtype="int64", values=(0, m)),
    }


def _fused_kda(make: MakeTensor, m: int) -> dict[str, Any]:
    heads = 12
    width = heads * _HEAD
    return {
        "x": make(m, 3 * width),
        "weight": make(3, 4, width, dtype=_FLOAT),
        # The last dimension of a slot lies outside of the channels.
        "conv_state": make(m, 3, 3 * width).mT,
        "raw_gate": make(1, m, heads, _HEAD),
        "raw_beta": make(1, m, heads),
        "A_log": make(heads, dtype=_FLOAT),
        "dt_bias": make(width, dtype=_FLOAT),
        "state_indices": make(m, dtype="int32", values="range"),
        "state": make(m, heads, _HEAD, _HEAD),
        "output_gate": make(m, heads, _HEAD),
        "norm_weight": make(_HEAD, dtype=_FLOAT),
    }


def _packed_fused_kda(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_fused_kda(make, m),
        "state_indices": make(m, dtype="int32", values="range").unsqueeze(1),
        "query_start_loc": make(m + 1, dtype="int32", values="range"),
        "num_accepted_tokens": make(m, dtype="int32", values=(1,) * m),
    }


def _packed_kda(make: MakeTensor, m: int) -> dict[str, Any]:
    heads = 12
    return {
        "mixed_qkv": make(m, 3 * heads * _HEAD),
        "raw_gate": make(m, heads * _HEAD),
        "raw_beta": make(m, heads),
        "A_log": make(heads, dtype=_FLOAT),
        "dt_bias": make(heads * _HEAD, dtype=_FLOAT),
        "state": make(m, heads, _HEAD, _HEAD),
        "state_indices": make(m, dtype="int32", values="range"),
    }


def _given_kda_state(given: Mapping[str, Any]) -> Any:
    """The state that is advanced in place, where it is returned.

    One token of each sequence, at states that are picked: some cards advance a copy of those.
    """
    picked = given.get("ssm_state_indices") is not None
    packed = given.get("cu_seqlens") is not None
    if not given.get("output_final_state") or (picked and not packed):
        return None
    return given.get("initial_state")


def _advanced_state(given: Mapping[str, Any]) -> Any:
    """The state that is advanced in place, where it is returned."""
    return given.get("initial_state") if given.get("output_final_state") else None


def _kda_results(given: Mapping[str, Any]) -> Count:
    state = bool(given.get("output_final_state"))
    if given.get("checkpoint_every_n_tokens"):
        return 3 if state else (True, False, True)
    return 2 if state else (1, 2)


def _shaped_output(given: Mapping[str, Any]) -> Any:
    output = given.get("output")
    return None if output is None else output.reshape(given["v"].shape)


def _cudnn_state(given: Mapping[str, Any]) -> Any:
    if not given.get("output_final_state"):
        return None
    return _first("output_state", "initial_state")(given)


def _conv(make: MakeTensor, sequences: int, m: int) -> dict[str, Any]:
    channels = 256
    return {
        "x": make(m, channels),
        "weight": make(channels, 4),
        "conv_state": make(sequences, channels, 3),
    }


def _conv_prompt(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_conv(make, 1, m),
        "cu_seqlens": make(2, dtype="int32", values=(0, m)),
        "cache_indices": make(1, dtype="int32"),
    }


def _conv_step(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_conv(make, m, m), "state_indices": make(m, dtype="int32", values="range")}


def _checkpointing(make: MakeTensor, m: int) -> dict[str, Any]:
    """Four tokens of each of m sequences; the cache of earlier ones is a ring since 0.7.0."""
    tokens, window = 4, 16
    step = make(m, tokens, _HEADS).unsqueeze(-1).expand(-1, -1, -1, _DIM)
    slots = {"prev_num_accepted_tokens": make(m, dtype="int32")}
    module = import_module("flashinfer.mamba.checkpointing_ssu")
    if "ring_start" in inspect.signature(module.checkpointing_ssu).parameters:
        ring = window + tokens
        cache = {
            "x_cache": make(m, _HEADS, ring, _DIM),
            "B_cache": make(m, 1, ring, _DSTATE),
            "dt_cache": make(m, _HEADS, ring, dtype=_FLOAT),
            "ring_start": make(m, dtype="int32"),
        }
    else:
        cache = {
            "old_x": make(m, window, _HEADS, _DIM),
            "old_B": make(m, 2, window, 1, _DSTATE),
            "old_dt": make(m, 2, _HEADS, window, dtype=_FLOAT),
            "old_cumAdt": make(m, 2, _HEADS, window, dtype=_FLOAT),
            "cache_buf_idx": make(m, dtype="int32"),
        }
    return {
        **cache,
        **slots,
        "state": make(m, _HEADS, _DIM, _DSTATE),
        "x": make(m, tokens, _HEADS, _DIM),
        "dt": step,
        "A": make(_HEADS, dtype=_FLOAT).view(-1, 1, 1).expand(-1, _DIM, _DSTATE),
        "B": make(m, tokens, 1, _DSTATE),
        "C": make(m, tokens, 1, _DSTATE),
        "out": make(m, tokens, _HEADS, _DIM),
    }


def _ssd(make: MakeTensor, m: int) -> dict[str, Any]:
    heads = 8
    return {
        "x": make(1, m, heads, _DIM),
        "dt": make(1, m, heads, dtype=_FLOAT),
        "A": make(heads, dtype=_FLOAT),
        "B": make(1, m, 1, _DSTATE),
        "C": make(1, m, 1, _DSTATE),
    }


def _ssd_like(
    *,
    x: Any,
    B: Any,
    initial_states: Any = None,
    checkpoint_states: Any = None,
    seq_idx: Any = None,
    cu_seqlens: Any = None,
    seq_chunk_cumsum: Any = None,
    num_seqs: int | None = None,
    return_final_states: bool = True,
    **_: object,
) -> tuple[Any, Any]:
    """What ``ssd_combined_fwd`` returns. Of packed sequences the number is told in some way."""
    number = x.shape[0]
    if cu_seqlens is not None:
        number = cu_seqlens.shape[0] - 1
    elif seq_idx is not None and initial_states is not None:
        number = initial_states.shape[0]
    elif seq_idx is not None and seq_chunk_cumsum is not None:
        number = seq_chunk_cumsum.shape[0] - 1
    elif seq_idx is not None:
        number = num_seqs
    kind = next((t.dtype for t in (initial_states, checkpoint_states) if t is not None), x.dtype)
    size = (number, *x.shape[2:], B.shape[3])
    return x.new_empty(x.shape), x.new_empty(size, dtype=kind) if return_final_states else None


def _frozen(make: MakeTensor, m: int) -> dict[str, Any]:
    """Four drafts of each of m sequences, by a state that stays as it is."""
    return {
        **_gated(make, m, tokens=4),
        "initial_state_source": make(m, _VALUE_HEADS, _HEAD, _HEAD),
        "initial_state_indices": make(m, dtype="int32", values="range"),
    }


def _rings(make: MakeTensor, m: int, slots: int) -> dict[str, Any]:
    """What m sequences hold of the tokens that are in no state yet."""
    return {
        "k_cache": make(m, _HEADS, slots, _HEAD),
        "u_cache": make(m, _VALUE_HEADS, slots, _HEAD),
        "g_cache": make(m, _VALUE_HEADS, slots, dtype=_FLOAT),
    }


def _appending(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_frozen(make, m), **_rings(make, m, 16), "hist_len": make(m, dtype="int32")}


def _flushing(make: MakeTensor, m: int) -> dict[str, Any]:
    lengths = {name: make(m, dtype="int32") for name in ("hist_len", "cache_base")}
    return {**_frozen(make, m), **_rings(make, m, 32), **lengths, "restart_hist_on_flush": False}


def _materializing(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = ("src_slots", "dst_slots", "count", "active_request_indices")
    return {
        "state": make(m, _VALUE_HEADS, _HEAD, _HEAD),
        **{name: make(m, dtype="int32", values="range") for name in rows},
        **_rings(make, m, 32),
        "cache_base": make(m, dtype="int32"),
        "num_active": make(1, dtype="int32"),
    }


def _drafts_like(*, q: Any, v: Any, **_: object) -> Any:
    return q.new_empty((*q.shape[:2], *v.shape[2:]))


def _padded_drafts_like(*, q: Any, v: Any, **_: object) -> Any:
    """Of sixteen tokens, whatever their number, the first; since 0.6.18 of other dtypes, too."""
    import torch

    module = import_module("flashinfer.gdn_kernels.gdn_decode_bf16_wy_output_only")
    sequences, tokens = q.shape[:2]
    held = tokens if module._NATIVE_T and tokens in (4, 8) else 16
    return q.new_empty((sequences, held, *v.shape[2:]), dtype=torch.bfloat16)[:, :tokens]


def _kda_planned(make: MakeTensor, m: int) -> dict[str, Any]:
    """Two tokens for each of m, since one alone is no prompt."""
    wrapper = import_module("flashinfer.kda").RecurrentKDAPrefillWrapper("cuda")
    found = _kda_prefill(make, 2 * m)
    wrapper.plan(found.pop("cu_seqlens"))
    return {
        "self": wrapper,
        **found,
        "A_log": make(_HEADS, dtype=_FLOAT),
        "dt_bias": make(_HEADS * _HEAD, dtype=_FLOAT),
        "use_gate_in_kernel": True,
        "beta_is_logit": True,
        "lower_bound": -5.0,
    }


OPS: tuple[Op, ...] = (
    Op(
        "gated_delta_rule_decode_pretranspose",
        _gdn_decode,
        _PAIR,
        mutates=("state", "initial_state", "intermediate_states_buffer"),
        out=("output",),
        inputs={1: _first("initial_state", "state")},
        capability=_SM90,
        requires=("cutlass",),
    ),
    Op(
        "gated_delta_rule_decode",
        _gdn_decode,
        _PAIR,
        mutates=("state",),
        out=("output",),
        inputs={1: _first("state")},
        capability=_SM90,
        requires=("cutlass",),
    ),
    Op(
        "gated_delta_rule_mtp",
        _gdn_mtp,
        _PAIR,
        mutates=(
            *("initial_state", "intermediate_states_buffer"),
            *("replayssm_rawv", "replayssm_rawk", "replayssm_g", "replayssm_beta"),
        ),
        out=("output",),
        inputs={1: _first("initial_state")},
        capability=_SM90,
        requires=("cutlass",),
        module="flashinfer.gdn_decode",
    ),
    # How many blocks a kernel is built for follows from the number of sequences, here and in the
    # next two: in shadow a graph would belong to a few of these numbers.
    Op(
        "gated_delta_rule_mtp_wy_output_only",
        _frozen,
        fake=_padded_drafts_like,
        out=("output",),
        capability=_SM90,
        requires=("cutlass",),
        function="gated_delta_rule_mtp",
        module="flashinfer.gdn_kernels.gdn_decode_bf16_wy_output_only",
    ),
    Op(
        "gated_delta_rule_mtp_ucache",
        _appending,
        fake=_drafts_like,
        mutates=("k_cache", "u_cache", "g_cache"),
        out=("output",),
        capability=_SM90,
        requires=("cutlass",),
    ),
    Op(
        "gated_delta_rule_mtp_ucache_flush",
        _flushing,
        fake=_drafts_like,
        mutates=(
            *("initial_state_source", "k_cache", "u_cache", "g_cache"),
            *("hist_len", "cache_base"),
        ),
        out=("output",),
        capability=_SM90,
        requires=("cutlass",),
    ),
    # How many blocks there are follows from the number of sequences.
    Op(
        "gdn_prefix_materialize",
        _materializing,
        fake=lambda *, state, **_: state,
        mutates=("state",),
        inputs={0: _first("state")},
        capability=_SM90,
        requires=("cutlass",),
    ),
    Op(
        "chunk_gated_delta_rule",
        _gdn_prefill,
        _PAIR,
        results=_with_state,
        mutates=("state_checkpoints",),
        out=("output", "output_state"),
        annotations={"cu_seqlens_cpu": "Tensor"},
        unseen=("cu_seqlens_cpu",),
        also={"use_cp": False},
        capability=_SM90,
        requires=("cutlass",),
        module="flashinfer.gdn_prefill",
    ),
    Op(
        "chunk_gated_delta_rule_paged",
        _gdn_prefill_paged,
        mutates=("state_pool",),
        out=("output",),
        capability=_SM90,
        requires=("cutlass",),
    ),
    Op(
        "gated_delta_rule_decode_paged",
        _gdn_decode_paged,
        mutates=("state_pool",),
        out=("output",),
        capability=_SM90,
        requires=("cutlass",),
    ),
    Op(
        "gdn_paged_prefill_slots",
        _prefill_slots,
        "(Tensor, Tensor, Tensor, Tensor)",
        requires=("cutlass",),
    ),
    Op("gdn_paged_decode_slots", _page_each, _PAIR, requires=("cutlass",)),
    Op(
        "gated_delta_rule_replayssm_commit",
        _replay_commit,
        "()",
        mutates=("checkpoint_state",),
        capability=_SM100,
        requires=("cutlass",),
    ),
    Op(
        "gdn_fused_decode_step",
        _fused_gdn,
        "(Tensor, Tensor, Tensor)",
        mutates=("conv_state", "ssm_state"),
        out=("out",),
        inputs={1: _first("conv_state"), 2: _first("ssm_state")},
    ),
    *(
        Op(
            name,
            example,
            _PAIR,
            results=_with_state,
            mutates=("initial_state",),
            out=("output", "output_state"),
            unseen=("cu_seqlens_cpu",),
            capability=_SM90,
        )
        for name, example in (
            ("chunk_gated_delta_rule2", _gdn2),
            ("chunk_gated_delta_product", _gdp),
            ("cudnn_chunk_gated_delta_rule", _gdn_prefill),
            ("cudnn_chunk_gated_delta_rule2", _gdn2),
            ("cudnn_chunk_gated_delta_product", _gdp),
        )
    ),
    # An output may have another rank than the values, whose shape is returned.
    Op(
        "cudnn_recurrent_kda",
        _kda_prefill,
        _PAIR,
        results=_kda_results,
        mutates=("initial_state", "output", "output_state"),
        inputs={0: _shaped_output, 1: _cudnn_state},
        capability=_SM90,
    ),
    Op(
        "cake_gated_delta_product_mtp",
        _gdp_mtp,
        _PAIR,
        mutates=("initial_state",),
        out=("output",),
        inputs={1: _first("initial_state")},
        capability=_SM90,
        module="flashinfer.cake_gdp",
    ),
    Op(
        "recurrent_kda",
        _kda,
        "(Tensor, Tensor, Tensor)",
        results=_kda_results,
        mutates=("initial_state", "state_checkpoints", "correction_cache", "kg_cache"),
        out=("output",),
        inputs={1: _given_kda_state, 2: _first("state_checkpoints")},
        capability=_SM100,
        requires=("cutlass",),
        module="flashinfer.kda",
    ),
    Op(
        "RecurrentKDAPrefillWrapper.run",
        _kda_planned,
        "(Tensor, Tensor, Tensor)",
        results=_kda_results,
        mutates=("initial_state", "state_checkpoints"),
        out=("output",),
        inputs={1: _advanced_state, 2: _first("state_checkpoints")},
        capability=_SM100,
        newest=(10, 3),
        requires=("cutlass",),
    ),
    Op(
        "recurrent_kda_decode",
        _kda,
        _PAIR,
        results=_kda_results,
        mutates=("initial_state", "correction_cache", "kg_cache"),
        out=("output",),
        inputs={1: _given_kda_state},
        capability=_SM100,
        requires=("cutlass",),
        function="recurrent_kda",
        module="flashinfer.kda_decode",
    ),
    Op(
        "packed_kda_decode",
        _packed_kda,
        mutates=("state",),
        out=("output",),
        capability=_SM100,
        newest=(10, 3),
        module="flashinfer.kda_decode",
    ),
    *(
        Op(
            name,
            example,
            mutates=("state", "conv_state"),
            out=("output",),
            capability=_SM100,
            requires=("cutlass",),
            module="flashinfer.kda_decode",
        )
        for name, example in (
            ("fused_kda_decode", _fused_kda),
            ("packed_fused_kda_decode", _packed_fused_kda),
        )
    ),
    Op(
        "selective_state_update",
        _ssu,
        mutates=(
            *("state", "state_scale"),
            *("intermediate_states_buffer", "intermediate_state_scales"),
        ),
        out=("out",),
        module="flashinfer.mamba.*",
    ),
    Op(
        "checkpointing_ssu",
        _checkpointing,
        mutates=(
            *("state", "state_scale", "x_cache", "B_cache", "dt_cache"),
            *("old_x", "old_B", "old_dt", "old_cumAdt"),
            *("cb_scaled", "cumAdt_vec", "cb_old"),
        ),
        out=("out",),
    ),
    Op(
        "ssd_combined_fwd",
        _ssd,
        _PAIR,
        results=_ssd_results,
        # Its runner plans for each length anew, and a graph would belong to one length.
        fake=_ssd_like,
        mutates=("checkpoint_states", "seq_chunk_cumsum"),
        out=("out",),
        capability=_SM100,
        requires=("cutlass",),
    ),
    *(
        Op(
            name,
            example,
            mutates=("conv_state", "workspace"),
            out=("out",),
            capability=_SM100,
            requires=("cutlass",),
            module="flashinfer.mamba.causal_conv1d",
        )
        for name, example in (
            ("causal_conv1d_fn", _conv_prompt),
            ("causal_conv1d_update", _conv_step),
        )
    ),
)

UNCOVERED = (
    Uncovered(
        "replayssm_materialize",
        "it writes to addresses that lie in tensors, where no compiler sees what it changes",
    ),
)

PASSED_ON = (
    PassedOn(
        "cake_selective_state_update",
        "flashinfer.mamba.cake_selective_state_update",
        "selective_state_update",
    ),
)
