"""The reference quantizer: blocks computed by hand, corners of the kernel, shapes and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from shim.reference import dequantize_fp4, quantize_fp4

INF, NAN = float("inf"), float("nan")
ONE = torch.ones(1)
NVFP4: dict[str, Any] = {"sf_vec_size": 16, "sf_use_ue8m0": False}
MXFP4: dict[str, Any] = {"sf_vec_size": 32, "sf_use_ue8m0": True}
LINEAR: dict[str, Any] = {"is_sf_swizzled_layout": False, "is_sf_8x4_layout": False}
SWIZZLED: dict[str, Any] = {"is_sf_swizzled_layout": True, "is_sf_8x4_layout": False}
SWIZZLED_8X4: dict[str, Any] = {"is_sf_swizzled_layout": True, "is_sf_8x4_layout": True}

# All midpoints between E2M1 values, and the codes that their even neighbours have.
MIDPOINTS = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0]
MIDPOINT_BYTES = [0x20, 0x42, 0x64, 0x76, 0xA8, 0xCA, 0xEC, 0xFE]


def block(values: list[float], size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """One row, filled up with zeros."""
    return torch.tensor([values + [0.0] * (size - len(values))]).to(dtype)


def quantize_row(input: Tensor, global_scale: Tensor | None, **kind: Any) -> tuple[list[int], int]:
    """The bytes and the scale byte of an input that is one block."""
    x_q, sf = quantize_fp4(input, global_scale, **kind, **LINEAR, padded_columns=True)
    assert x_q.dtype == sf.dtype == torch.uint8
    return x_q[0].tolist(), int(sf)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_block_whose_scale_is_one_rounds_its_midpoints_to_even(dtype: torch.dtype) -> None:
    x = block([*MIDPOINTS, *(-value for value in MIDPOINTS)], 16, dtype)
    assert quantize_row(x, ONE, **NVFP4) == (MIDPOINT_BYTES, 0x38)


def test_mxfp4_of_the_same_values_gives_the_same_codes() -> None:
    x = block([*MIDPOINTS, *(-value for value in MIDPOINTS)], 32)
    assert quantize_row(x, None, **MXFP4) == ([*MIDPOINT_BYTES, *[0] * 8], 127)


def test_the_global_scale_goes_into_the_block_scale_and_not_into_the_codes() -> None:
    x = block([*MIDPOINTS, *(-value for value in MIDPOINTS)], 16)
    assert quantize_row(x, torch.tensor([6.0]), **NVFP4) == (MIDPOINT_BYTES, 0x4C)


def test_an_inversed_global_scale_is_its_reciprocal() -> None:
    x = block([1.0, -3.0, 0.3], 16)
    plain = quantize_row(x, torch.tensor([8.0]), **NVFP4)
    inversed = quantize_row(x, torch.tensor([0.125]), **NVFP4, is_global_scale_inversed=True)
    assert inversed == plain
    assert inversed != quantize_row(x, torch.tensor([0.125]), **NVFP4)


def test_the_nvfp4_scale_is_rounded_to_nearest_so_the_largest_element_may_saturate() -> None:
    # 6.25 / 6 = 1.042 rounds down to 1: 6.25 becomes 6.
    assert quantize_row(block([6.25, -6.25], 16), ONE, **NVFP4) == ([0xF7] + [0] * 7, 0x38)


def test_the_mxfp4_scale_is_rounded_up_so_nothing_saturates() -> None:
    # 6.25 / 6 = 1.042 rounds up to 2: 6.25 / 2 = 3.125 becomes 3, code 5.
    assert quantize_row(block([6.25, -6.25], 32), None, **MXFP4) == ([0xD5] + [0] * 15, 128)


@pytest.mark.parametrize(("amax", "byte"), [(3.0, 126), (6.0, 127), (12.0, 128), (12.0625, 129)])
def test_mxfp4_scales_of_six_times_a_power_of_two_are_exact(amax: float, byte: int) -> None:
    assert quantize_row(block([amax], 32), None, **MXFP4)[1] == byte


def test_the_e4m3_scale_saturates_at_448() -> None:
    # 60000 / 6 = 10000: stored as 448. 448 * 2.5 is a midpoint and goes to 2, code 4.
    x = block([60000.0, 1120.0], 16, torch.float16)
    assert quantize_row(x, ONE, **NVFP4) == ([0x47] + [0] * 7, 0x7E)


def test_a_subnormal_e4m3_scale_is_as_good_as_any() -> None:
    x = block([6 * 2.0**-9, -3 * 2.0**-9, 2.0**-9], 16)
    assert quantize_row(x, ONE, **NVFP4) == ([0xD7, 0x02] + [0] * 6, 0x01)


def test_where_the_e4m3_scale_of_a_block_underflows_its_elements_are_sixes() -> None:
    # 6 * 2**-10 / 6 is half the smallest E4M3 number and goes to 0, whose reciprocal is infinite:
    # a number times that saturates, and zero times that is NaN, which is +6 as well.
    x = block([6 * 2.0**-10, -6 * 2.0**-10], 16)
    assert quantize_row(x, ONE, **NVFP4) == ([0xF7] + [0x77] * 7, 0x00)


@pytest.mark.parametrize("kind", [NVFP4, MXFP4])
def test_a_block_of_zeros_is_zero_and_keeps_its_signs(kind: dict[str, Any]) -> None:
    size = kind["sf_vec_size"]
    x = block([0.0, -0.0], size)
    assert quantize_row(x, ONE, **kind) == ([0x80] + [0] * (size // 2 - 1), 0)


@pytest.mark.parametrize(("kind", "scale"), [(NVFP4, 0x38), (MXFP4, 127)])
def test_nan_elements_become_plus_six_and_do_not_touch_the_scale(
    kind: dict[str, Any], scale: int
) -> None:
    x = block([NAN, -NAN, 6.0, -1.0], kind["sf_vec_size"])
    codes, sf = quantize_row(x, ONE, **kind)
    assert (codes[:2], sf) == ([0x77, 0xA7], scale)


@pytest.mark.parametrize(("kind", "scale"), [(NVFP4, 0x7F), (MXFP4, 255)])
def test_a_block_of_nan_has_the_nan_scale(kind: dict[str, Any], scale: int) -> None:
    size = kind["sf_vec_size"]
    assert quantize_row(block([NAN] * size, size), ONE, **kind)[1] == scale


def test_an_infinite_element_saturates_an_nvfp4_block() -> None:
    # The scale is 448, the largest: 448 itself is one of them.
    assert quantize_row(block([INF, -INF, 448.0], 16), ONE, **NVFP4) == (
        [0xF7, 0x02] + [0] * 6,
        0x7E,
    )


def test_an_infinite_element_leaves_nothing_else_of_an_mxfp4_block() -> None:
    # The scale is 2**127, whose reciprocal is subnormal and flushed: infinity times zero is NaN.
    assert quantize_row(block([INF, -448.0], 32), None, **MXFP4) == ([0x87] + [0] * 15, 254)


@pytest.mark.parametrize("kind", [NVFP4, MXFP4])
def test_float32_subnormals_count_as_zero(kind: dict[str, Any]) -> None:
    size = kind["sf_vec_size"]
    assert quantize_row(block([2.0**-127, -(2.0**-130)], size), ONE, **kind) == (
        [0x80] + [0] * (size // 2 - 1),
        0,
    )


def test_mxfp4_takes_no_notice_of_the_global_scale() -> None:
    x = block([6.25, -1.0], 32)
    assert quantize_row(x, torch.tensor([3.7]), **MXFP4) == quantize_row(x, None, **MXFP4)


def test_float8_input_stands_for_six_over_the_global_scale_times_itself() -> None:
    x = block([*MIDPOINTS, *(-value for value in MIDPOINTS)], 16, torch.float8_e4m3fn)
    # With 6 the input stands for itself; the block scale is 6 * 6 / 6.
    assert quantize_row(x, torch.tensor([6.0]), **NVFP4) == (MIDPOINT_BYTES, 0x4C)
    # With 3 it stands for twice itself, and the block scale is 3 * 12 / 6.
    assert quantize_row(x, torch.tensor([3.0]), **NVFP4) == (MIDPOINT_BYTES, 0x4C)


def test_float8_input_to_mxfp4_has_six_for_a_factor_and_heeds_a_global_scale() -> None:
    x = block([1.0, -0.5], 32, torch.float8_e4m3fn)
    assert quantize_row(x, None, **MXFP4) == ([0xD7] + [0] * 15, 127)
    assert quantize_row(x, torch.tensor([4.0]), **MXFP4) == ([0xD7] + [0] * 15, 127)
    x_q, sf = quantize_fp4(x, torch.tensor([4.0]), **MXFP4, **LINEAR, padded_columns=True)
    read = dequantize_fp4(x_q, sf, torch.tensor([4.0]), **MXFP4, **LINEAR)
    assert read[0, :2].tolist() == [1.5, -0.75], "6 / 4 times the input"


def test_each_row_may_have_a_global_scale_of_its_own() -> None:
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    scales = torch.tensor([1.0, 100.0, 7.3])
    x_q, sf = quantize_fp4(x, scales, **NVFP4, **LINEAR, padded_columns=True)
    for row in range(3):
        alone = quantize_fp4(x[row : row + 1], scales[row], **NVFP4, **LINEAR, padded_columns=True)
        assert torch.equal(x_q[row : row + 1], alone[0])
        assert torch.equal(sf[row : row + 1], alone[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_global_scale_of_another_dtype_is_converted(dtype: torch.dtype) -> None:
    x = block([6.0, 1.0], 16)
    assert quantize_row(x, torch.tensor(6.0, dtype=dtype), **NVFP4)[1] == 0x4C


SHAPES = [
    # shape, layout, padded_columns, x_q, sf
    ((7, 64), LINEAR, True, (7, 32), (7, 4)),
    ((7, 96), LINEAR, False, (7, 48), (7, 6)),
    ((7, 96), SWIZZLED, True, (7, 48), (128, 8)),
    ((130, 96), SWIZZLED, True, (130, 48), (256, 8)),
    ((7, 96), SWIZZLED_8X4, True, (7, 48), (8, 8)),
    ((9, 96), SWIZZLED_8X4, True, (9, 48), (16, 8)),
    ((7, 64), SWIZZLED, False, (7, 32), (128, 4)),
    # 128 rows of 6 columns padded to 8: 1024 bytes do not divide into sixes, 384 * 8 do.
    ((260, 96), SWIZZLED, False, (260, 48), (512, 6)),
    ((2, 3, 64), SWIZZLED, True, (2, 3, 32), (128, 4)),
    ((2, 3, 64), LINEAR, True, (2, 3, 32), (6, 4)),
    ((2, 65, 2, 64), SWIZZLED, True, (2, 65, 2, 32), (384, 4)),
    ((0, 96), SWIZZLED, True, (0, 48), (0, 8)),
    ((0, 96), SWIZZLED, False, (0, 48), (0, 6)),
    ((0, 96), LINEAR, True, (0, 48), (0, 6)),
]


@pytest.mark.parametrize(("shape", "where", "padded", "x_q_shape", "sf_shape"), SHAPES)
def test_shapes_follow_flashinfer(
    shape: tuple[int, ...],
    where: dict[str, Any],
    padded: bool,
    x_q_shape: tuple[int, ...],
    sf_shape: tuple[int, int],
) -> None:
    x = torch.ones(shape, dtype=torch.float16)
    x_q, sf = quantize_fp4(x, ONE, **NVFP4, **where, padded_columns=padded)
    assert (x_q.shape, sf.shape) == (x_q_shape, sf_shape)
    assert x_q.is_contiguous()
    assert sf.is_contiguous()


def test_unpadded_columns_that_do_not_divide_are_an_error_as_they_are_in_flashinfer() -> None:
    with pytest.raises(RuntimeError, match="invalid for input of size 1024"):
        quantize_fp4(
            torch.ones(7, 96, dtype=torch.float16), ONE, **NVFP4, **SWIZZLED, padded_columns=False
        )


def test_a_contiguous_column_vector_is_quantized_along_its_rows() -> None:
    x_q, sf = quantize_fp4(
        torch.ones(32, 1, dtype=torch.float16), ONE, **NVFP4, **LINEAR, padded_columns=True
    )
    assert (x_q.shape, sf.shape) == ((16, 1), (2, 1))


REFUSALS = [
    # change to a good call, error, what its message says
    ({"sf_vec_size": 8}, NotImplementedError, "16 or 32"),
    ({"sf_vec_size": 32}, RuntimeError, "E4M3 scales need 16"),
    ({"sf_use_ue8m0": True}, RuntimeError, "UE8M0 scales need 32"),
    ({"global_scale": None}, RuntimeError, "need one"),
    ({"global_scale": torch.ones(3)}, RuntimeError, "has 3 elements: give 1"),
    ({"input": torch.ones(4, 64)}, NotImplementedError, "input is torch.float32"),
    ({"input": torch.ones(4, 24, dtype=torch.half)}, AssertionError, "24: not a multiple of 16"),
    ({"input": torch.ones(64, dtype=torch.half)}, IndexError, None),
    ({"input": torch.ones(4, 0, dtype=torch.half).t()}, ZeroDivisionError, None),
    ({"input": torch.ones(4, 128, dtype=torch.half)[:, :64]}, RuntimeError, "contiguous"),
    # Strides (1, 1), as a compiler may leave them, count as column-major.
    ({"input": torch.ones(64, 1, dtype=torch.half).t()}, AssertionError, "dimension is 1"),
]


@pytest.mark.parametrize(("change", "error", "message"), REFUSALS)
def test_what_the_kernel_refuses_is_refused(
    change: dict[str, Any], error: type[Exception], message: str | None
) -> None:
    call = {"input": torch.ones(4, 64, dtype=torch.half), "global_scale": ONE, **NVFP4, **LINEAR}
    quantize_fp4(**call, padded_columns=True)
    with pytest.raises(error, match=message):
        quantize_fp4(**{**call, **change}, padded_columns=True)


def test_an_input_that_requires_grad_is_quantized_without_it() -> None:
    x = torch.randn(4, 64, dtype=torch.bfloat16, requires_grad=True)
    x_q, sf = quantize_fp4(x, ONE, **NVFP4, **SWIZZLED, padded_columns=True)
    assert not x_q.requires_grad
    assert not sf.requires_grad


def test_it_is_traced_whole_with_a_symbolic_number_of_rows() -> None:
    def call(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        return quantize_fp4(x, scale, **NVFP4, **SWIZZLED, padded_columns=True)

    compiled = torch.compile(call, fullgraph=True, backend="eager", dynamic=True)
    for m in (5, 130, 1, 0):
        x = torch.randn(m, 96).to(torch.bfloat16)
        for ours, theirs in zip(compiled(x, ONE), call(x, ONE), strict=True):
            assert torch.equal(ours, theirs)
