"""When ``fp4_quantize`` is the function that we know, and how it differs between releases.

It retires when upstream defines the function itself as an op: the probe ``fixed`` sees that.
"""

from __future__ import annotations

from dataclasses import replace

from ..contract import Contract, Row
from ..sources import FunctionFacts
from .fp4_traits import CuteTraits, Fp4Traits
from .releases import RELEASES

_JIT_GETTER = "get_fp4_quantization_module"


def _faulty(facts: FunctionFacts) -> bool:
    return _JIT_GETTER in facts.names


def _fixed(facts: FunctionFacts) -> bool:
    made_an_op = any(name.endswith(("custom_op", "triton_op")) for name in facts.decorators)
    calls_an_op = {"torch", "ops"} <= facts.names and _JIT_GETTER not in facts.names
    return made_an_op or calls_an_op


_SINCE_050 = (
    "input, global_scale=None, sf_vec_size=16, sf_use_ue8m0=False, "
    "is_sf_swizzled_layout=True, is_sf_8x4_layout=False"
)
_S1 = f"{_SINCE_050}, enable_pdl=None"
_S2 = f"{_S1}, backend='cuda'"
_S3 = f"{_SINCE_050}, is_global_scale_inversed=False, enable_pdl=None, backend='cuda'"
_S4 = f"{_S3}, nvfp4_4over6=_UNSET"
_S5 = _S4.replace("'cuda'", "'auto'") + ", *, batch_invariant=False"

_OLD = "flashinfer.fp4_quantization"
_NEW = "flashinfer.quantization.fp4_quantization"

_CUTE_068 = CuteTraits(
    mxfp4_8x4=False,
    mxfp4_padded=False,
    tma="by size",
    tma_8x4_tile=16,
    empty_returns_early=False,
    recipe_first=False,
)
_CUTE_0612 = replace(_CUTE_068, mxfp4_8x4=True)
_CUTE_0616 = replace(_CUTE_0612, mxfp4_padded=True, tma="on request")
_CUTE_070 = replace(_CUTE_0616, empty_returns_early=True)
_CUTE_071 = replace(_CUTE_070, tma_8x4_tile=8)
_CUTE_074 = replace(_CUTE_071, recipe_first=True)

_T050 = Fp4Traits(padded_columns=False, linear_slack=False)
_T067 = Fp4Traits(padded_columns=False, linear_slack=True)
_T068 = Fp4Traits(
    padded_columns=True, linear_slack=True, backends=("cuda", "cute-dsl"), cute=_CUTE_068
)
_T0612 = replace(_T068, cute=_CUTE_0612)
_T0613 = replace(_T0612, four_over_six="environment")
_T0616 = replace(_T0613, cute=_CUTE_0616)
_T070 = replace(_T0616, cute=_CUTE_070)
_T071 = replace(_T070, four_over_six="parameter", cute=_CUTE_071)
_T074 = replace(_T071, linear_slack=False, backends=("auto", "cuda", "cute-dsl"), cute=_CUTE_074)

CONTRACT = Contract(
    function="fp4_quantize",
    companions=(
        _JIT_GETTER,
        "_compute_swizzled_layout_sf_size",
        "_fp4_quantize_cute_dsl",
        "_resolve_fp4_quantize_recipe",
    ),
    rows=(
        Row("0.5.0", "0.5.3", _OLD, _S1, "58c8e8c0ac2a", traits=_T050),
        Row("0.6.0", "0.6.5", _OLD, _S1, "a12b7c272f44", traits=_T050),
        Row("0.6.6", "0.6.6", _OLD, _S1, "d327c5567e16", traits=_T050),
        Row("0.6.7", "0.6.7.post3", _NEW, _S1, "17cf7970e6ac", traits=_T067),
        Row("0.6.8", "0.6.10.post1", _NEW, _S2, "591de0298ccb", traits=_T068),
        Row("0.6.11", "0.6.11.post3", _NEW, _S3, "38c9899188fe", traits=_T068),
        Row("0.6.12", "0.6.12", _NEW, _S3, "6989348f085a", traits=_T0612),
        Row("0.6.13", "0.6.15.post1", _NEW, _S3, "bd1bd5c4ae8b", traits=_T0613),
        Row("0.6.16", "0.6.18.post1", _NEW, _S3, "555579bc2407", traits=_T0616),
        Row("0.7.0", "0.7.0.post1", _NEW, _S3, "e2cdb9f1bacd", traits=_T070),
        Row("0.7.1", "0.7.2", _NEW, _S4, "6d997fcc8fab", traits=_T071),
        Row("0.7.2.post1", "0.7.2.post1", _NEW, _S4, "067d5ccf3c03", traits=_T071),
        Row("0.7.4", RELEASES[-1], _NEW, _S5, "1dd43a3994fd", traits=_T074),
    ),
    fixed=_fixed,
    faulty=_faulty,
)
CONTRACTS = {"fp4_quantize": CONTRACT}
