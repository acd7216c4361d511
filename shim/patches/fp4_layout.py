"""How block scales are laid out: the arithmetic that every backend of ``fp4_quantize`` shares.

Sizes may be symbolic, so nothing here converts or branches on one.
"""

from __future__ import annotations


def round_up(size: int, multiple: int) -> int:
    """The smallest multiple of ``multiple`` that holds ``size``."""
    return (size + multiple - 1) // multiple * multiple


def with_slack(rows: int) -> int:
    """The same as ``round_up(rows, 16)``, for a buffer of which ``rows`` are sliced off.

    In this form the compiler sees that the slice fits; of the other it would keep a guard.
    """
    return rows + -rows % 16


def row_tile(*, swizzled: bool, is_8x4: bool) -> int:
    """Rows that a layout pads its scales to; 1 stands for the linear layout."""
    if not swizzled:
        return 1
    return 8 if is_8x4 else 128
