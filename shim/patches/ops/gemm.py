"""Matrix products: BF16, FP8, FP4, grouped ones, and small ones for routers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ...opaque.declare import Example, MakeTensor, Op, Traces

_N, _K, _GROUPS = 384, 640, 2
_FP8, _FP4, _SCALE = "float8_e4m3fn", "uint8", "float32"
_SM90, _SM100 = (9, 0), (10, 0)
#: More rows than any group has, for functions that ask for such a number.
_MOST = 1 << 16
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


def _blocked(make: MakeTensor, rows: int) -> Any:
    """Scales in the layout of the tensor cores: 128 rows and 4 columns at a time."""
    size = (_GROUPS, rows // 128, _K // 16 // 4, 32, 4, 4)
    return make(*size, dtype=_FP8).permute(3, 4, 1, 5, 2, 0)


def _masked_fp4(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = 128 * m
    sides = [
        (make(_GROUPS, n, _K // 2, dtype=_FP4).permute(1, 2, 0), _blocked(make, n))
        for n in (rows, _N)
    ]
    return {
        "lhs": sides[0],
        "rhs": sides[1],
        "out": make(_GROUPS, rows, _N).permute(1, 2, 0),
        "masked_m": make(_GROUPS, dtype="int32", values=(m,) * _GROUPS),
        "ab_dtype": "float4_e2m1fn",
        "sf_dtype": "float8_e4m3fn",
        "c_dtype": "bfloat16",
        "sf_vec_size": 16,
        "alpha": make(1, 1, _GROUPS, dtype=_SCALE),
        "alpha_dtype": _SCALE,
    }


def _sorted_groups(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "a": make(m, _K, dtype=_FP8),
        "b": make(_GROUPS, _N, _K, dtype=_FP8),
        "a_scale": make(m, _K // 128, dtype=_SCALE),
        "b_scale": make(_GROUPS, _N // 128, _K // 128, dtype=_SCALE),
        "m_indices": make(m, dtype="int32"),
    }


def _indptr(make: MakeTensor, m: int) -> Any:
    """All rows belong to the first group."""
    return make(_GROUPS + 1, dtype="int32", values=(0, *(m,) * _GROUPS))


def _unpadded(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "a": make(m, _K, dtype=_FP8),
        "b": make(_GROUPS, _N, _K, dtype=_FP8),
        "m_indptr": _indptr(make, m),
    }


def _unpadded_fp8(make: MakeTensor, m: int) -> dict[str, Any]:
    padded = (m + 3 * _GROUPS) // 4 * 4
    return {
        **_unpadded(make, m),
        "a_scale": make(_K // 128, padded, dtype=_SCALE),
        "b_scale": make(_GROUPS, _K // 128, _N // 128, dtype=_SCALE),
    }


def _unpadded_mxfp8(make: MakeTensor, m: int) -> dict[str, Any]:
    padded, packed = (m + 3 * _GROUPS) // 4 * 4, -(-_K // 512)  # four scales in an integer
    return {
        **_unpadded(make, m),
        "a_scale": make(padded, packed, dtype="int32"),
        "b_scale": make(_GROUPS, _N, packed, dtype="int32"),
    }


def _segments(make: MakeTensor, m: int) -> dict[str, Any]:
    from flashinfer import SegmentGEMMWrapper

    return {
        "self": SegmentGEMMWrapper(make(1 << 20, dtype="int8")),
        "x": make(m, _K),
        "weights": make(_GROUPS, _N, _K),
        "batch_size": _GROUPS,
        "weight_column_major": True,
        "seg_indptr": make(_GROUPS + 1, dtype="int64", values=(0, *(m,) * _GROUPS)),
    }


def _segments_fake(
    wrapper: Any, x: Any, weights: Any, weight_column_major: bool, out: Any = None, **_: Any
) -> Any:
    import torch

    columns = weights.shape[1 if weight_column_major else 2]
    dtype = torch.bfloat16 if x.dtype.itemsize == 1 else x.dtype
    return x.new_empty((x.shape[0], columns), dtype=dtype)


def _rows_by_columns(a: Any, b: Any, out_dtype: Any = None, out: Any = None, **_: Any) -> Any:
    """The product of rows with groups of matrices whose columns are their rows."""
    import torch

    dtype = out.dtype if out is not None else out_dtype or torch.bfloat16
    return a.new_empty((a.shape[0], b.shape[1]), dtype=dtype)


def _cudnn_fp8(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_unpadded(make, m), "alpha": make(1, dtype=_SCALE)}


def _cudnn_mxfp8(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_unpadded(make, m),
        "a_descale": make(m, _K // 32, dtype="uint8"),
        "b_descale": make(_GROUPS, _N, _K // 32, dtype="uint8"),
    }


def _cudnn_fp4(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "a": make(m, _K // 2, dtype=_FP4),
        "b": make(_GROUPS, _N, _K // 2, dtype=_FP4),
        "a_descale": make(m, _K // 16, dtype=_FP8),
        "b_descale": make(_GROUPS, _N, _K // 16, dtype=_FP8),
        "m_indptr": _indptr(make, m),
        "alpha": make(1, dtype=_SCALE),
    }


def _fp4_weights(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "a": make(m, _K),
        "b": make(_N, _K // 2, dtype=_FP4),
        "b_descale": make(_N * _K // 16, dtype=_FP8),
        "alpha": make(1, dtype=_SCALE),
        "backend": "cute-dsl",
    }


def _adapter(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "d": make(m, 64),
        "lora_b": make(_N, 64),
        "lora_scale": make(1, dtype=_SCALE),
    }


def _fp8_adapter(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "a": make(m, _K, dtype=_FP8),
        "b": make(_N, _K, dtype=_FP8),
        **{f"{side}_scale": make(1, dtype=_SCALE) for side in "ab"},
        **_adapter(make, m),
    }


def _fp4_adapter(make: MakeTensor, m: int) -> dict[str, Any]:
    wide = 768  # a multiple of 256
    return {
        "a": make(m, wide // 2, dtype=_FP4),
        "b": make(_N, wide // 2, dtype=_FP4),
        "a_sf": make(_up(m, 128) * wide // 16, dtype="uint8"),
        "b_sf": make(_N * wide // 16, dtype="uint8"),
        "alpha": make(1, dtype=_SCALE),
        **_adapter(make, m),
    }


def _offsets(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "x": make(m, _K),
        "w": make(_GROUPS, 768, _K),
        "offs": make(_GROUPS, dtype="int32", values=(m,) * _GROUPS),
    }


# Functions of cuda.tile.


def _masked(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "a": make(_GROUPS, m, _K),
        "b": make(_GROUPS, _K, _N),
        "masked_m": make(_GROUPS, dtype="int32", values=(m,) * _GROUPS),
    }


def _scaled_sides(make: MakeTensor, rows: int, *groups: int) -> dict[str, Any]:
    """Both sides of a product of MXFP8 numbers, with the scales of 128 rows in one piece."""

    def scales(*size: int) -> Any:
        return make(*size, _K // 128, 2, 256, dtype="uint8")

    return {
        "a": make(*groups, rows, _K, dtype=_FP8),
        "b": make(_GROUPS, _N, _K, dtype=_FP8),
        "a_scale": scales(*groups, rows // 128),
        "b_scale": scales(_GROUPS, _N // 128),
        "block_scale_type": "mxfp8",
    }


def _masked_scaled(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_scaled_sides(make, 128 * m, _GROUPS),
        "masked_m": make(_GROUPS, dtype="int32", values=(m,) * _GROUPS),
    }


def _ragged(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "a": make(m, _K),
        "b": make(_GROUPS, _N, _K),
        "m_indptr": _indptr(make, m),
        "max_m": _MOST,
    }


def _ragged_scaled(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = 128 * m
    return {**_scaled_sides(make, rows), "m_indptr": _indptr(make, rows), "max_m": _MOST}


def _ragged_blocks(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = 128 * m
    return {
        "a": make(rows, _K, dtype=_FP8),
        "b": make(_GROUPS, _N, _K, dtype=_FP8),
        "a_scale": make(rows, _K // 128, dtype=_SCALE),
        "b_scale": make(_GROUPS, _N // 128, _K // 128, dtype=_SCALE),
        "m_indptr": _indptr(make, rows),
        "max_m": _MOST,
    }


def _scaled_sum(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"a": make(m, _K), "b": make(_N, _K), "c": make(m, _N), "alpha": 0.5, "beta": 2.0}


# Functions of PrimsTS.


def _ts_fp8(make: MakeTensor, m: int, side: str = "", n: int = _N) -> dict[str, Any]:
    return {
        "a": make(m, _K, dtype=_FP8),
        f"{side}weight": make(n, _K, dtype=_FP8),
        "a_scale": make(m, dtype=_SCALE),
        f"{side}weight_scale": make(n, dtype=_SCALE),
    }


def _ts_fp4(make: MakeTensor, m: int, side: str = "", n: int = _N) -> dict[str, Any]:
    wide = 768  # a multiple of 256
    return {
        "a_packed": make(m, wide // 2, dtype=_FP4),
        "a_block_scale": make(_up(m, 128) * wide // 16, dtype="uint8"),
        "a_global_scale": 0.5,
        f"{side}weight_packed": make(n, wide // 2, dtype=_FP4),
        f"{side}weight_block_scale": make(n * wide // 16, dtype="uint8"),
        f"{side}weight_global_scale": 0.25,
    }


def _ts_qkv(linear: Callable[..., dict[str, Any]]) -> Example:
    heads, head = 3, 128

    def example(make: MakeTensor, m: int) -> dict[str, Any]:
        return {
            **linear(make, m, "qkv_", 3 * heads * head),
            **{f"{name}_norm_weight": make(head) for name in "qk"},
            "cos_sin": make(m, head, dtype=_SCALE),
            "positions": make(m, dtype="int64", values="range"),
            "num_q_heads": heads,
            "num_kv_heads": heads,
            "head_dim": head,
        }

    return example


def _with_scales(given: Mapping[str, Any]) -> int:
    """Beside a quantized result come block scales, if it is FP4, and the scale if none is given."""
    dtype = given.get("out_dtype")
    if dtype is None or dtype.itemsize > 1:
        return 1
    return 1 + (not dtype.is_floating_point) + (given.get("output_quant_scale") is None)


def _prims_ts(name: str, example: Example) -> Op:
    tensors = (
        *("a", "weight", "qkv_weight", "a_scale", "weight_scale", "qkv_weight_scale", "bias"),
        *("a_packed", "a_block_scale", "weight_packed", "weight_block_scale"),
        *("qkv_weight_packed", "qkv_weight_block_scale", "q_norm_weight", "k_norm_weight"),
        *("cos_sin", "positions", "qkv_scale", "output_quant_scale", "out"),
    )
    floats = ("a_global_scale", "weight_global_scale", "qkv_weight_global_scale")
    heads = ("num_q_heads", "num_kv_heads", "head_dim")
    return Op(
        name,
        example,
        "(Tensor, Tensor, Tensor)",
        _with_scales,
        out=("out",),
        annotations={
            **dict.fromkeys(tensors, "Tensor"),
            **dict.fromkeys(floats, "float"),
            **dict.fromkeys(heads, "int"),
        },
        requires=("cutlass",),
        capability=_SM100,
        newest=(10, 7),
    )


def _on_sm12x(name: str, example: Example) -> Op:
    tensors = ("a_q", "a_scale", "b_q", "b_scale", "m_indptr")
    return Op(
        name,
        example,
        annotations=dict.fromkeys(tensors, "Tensor"),
        # In shadow it chooses a tile by the number of rows, which would make a graph for every one.
        fake=lambda a_q, b_q, out_dtype=None, **_: _rows_by_columns(a_q, b_q, out_dtype),
        requires=("cutlass", "triton"),
        capability=(12, 0),
        arch="12.0",
    )


def _on_sm12x_fp8(make: MakeTensor, m: int) -> dict[str, Any]:
    given = _unpadded_fp8(make, m)
    return {**{f"{side}_q": given.pop(side) for side in "ab"}, **given}


def _on_sm12x_mxfp8(make: MakeTensor, m: int) -> dict[str, Any]:
    # Four scales in an integer, of each 128 numbers on the one side and 32 on the other.
    padded = (m + 3 * _GROUPS) // 4 * 4
    return {
        "a_q": make(m, _K, dtype=_FP8),
        "b_q": make(_GROUPS, _N, _K // 2, dtype=_FP4),
        "m_indptr": _indptr(make, m),
        "a_scale": make(-(-_K // 512), padded, dtype="int32"),
        "b_scale": make(_GROUPS, _K // 128, _N, dtype="int32"),
    }


_STEP_EXPERTS, _STEP_TOP_K, _STEP_INNER, _STEP_HIDDEN, _TILE = 16, 8, 384, 512, 8
_CAKE_STEPFUN = "flashinfer.experimental.cake_stepfun_moe"


def _step_rows(m: int) -> int:
    """Rows of m tokens for their experts, in whole tiles for each expert."""
    pairs = m * _STEP_TOP_K
    met = min(_STEP_EXPERTS, pairs)
    return _TILE * (met + (pairs - met) // _TILE)


def _step_tables(make: MakeTensor, m: int) -> dict[str, Any]:
    """Which expert each tile of rows is for."""
    tiles = _step_rows(m) // _TILE
    sizes = {"cta_idx_xy_to_batch_idx": tiles, "cta_idx_xy_to_mn_limit": tiles}
    sizes |= {"num_non_exiting_ctas": 1, "total_num_padded_tokens": 1}
    return {name: make(size, dtype="int32") for name, size in sizes.items()}


def _step_logits(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "routing_logits": make(m, _STEP_EXPERTS),
        "num_experts": _STEP_EXPERTS,
        "top_k": _STEP_TOP_K,
        "local_expert_offset": 0,
        "local_num_experts": _STEP_EXPERTS,
    }


def _step_routing(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_step_logits(make, m),
        "topk_packed": make(m, _STEP_TOP_K, dtype="int32"),
        "topk_weights": make(m, _STEP_TOP_K),
        "expert_count_histogram": make(512, dtype="int32"),
        "expanded_idx_to_permuted_idx": make(m, _STEP_TOP_K, dtype="int32"),
        "permuted_idx_to_token_idx": make(_step_rows(m) + 1, dtype="int32"),
        **_step_tables(make, m),
        "tile_tokens_dim": _TILE,
    }


def _step_first(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "family": "bf16",
        "hidden_states": make(m, _STEP_HIDDEN),
        "gemm1_weights": make(_STEP_EXPERTS, _STEP_HIDDEN // 64, 2 * _STEP_INNER, 64),
        "gemm1_clamp_limit": make(_STEP_EXPERTS, dtype=_SCALE),
        "permuted_idx_to_token_idx": make(_step_rows(m), dtype="int32"),
        **_step_tables(make, m),
        "gemm1_output": make(_step_rows(m), _STEP_INNER),
        "top_k": _STEP_TOP_K,
        "tile_tokens_dim": _TILE,
    }


def _step_requant(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = _step_rows(m)
    return {
        "gemm1_output": make(rows, _STEP_INNER),
        "expanded_idx_to_permuted_idx": make(m * _STEP_TOP_K, dtype="int32"),
        "output": make(rows, _STEP_INNER // 2, dtype=_FP4),
        "output_scale": make(_up(rows, 128) * _STEP_INNER // 16, dtype="uint8"),
        "per_token_scale": make(rows, dtype=_SCALE),
        "sf_layout": "r8c4",
    }


def _step_second(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "family": "bf16",
        "gemm2_input": make(_step_rows(m), _STEP_INNER),
        "gemm2_weights": make(_STEP_EXPERTS, _STEP_INNER // 64, _STEP_HIDDEN, 64),
        **_step_tables(make, m),
        "gemm2_output": make(_step_rows(m), _STEP_HIDDEN),
        "num_tokens": m,
        "top_k": _STEP_TOP_K,
        "tile_tokens_dim": _TILE,
    }


def _step_last(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "gemm2_output": make(_step_rows(m), _STEP_HIDDEN),
        "expert_weights": make(m, _STEP_TOP_K),
        "expanded_idx_to_permuted_idx": make(m, _STEP_TOP_K, dtype="int32"),
        "total_num_padded_tokens": make(1, dtype="int32"),
        "output": make(m, _STEP_HIDDEN),
        "num_experts": _STEP_EXPERTS,
    }


def _step_whole(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_step_logits(make, m),
        "family": "bf16",
        "hidden_states": make(m, _STEP_HIDDEN),
        "gemm1_weights": make(_STEP_EXPERTS, _STEP_HIDDEN // 64, 2 * _STEP_INNER, 64),
        "gemm1_clamp_limit": make(_STEP_EXPERTS, dtype=_SCALE),
        "gemm2_weights": make(_STEP_EXPERTS, _STEP_INNER // 64, _STEP_HIDDEN, 64),
    }


def _step_results(given: Mapping[str, Any]) -> list[int]:
    if not given.get("do_finalize", True):
        raise TypeError("do_finalize has to be True in a compiled graph")
    return [1]


def _step_fake(*, family: str, hidden_states: Any, **_: object) -> tuple[Any]:
    tokens, columns = hidden_states.shape
    size = (tokens, 2 * columns if family.startswith("nvfp4") else columns)
    return (hidden_states.new_empty(size, dtype=_bfloat16()),)


#: The projection's weights, which are prepared once for a device, or without data.
_PROJECTIONS: dict[object, Any] = {}
_CAKE_PROJECTION = "flashinfer.experimental.kimi_k3_fp8_projection.cake_backend"


def _projected(make: MakeTensor, m: int) -> dict[str, Any]:
    x = make(m, 128)
    key = (type(x), x.device)
    if key not in _PROJECTIONS:
        _PROJECTIONS[key] = _projection(x)
    return {"x": x, "prepared": _PROJECTIONS[key]}


def _projection(x: Any) -> Any:
    """Weights of 1536 rows for x, as upstream prepares them."""
    module = import_module(_CAKE_PROJECTION)
    import torch

    tiles, inner = 12, x.shape[1]
    exponents = x.new_zeros((tiles, inner // 128), dtype=torch.uint8)
    return module.PreparedProjectionWeight(
        **{"n_valid": 128 * tiles, "n_pad": 128 * tiles, "n_tiles": tiles // 2, "K": inner},
        **{"n_tiles128": tiles, "num_k_iters": 1, "k_blocks_pad": 2},
        sf_k_sets=module.k_sets(inner),
        weight_tiles=x.new_zeros((2 * tiles, 128, 128), dtype=torch.float8_e4m3fn),
        scale_tiles=module.weight_scale_tiles(exponents, inner),
        weight_scale_ue8m0=x.new_ones((tiles, inner // 128), dtype=torch.float32),
        sf_bytes=exponents,
    )


def _projected_like(*, x: Any, prepared: Any, **_: object) -> Any:
    return x.new_empty((x.shape[0], prepared.n_valid))


#: Parameters of its stages, which upstream takes by keyword without naming them.
_STEP_TENSORS = (
    *("routing_logits", "topk_ids", "topk_packed", "topk_weights", "expert_count_histogram"),
    *("total_num_padded_tokens", "expanded_idx_to_permuted_idx", "permuted_idx_to_token_idx"),
    *("cta_idx_xy_to_batch_idx", "cta_idx_xy_to_mn_limit", "num_non_exiting_ctas"),
    *("hidden_states", "hidden_states_scale", "gemm1_weights", "gemm1_weights_scale"),
    *("output1_scale_scalar", "output1_scale_gate_scalar", "gemm1_clamp_limit"),
    *("per_token_scale", "gemm1_output", "gemm1_output_scale", "output", "output_scale"),
    *("gemm2_input", "gemm2_input_scale", "gemm2_weights", "gemm2_weights_scale"),
    *("output2_scale_scalar", "gemm2_output", "expert_weights"),
)
_STEP_NUMBERS = (
    *("num_experts", "top_k", "local_expert_offset", "local_num_experts", "tile_tokens_dim"),
    *("num_tokens", "reserved_sms"),
)
_STEP_KINDS = {
    **dict.fromkeys(_STEP_TENSORS, "Tensor"),
    **dict.fromkeys(_STEP_NUMBERS, "int"),
    **dict.fromkeys(("family", "sf_layout"), "str"),
    **{"enable_pdl": "bool", "global_scale_inv": "float"},
}


def _step(stage: str, example: Example, *mutates: str) -> Op:
    """One stage of StepFun's experts, into buffers of the caller's."""
    return Op(
        f"cake_stepfun_{stage}",
        example,
        "()",
        mutates=mutates,
        keywords=tuple(_STEP_KINDS),
        annotations=_STEP_KINDS,
        capability=_SM100,
        newest=(10, 3),
        function=stage,
        module=_CAKE_STEPFUN,
    )


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
    Op(
        "m_grouped_fp8_gemm_nt_contiguous",
        _deep_contiguous,
        "()",
        mutates=("d",),
        capability=_SM100,
    ),
    Op("m_grouped_fp8_gemm_nt_masked", _deep_masked, "()", mutates=("d",), capability=_SM100),
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
    Op(
        "grouped_gemm_nt_masked",
        _masked_fp4,
        mutates=("dst_signals",),
        out=("out",),
        keywords=("alpha", "alpha_dtype"),
        annotations={"alpha": "Tensor", "alpha_dtype": "str"},
        requires=("cutlass",),
        capability=_SM100,
    ),
    Op(
        "group_gemm_fp8_nt_groupwise_contiguous",
        _sorted_groups,
        out=("out",),
        unseen=("validate_indices",),
        requires=("cutlass",),
        capability=_SM100,
    ),
    Op(
        "moe_gemm_fp8_nt_groupwise",
        _unpadded_fp8,
        out=("out",),
        capability=(12, 0),
        arch="12.0",
    ),
    Op(
        "moe_gemm_mxfp8_nt_groupwise",
        _unpadded_mxfp8,
        out=("out",),
        capability=(12, 0),
        arch="12.0",
    ),
    Op(
        "SegmentGEMMWrapper.run",
        _segments,
        out=("out",),
        # In shadow it imports Triton, which not every torch comes with.
        fake=_segments_fake,
        requires=("triton",),
    ),
    Op("mm_bf16_fp4", _fp4_weights, out=("out",), requires=("cutlass",), capability=_SM100),
    Op("mm_fp8_lora", _fp8_adapter, out=("out",), capability=_SM90, newest=(10, 3)),
    Op("mm_nvfp4_lora", _fp4_adapter, out=("out",), capability=_SM100, newest=(10, 3)),
    # By rule: cuDNN plans each size by itself.
    *(
        Op(
            f"grouped_mm_{kind}",
            example,
            out=("out",),
            fake=_rows_by_columns,
            requires=("cudnn",),
            capability=_SM100,
        )
        for kind, example in {
            "bf16": lambda make, m: {
                **_unpadded(make, m),
                **{"a": make(m, _K), "b": make(_GROUPS, _N, _K)},
            },
            "fp8": _cudnn_fp8,
            "mxfp8": _cudnn_mxfp8,
            "fp4": _cudnn_fp4,
        }.items()
    ),
    # In shadow their launches are planned by the number of rows: a graph for every number.
    *(
        Op(
            name,
            _offsets,
            out=("out",),
            fake=lambda x, w, **_: _rows_by_columns(x, w),
            capability=_SM100,
            newest=(10, 7),
            module=module,
        )
        for name, module in {
            "grouped_det_gemm_fwd": "flashinfer.grouped_mm.cake",
            "grouped_gemm_fwd": "flashinfer.experimental.cake.grouped_mm",
        }.items()
    ),
    *(
        Op(name, example, requires=("cuda.tile",), capability=capability, **declared)
        for name, example, capability, declared in (
            ("masked_bmm", _masked, _SM90, {"out": ("out",)}),
            ("masked_scaled_bmm", _masked_scaled, _SM100, {}),
            ("ragged_bmm", _ragged, _SM90, {}),
            ("ragged_block_scaled_bmm", _ragged_blocks, _SM100, {}),
            ("ragged_scaled_bmm", _ragged_scaled, _SM100, {}),
            # It returns what it is given; in shadow it looks sizes up among those it has met.
            ("gemm_alpha_beta", _scaled_sum, _SM90, {"out": ("c",), "fake": lambda c, **_: c}),
        )
    ),
    _prims_ts("fp8_linear", _ts_fp8),
    _prims_ts("fp8_linear_swiglu", _ts_fp8),
    _prims_ts("fp8_qkv_qknorm_rope", _ts_qkv(_ts_fp8)),
    _prims_ts("fp4_linear", _ts_fp4),
    _prims_ts("fp4_linear_swiglu", _ts_fp4),
    _prims_ts("fp4_qkv_qknorm_rope", _ts_qkv(_ts_fp4)),
    _step(
        *("routing", _step_routing, "topk_packed", "topk_weights", "expert_count_histogram"),
        *("total_num_padded_tokens", "expanded_idx_to_permuted_idx", "permuted_idx_to_token_idx"),
        *("cta_idx_xy_to_batch_idx", "cta_idx_xy_to_mn_limit", "num_non_exiting_ctas"),
    ),
    Op(
        "stepfun_moe",
        _step_whole,
        results=_step_results,
        mutates=("topk_ids", "topk_weights"),
        out=("output",),
        # In shadow it looks up its programs for the number of tokens; the next, too.
        fake=_step_fake,
        annotations={"plan": f"{_CAKE_STEPFUN}.cake_backend.Plan"},
        capability=_SM100,
        newest=(10, 3),
        module=_CAKE_STEPFUN,
    ),
    Op(
        "kimi_k3_fp8_projection",
        _projected,
        mutates=("workspace",),
        out=("out",),
        fake=_projected_like,
        annotations={"prepared": "object", "workspace": f"{_CAKE_PROJECTION}.ProjectionWorkspace"},
        capability=_SM100,
        newest=(10, 3),
    ),
    _step("fc1", _step_first, "gemm1_output", "gemm1_output_scale"),
    _step("requant", _step_requant, "output", "output_scale", "per_token_scale"),
    _step("fc2", _step_second, "gemm2_output"),
    _step("finalize", _step_last, "output"),
    _on_sm12x("cute_dsl_sm12x_moe_gemm_fp8", _on_sm12x_fp8),
    _on_sm12x("cute_dsl_sm12x_moe_gemm_mxfp8_mxfp4", _on_sm12x_mxfp8),
)


def _swizzled(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = 128 * m
    return {"sf": make(rows, _K // 16, dtype="uint8"), "m": rows, "k": _K}


def _tiled(make: MakeTensor, m: int) -> dict[str, Any]:
    scales = make(32, 4, m, 4, _K // 64, 1, dtype="uint8")
    return {"sf_6d": scales, "m": 128 * m, "k": _K}


TRACES = (
    Traces("convert_sf_to_mma_layout", _swizzled),
    Traces("convert_sf_from_mma_layout", _tiled),
)
