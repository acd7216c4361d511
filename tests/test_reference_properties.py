"""What holds of the reference quantizer for any input: nearest codes, layouts, transposes."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shim.reference import dequantize_fp4, formats, layout, quantize_fp4

untimed = settings(deadline=None)

NVFP4: dict[str, Any] = {"sf_vec_size": 16, "sf_use_ue8m0": False}
MXFP4: dict[str, Any] = {"sf_vec_size": 32, "sf_use_ue8m0": True}
KINDS = st.sampled_from([NVFP4, MXFP4])
LAYOUTS = st.sampled_from([(False, False), (True, False), (True, True)])
DTYPES = st.sampled_from([torch.float16, torch.bfloat16])
# Rounding of products and quotients in float32, relative.
SLACK = 1e-6


@st.composite
def inputs(draw: st.DrawFn, *, even: bool = False) -> Tensor:
    """(m, k) with k a multiple of 32, drawn from a wide range of magnitudes, with exact zeros."""
    m, k = draw(st.integers(0, 140)), 32 * draw(st.integers(1, 5))
    m += m % 2 if even else 0
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    values = torch.randn(m, k, generator=generator)
    magnitudes = torch.rand(m, k // 16, generator=generator).mul(16).sub(8).exp2()
    values *= magnitudes.repeat_interleave(16, dim=1)
    values[torch.rand(m, k, generator=generator) < 0.1] = 0
    return values.to(draw(DTYPES))


def global_scale_for(x: Tensor) -> Tensor:
    """The usual one: the largest element gets the largest scale times the largest value."""
    if x.numel() == 0:
        return torch.ones(1)
    return 448 * 6 / x.float().abs().amax().clamp(min=1e-3).reshape(1)


def quantize(x: Tensor, scale: Tensor | None, where: tuple[bool, bool], **kind: Any) -> Any:
    swizzled, is_8x4 = where
    return quantize_fp4(
        x,
        scale,
        is_sf_swizzled_layout=swizzled,
        is_sf_8x4_layout=is_8x4,
        padded_columns=True,
        **kind,
    )


@untimed
@given(x=inputs(), kind=KINDS, where=LAYOUTS)
def test_no_other_code_of_a_block_is_nearer(
    x: Tensor, kind: dict[str, Any], where: tuple[bool, bool]
) -> None:
    scale = global_scale_for(x) if kind is NVFP4 else None
    x_q, sf = quantize(x, scale, where, **kind)
    read = dequantize_fp4(
        x_q, sf, scale, is_sf_swizzled_layout=where[0], is_sf_8x4_layout=where[1], **kind
    )
    _, linear = quantize(x, scale, (False, False), **kind)
    decoded = (formats.decode_ue8m0 if kind is MXFP4 else formats.decode_e4m3)(linear)
    step = decoded / (scale if scale is not None else 1)
    step = step.repeat_interleave(kind["sf_vec_size"], dim=1)
    grid = formats.decode_e2m1(torch.arange(16, dtype=torch.uint8)) * step.unsqueeze(-1)
    wanted = x.float()
    nearest = (grid - wanted.unsqueeze(-1)).abs().amin(dim=-1)
    assert ((read - wanted).abs() <= nearest + SLACK * 6 * step).all()


@untimed
@given(x=inputs())
def test_an_nvfp4_scale_is_the_nearest_of_all_e4m3_numbers(x: Tensor) -> None:
    scale = global_scale_for(x)
    _, sf = quantize(x, scale, (False, False), **NVFP4)
    wanted = scale * x.float().abs().reshape(x.shape[0], x.shape[1] // 16, 16).amax(dim=-1) / 6
    numbers = formats.decode_e4m3(torch.arange(0x7F, dtype=torch.uint8))
    nearest = (numbers - wanted.unsqueeze(-1)).abs().amin(dim=-1)
    assert ((formats.decode_e4m3(sf) - wanted).abs() <= nearest + SLACK * wanted).all()


@untimed
@given(x=inputs())
def test_an_mxfp4_scale_is_the_smallest_power_of_two_that_does_not_saturate(x: Tensor) -> None:
    _, sf = quantize(x, None, (False, False), **MXFP4)
    amax = x.float().abs().reshape(x.shape[0], x.shape[1] // 32, 32).amax(dim=-1)
    power = formats.decode_ue8m0(sf)
    assert (amax <= 6 * power).all()
    assert (amax > 3 * power)[amax > 0].all()
    assert (sf == 0)[amax == 0].all()


@untimed
@given(x=inputs(), kind=KINDS)
def test_layouts_differ_in_the_place_of_the_scales_alone(x: Tensor, kind: dict[str, Any]) -> None:
    scale = global_scale_for(x)
    x_q, linear = quantize(x, scale, (False, False), **kind)
    for is_8x4 in (False, True):
        codes, sf = quantize(x, scale, (True, is_8x4), **kind)
        assert torch.equal(codes, x_q)
        rows, columns = linear.shape
        assert torch.equal(layout.unswizzle(sf, rows, columns, is_sf_8x4_layout=is_8x4), linear)
        assert sf.count_nonzero() == linear.count_nonzero(), "padding is zero"


@untimed
@given(x=inputs(), kind=KINDS, where=LAYOUTS)
def test_a_column_major_input_gives_the_transposes_of_the_row_major_results(
    x: Tensor, kind: dict[str, Any], where: tuple[bool, bool]
) -> None:
    scale = global_scale_for(x)
    row_major = quantize(x, scale, where, **kind)
    column_major = quantize(x.t(), scale, where, **kind)
    for row, column in zip(row_major, column_major, strict=True):
        assert torch.equal(column, row.t())
        assert column.stride() == row.t().stride()


@untimed
@given(x=inputs(even=True), kind=KINDS, where=LAYOUTS)
def test_leading_dimensions_are_folded_into_rows(
    x: Tensor, kind: dict[str, Any], where: tuple[bool, bool]
) -> None:
    scale = global_scale_for(x)
    flat_q, flat_sf = quantize(x, scale, where, **kind)
    x_q, sf = quantize(x.reshape(2, x.shape[0] // 2, x.shape[1]), scale, where, **kind)
    assert torch.equal(x_q, flat_q.reshape(x_q.shape))
    assert torch.equal(sf, flat_sf)


@untimed
@given(x=inputs(), kind=KINDS, extra=st.integers(1, 140))
def test_a_row_does_not_depend_on_the_rows_around_it(
    x: Tensor, kind: dict[str, Any], extra: int
) -> None:
    scale = global_scale_for(x)
    more = torch.cat((x, torch.ones(extra, x.shape[1], dtype=x.dtype)))
    alone_q, alone_sf = quantize(x, scale, (False, False), **kind)
    x_q, sf = quantize(more, scale, (False, False), **kind)
    assert torch.equal(x_q[: x.shape[0]], alone_q)
    assert torch.equal(sf[: x.shape[0]], alone_sf)
