"""Matrix products: BF16, FP8, FP4, grouped ones, and small ones for routers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...opaque.declare import MakeTensor, Op

_N, _K, _GROUPS = 384, 640, 2
_FP8, _FP4, _SCALE = "float8_e4m3fn", "uint8", "float32"
_SM90, _SM100 = (9, 0), (10, 0)
_ROUTERS = ((256, 7168), (256, 6144), (384, 7168), (896, 7168))


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _plain(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"a": make(m, _K), "b": make(_N, _K).mT, "backend": "cutlass"}


def _batched(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"A": make(_GROUPS, m, _K), "B": make(_GROUPS, _N, _K).mT, "backend": "cutlass"}


def _fp4(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "a": make(m, _K // 2, dtype=_FP4),
        "b": make(_N, _K // 2, dtype=_FP4).mT,
        "a_descale": make(_up(m, 128), _K // 16, dtype="uint8"),
        "b_descale": make(_N, _K // 16, dtype="uint8").mT,
        "alpha": make(1, dtype=_SCALE),
        "backend": "cutlass",
    }


def _low_latency_fp8(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "a": make(m, _K, dtype=_FP8),
        "b": make(_K // 128, _N, 128, dtype=_FP8),
        "alpha": make(1, dtype=_SCALE),
    }


def _mxfp8(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "a": make(m, _K, dtype=_FP8),
        "b": make(_N, _K, dtype=_FP8).mT,
        "a_descale": make(_up(m, 128) * _K // 32, dtype="uint8"),
        "b_descale": make(_N * _K // 32, dtype="uint8"),
        "backend": "cutlass",
    }


def _batched_fp8(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "A": make(_GROUPS, m, _K, dtype=_FP8),
        "B": make(_GROUPS, _N, _K, dtype=_FP8).mT,
        "A_scale": make(1, dtype=_SCALE),
        "B_scale": make(1, dtype=_SCALE),
        "dtype": _bfloat16(),
        "backend": "cublas",
    }


def _batched_mxfp8(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "A": make(_GROUPS, m, _K, dtype=_FP8),
        "B": make(_GROUPS, _N, _K, dtype=_FP8).mT,
        "A_scale": make(_GROUPS * _up(m, 128) * _K // 32, dtype="uint8"),
        "B_scale": make(_GROUPS * _N * _K // 32, dtype="uint8"),
        "dtype": _bfloat16(),
    }


def _bfloat16() -> Any:
    import torch  # examples alone need it; declarations are read without torch

    return torch.bfloat16


def _tgv(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"a": make(m, _K), "b": make(_N, _K).mT, "bias": make(_N)}


def _groupwise(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "a": make(m, _K, dtype=_FP8),
        "b": make(_N, _K, dtype=_FP8),
        "a_scale": make(_K // 128, m, dtype=_SCALE),
        "b_scale": make(_K // 128, _N // 128, dtype=_SCALE),
        "scale_major_mode": "MN",
    }


def _blockscaled(make: MakeTensor, m: int) -> dict[str, Any]:
    # A scale for every 128 rows.
    return {**_groupwise(make, 128 * m), "a_scale": make(_K // 128, m, dtype=_SCALE)}


def _groups(make: MakeTensor, m: int, a: Any, b: Any) -> dict[str, Any]:
    return {"a": a, "b": b, "m_indptr": make(3, dtype="int32", values=(0, 4 * m, 4 * m))}


def _grouped_fp8(make: MakeTensor, m: int) -> dict[str, Any]:
    a, b = make(4 * m, _K, dtype=_FP8), make(_GROUPS, _N, _K, dtype=_FP8)
    return {
        **_groups(make, m, a, b),
        "a_scale": make(_K // 128, 4 * m, dtype=_SCALE),
        "b_scale": make(_GROUPS, _K // 128, _N // 128, dtype=_SCALE),
    }


def _grouped_mxfp4(make: MakeTensor, m: int) -> dict[str, Any]:
    a, b = make(4 * m, _K, dtype=_FP8), make(_GROUPS, _N, _K // 2, dtype=_FP4)
    return {
        **_groups(make, m, a, b),
        "a_scale": make(_up(4 * m, 128) + 128, _K // 32, dtype="uint8"),
        "b_scale": make(_GROUPS, _N, _K // 32, dtype="uint8"),
    }


def _grouped_nvfp4(make: MakeTensor, m: int) -> dict[str, Any]:
    a, b = make(4 * m, _K // 2, dtype=_FP4), make(_GROUPS, _N, _K // 2, dtype=_FP4)
    return {
        **_groups(make, m, a, b),
        "a_scale": make(_up(4 * m, 128) + 128, _K // 16, dtype="uint8"),
        "b_scale": make(_GROUPS, _N, _K // 16, dtype="uint8"),
        "alpha": make(_GROUPS, dtype=_SCALE),
    }


def _contiguous_groups(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = 128 * m
    return {
        "a": make(rows, _K, dtype=_FP8),
        "b": make(_GROUPS, _N, _K, dtype=_FP8),
        "a_scale": make(rows, _K // 128, dtype=_SCALE),
        "b_scale": make(_GROUPS, _N // 128, _K // 128, dtype=_SCALE),
        "m_indices": make(rows, dtype="int32"),
    }


def _masked_groups(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = 128 * m
    return {
        "a": make(_GROUPS, rows, _K, dtype=_FP8),
        "b": make(_GROUPS, _N, _K, dtype=_FP8),
        "a_scale": make(_GROUPS, rows, _K // 128, dtype=_SCALE),
        "b_scale": make(_GROUPS, _N // 128, _K // 128, dtype=_SCALE),
        "masked_m": make(_GROUPS, dtype="int32"),
        "expected_m": rows,
    }


def _in_pairs(given: Mapping[str, Any], out: Any) -> dict[str, Any]:
    """The arguments as DeepGEMM has them: values with their scales."""
    rest = {name: value for name, value in given.items() if name[:2] not in ("a", "b", "a_", "b_")}
    pairs = {f"{side}_fp8": (given[side], given[f"{side}_scale"]) for side in "ab"}
    return {**pairs, **rest, "d": out}


def _deep_contiguous(make: MakeTensor, m: int) -> dict[str, Any]:
    return _in_pairs(_contiguous_groups(make, m), make(128 * m, _N))


def _deep_masked(make: MakeTensor, m: int) -> dict[str, Any]:
    return _in_pairs(_masked_groups(make, m), make(_GROUPS, 128 * m, _N))


def _router(n: int, k: int, out: str) -> Callable[[MakeTensor, int], dict[str, Any]]:
    def example(make: MakeTensor, m: int) -> dict[str, Any]:
        m = min(max(m, 1), 16)  # what the kernels are made for
        return {"mat_a": make(m, k), "mat_b": make(n, k).mT, "out": make(m, n, dtype=out)}

    return example


def _tiny(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "input": make(m, _K),
        "weight": make(_N, _K),
        "out": make(m, _N),
        "bias": make(_N),
    }


def _concat_mla(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"k": make(m, 128, 192), "k_nope": make(m, 128, 128), "k_rope": make(m, 1, 64)}


def _smooth(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "x": make(m, _K),
        "pre_quant_scale": make(_K),
        "global_scale": make(1, dtype=_SCALE),
    }


def _low_rank(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "a": make(m, _K // 2, dtype=_FP4),
        "b": make(_N, _K // 2, dtype=_FP4),
        "a_sf": make(_up(m, 128) * _K // 16, dtype="uint8"),
        "b_sf": make(_N * _K // 16, dtype="uint8"),
        "alpha": make(1, dtype=_SCALE),
        "d": make(m, 64),
        "l1": make(_N, 64),
    }


def _low_rank_linear(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_smooth(make, m),
        "weight_fp4": make(_N, _K // 2, dtype=_FP4),
        "weight_sf": make(_N * _K // 16, dtype="uint8"),
        "alpha": make(1, dtype=_SCALE),
        "l2t_smoothed": make(_K, 64),
        "l1_scaled": make(_N, 64),
    }


OPS = (
    Op("mm_fp4", _fp4, out=("out",), capability=_SM100),
    Op("mm_fp8", _low_latency_fp8, out=("out",), capability=_SM100),
    Op("mm_mxfp8", _mxfp8, out=("out",), capability=_SM100),
    Op("mm_bf16", _plain, out=("out",), capability=_SM100),
    Op("bmm_bf16", _batched, out=("out",), capability=_SM100),
    Op("bmm_fp8", _batched_fp8, out=("out",), capability=(8, 9)),
    Op("bmm_mxfp8", _batched_mxfp8, out=("out",), capability=_SM100, arch="12.0"),
    Op("tgv_gemm_sm100", _tgv, out=("out",), capability=_SM100),
    Op("gemm_fp8_nt_groupwise", _groupwise, out=("out",), capability=_SM100),
    Op("gemm_fp8_nt_blockscaled", _blockscaled, out=("out",), capability=_SM100),
    Op("group_gemm_fp8_nt_groupwise", _grouped_fp8, out=("out",), capability=_SM100),
    Op("group_gemm_mxfp8_mxfp4_nt_groupwise", _grouped_mxfp4, out=("out",), capability=_SM100),
    Op(
        "group_gemm_nvfp4_nt_groupwise",
        _grouped_nvfp4,
        out=("out",),
        capability=(12, 0),
        arch="12.0",
    ),
    Op(
        "group_deepgemm_fp8_nt_groupwise",
        _contiguous_groups,
        out=("out",),
        capability=_SM100,
    ),
    Op(
        "batch_deepgemm_fp8_nt_groupwise",
        _masked_groups,
        out=("out",),
        capability=_SM100,
    ),
    Op("m_grouped_fp8_gemm_nt_contiguous", _deep_contiguous, "()", mutates=("d",)),
    Op("m_grouped_fp8_gemm_nt_masked", _deep_masked, "()", mutates=("d",)),
    Op(
        "fp8_blockscale_gemm_sm90",
        lambda make, m: {"input": make(m, _K), "weight": make(_N, _K)},
        out=("out",),
        capability=_SM90,
        arch="9.0",
    ),
    Op("tinygemm_bf16", _tiny, "()", mutates=("out",), capability=_SM90),
    *(
        Op(f"mm_M1_16_K{k}_N{n}", _router(n, k, out), "()", mutates=("out",), capability=_SM100)
        for n, k, out in ((128, 7168, "bfloat16"), *((n, k, _SCALE) for n, k in _ROUTERS))
    ),
    *(
        Op(f"mm_M1_16_K7168_N{n}_bf16", _router(n, 7168, "bfloat16"), "()", mutates=("out",))
        for n in (256, 384, 896)
    ),
    Op("concat_mla_k", _concat_mla, "()", mutates=("k",)),
    Op("nvfp4_quantize_smooth", _smooth, "(Tensor, Tensor)", capability=_SM100),
    Op("mm_nvfp4_svdquant", _low_rank, out=("out",), capability=_SM100),
    Op("svdquant_linear", _low_rank_linear, capability=_SM100),
)
