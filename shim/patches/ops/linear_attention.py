"""Linear attention and state space models: gated delta rules, KDA, Mamba.

States lie outside of the calls and are written in place; some functions return them, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...opaque.declare import GivenBack, MakeTensor, Op, Uncovered

_HEADS, _VALUE_HEADS, _HEAD = 2, 4, 128
_DIM, _DSTATE = 64, 128
_FLOAT, _SM90, _SM100 = "float32", (9, 0), (10, 0)
_PAIR = "(Tensor, Tensor)"


def _with_state(given: Mapping[str, Any]) -> int:
    """How many results a call has that may ask for the last state."""
    return 2 if given.get("output_final_state") else 1


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
        "selective_state_update",
        _ssu,
        mutates=(
            *("state", "state_scale"),
            *("intermediate_states_buffer", "intermediate_state_scales"),
        ),
        out=("out",),
        module="flashinfer.mamba.*",
    ),
)

UNCOVERED: tuple[Uncovered, ...] = ()
