"""Attention over parts of a cache, merged."""

from __future__ import annotations

from typing import Any

from ...opaque.declare import MakeTensor, Op

_HEADS, _HEAD = 8, 64
_PAIR = "(Tensor, Tensor)"


def _state(make: MakeTensor, m: int, v: str, s: str) -> dict[str, Any]:
    return {v: make(m, _HEADS, _HEAD), s: make(m, _HEADS, dtype="float32")}


def _two(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_state(make, m, "v_a", "s_a"), **_state(make, m, "v_b", "s_b")}


def _in_place(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_state(make, m, "v", "s"), **_state(make, m, "v_other", "s_other")}


def _several(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"v": make(m, 3, _HEADS, _HEAD), "s": make(m, 3, _HEADS, dtype="float32")}


OPS = (
    Op("merge_state", _two, _PAIR),
    Op("merge_state_in_place", _in_place, "()", mutates=("v", "s")),
    Op("merge_states", _several, _PAIR),
)
