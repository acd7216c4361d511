"""Activation and gating."""

from __future__ import annotations

from typing import Any

from ...opaque.declare import MakeTensor, Op

_HIDDEN = 256


def _gated(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"input": make(m, 2 * _HIDDEN)}


OPS = tuple(
    Op(name, _gated, out=("out",)) for name in ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul")
)
