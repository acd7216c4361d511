"""Normalization."""

from __future__ import annotations

from typing import Any

from ...opaque.declare import MakeTensor, Op

_HIDDEN = 256


def _norm(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"input": make(m, _HIDDEN), "weight": make(_HIDDEN)}


def _add_norm(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"input": make(m, _HIDDEN), "residual": make(m, _HIDDEN), "weight": make(_HIDDEN)}


def _layernorm(make: MakeTensor, m: int) -> dict[str, Any]:
    weight = {name: make(_HIDDEN, dtype="float32") for name in ("gemma", "beta")}
    return {"input": make(m, _HIDDEN), **weight}


def _norm_quant(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"out": make(m, _HIDDEN, dtype="float8_e4m3fn"), **_norm(make, m), "scale": 0.5}


def _add_norm_quant(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"out": make(m, _HIDDEN, dtype="float8_e4m3fn"), **_add_norm(make, m), "scale": 0.5}


OPS = (
    Op("rmsnorm", _norm, out=("out",)),
    Op("gemma_rmsnorm", _norm, out=("out",)),
    Op("fused_add_rmsnorm", _add_norm, "()", mutates=("input", "residual")),
    Op("gemma_fused_add_rmsnorm", _add_norm, "()", mutates=("input", "residual")),
    Op("layernorm", _layernorm),
    Op("rmsnorm_quant", _norm_quant, "()", mutates=("out",)),
    Op("fused_add_rmsnorm_quant", _add_norm_quant, "()", mutates=("out", "residual")),
)
