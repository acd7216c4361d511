"""Where the scale byte of a block lies: the swizzled 128x4 and 8x4 layouts.

Both cut the (rows, columns) matrix of scale bytes into tiles of four columns and pad it with zeros
to whole tiles. Inside a tile, row ``r`` comes at place ``r % outer`` of ``outer``, there at place
``r // outer`` of ``inner``, and the four columns come last: (inner, outer) is (4, 32) for 128x4 and
(1, 8) for 8x4.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

TILE_COLUMNS = 4


def round_up(size: int, multiple: int) -> int:
    """The smallest multiple of ``multiple`` that is not below ``size``."""
    return (size + multiple - 1) // multiple * multiple


def tile_rows(*, is_sf_8x4_layout: bool) -> int:
    """Rows of one tile: 8 or 128."""
    return 8 if is_sf_8x4_layout else 128


def swizzle(scales: Tensor, *, is_sf_8x4_layout: bool) -> Tensor:
    """Bring linear scale bytes into swizzled order.

    Args:
        scales: uint8, (rows, columns), row-major.
        is_sf_8x4_layout: 8x4 if true, else 128x4.

    Returns:
        uint8, 1-D, round_up(rows, 8 or 128) * round_up(columns, 4) bytes; padding is zero.
    """
    rows, columns = scales.shape
    tiles = _tiles(rows, columns, is_sf_8x4_layout=is_sf_8x4_layout)
    row_tiles, inner, outer, column_tiles, _ = tiles
    padded_rows = row_tiles * inner * outer
    padded_columns = column_tiles * TILE_COLUMNS
    padded = F.pad(scales, (0, padded_columns - columns, 0, padded_rows - rows))
    return padded.reshape(tiles).permute(0, 3, 2, 1, 4).reshape(-1)


def unswizzle(swizzled: Tensor, rows: int, columns: int, *, is_sf_8x4_layout: bool) -> Tensor:
    """Undo ``swizzle``: any shape of swizzled bytes to (rows, columns), the padding cut off."""
    tiles = _tiles(rows, columns, is_sf_8x4_layout=is_sf_8x4_layout)
    row_tiles, inner, outer, column_tiles, _ = tiles
    stored = swizzled.reshape(row_tiles, column_tiles, outer, inner, TILE_COLUMNS)
    padded = stored.permute(0, 3, 2, 1, 4).reshape(
        row_tiles * inner * outer, column_tiles * TILE_COLUMNS
    )
    return padded[:rows, :columns]


def _tiles(rows: int, columns: int, *, is_sf_8x4_layout: bool) -> tuple[int, int, int, int, int]:
    """Shape of the padded matrix as (row tile, inner, outer, column tile, column)."""
    outer = 8 if is_sf_8x4_layout else 32
    height = tile_rows(is_sf_8x4_layout=is_sf_8x4_layout)
    row_tiles = round_up(rows, height) // height
    column_tiles = round_up(columns, TILE_COLUMNS) // TILE_COLUMNS
    return row_tiles, height // outer, outer, column_tiles, TILE_COLUMNS
