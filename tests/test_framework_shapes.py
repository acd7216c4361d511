"""SGLang's and vLLM's shapes of use: what they call directly fails without us and not with us.

What they have behind ops of their own, or leave out while something is compiled, is the same with
us and without us.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import RunChild

SCRIPT = Path(__file__).with_name("framework_shapes.py")
LAYERS = 2

#: By the name of a shape, the op that is to stand in its graph.
OURS = {
    "direct_quantization": "flashinfer_shim.fp4_quantize",
    "direct_layernorm": "flashinfer_shim.layernorm",
    "direct_norm_and_quantization": "flashinfer_shim.fused_add_rmsnorm_quant",
    "direct_groupwise_gemm": "flashinfer_shim.gemm_fp8_nt_groupwise",
    "direct_gemm": "flashinfer_shim.fp8_blockscale_gemm_sm90",
}
THEIRS = {
    "through_an_op": "framework.fp4_quantize",
    "through_an_op_that_imports": "framework.lazy_fp4_quantize",
    "guarded": "framework.rmsnorm",
}


def whole(op: str) -> dict[str, Any]:
    """One graph that is good for any number of tokens, with ``op`` in it once for each layer."""
    return {"error": None, "ops": [op] * LAYERS, "graphs": 1}


@pytest.mark.parametrize(
    ("release", "arch"), [("0.6.1", "10.0"), ("0.6.7.post2", "9.0"), ("0.7.2", "9.0")]
)
def test_each_shape_is_one_graph_with_us_and_the_direct_ones_are_none_without_us(
    release: str, arch: str, run_child: RunChild
) -> None:
    with_us = run_child(None, args=[SCRIPT, arch], release=release).json
    assert with_us == {shape: whole({**OURS, **THEIRS}[shape]) for shape in with_us}
    assert with_us.keys() & OURS.keys()
    without = run_child(None, args=[SCRIPT, arch], release=release, shim=False).json
    assert without.keys() == with_us.keys()
    for shape, traced in without.items():
        if shape in OURS:
            kind, _ = traced["error"]
            assert (kind, traced["ops"]) == ("Unsupported", []), shape
        else:
            assert traced == with_us[shape]
