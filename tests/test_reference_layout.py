"""The scale layouts of the reference quantizer, against the offsets that the kernel computes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shim.reference import layout


def kernel_offset(row: int, column: int, columns: int, *, is_sf_8x4_layout: bool) -> int:
    """Byte offset of a scale, as a sum over tiles and places inside a tile."""
    column_tiles = -(-columns // 4)
    if is_sf_8x4_layout:
        tile = row // 8 * column_tiles + column // 4
        return tile * 32 + row % 8 * 4 + column % 4
    tile = row // 128 * column_tiles + column // 4
    return tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4


def scale_bytes(rows: int, columns: int) -> torch.Tensor:
    """Bytes that are never zero, so that padding can be told from them."""
    return torch.randint(1, 256, (rows, columns), generator=torch.Generator().manual_seed(1)).to(
        torch.uint8
    )


@pytest.mark.parametrize("is_8x4", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (3, 5), (8, 4), (128, 4), (129, 7), (260, 8)]
)
def test_every_scale_lies_at_the_offset_of_the_kernel(
    rows: int, columns: int, is_8x4: bool
) -> None:
    scales = scale_bytes(rows, columns)
    swizzled = layout.swizzle(scales, is_sf_8x4_layout=is_8x4)

    height = 8 if is_8x4 else 128
    assert swizzled.shape == (-(-rows // height) * height * (-(-columns // 4) * 4),)
    offsets = [
        [kernel_offset(row, column, columns, is_sf_8x4_layout=is_8x4) for column in range(columns)]
        for row in range(rows)
    ]
    assert torch.equal(swizzled[torch.tensor(offsets)], scales)
    assert swizzled.count_nonzero() == rows * columns, "padding is zero"


@settings(deadline=None)
@given(rows=st.integers(0, 300), columns=st.integers(1, 20), is_8x4=st.booleans())
def test_unswizzling_undoes_swizzling(rows: int, columns: int, is_8x4: bool) -> None:
    scales = scale_bytes(rows, columns)
    swizzled = layout.swizzle(scales, is_sf_8x4_layout=is_8x4)
    assert torch.equal(layout.unswizzle(swizzled, rows, columns, is_sf_8x4_layout=is_8x4), scales)


@settings(deadline=None)
@given(row_tiles=st.integers(0, 3), column_tiles=st.integers(1, 5), is_8x4=st.booleans())
def test_whole_tiles_are_only_rearranged(row_tiles: int, column_tiles: int, is_8x4: bool) -> None:
    scales = scale_bytes(row_tiles * (8 if is_8x4 else 128), column_tiles * 4)
    swizzled = layout.swizzle(scales, is_sf_8x4_layout=is_8x4)
    assert torch.equal(swizzled.sort().values, scales.flatten().sort().values)
