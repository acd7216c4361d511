"""What differs between FlashInfer releases in ``fp4_quantize``, as data.

Held by the rows of the contract, read by the fake. Imports no torch: ``check`` reads it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class CuteTraits:
    """How the ``cute-dsl`` backend of a run of releases behaves.

    Attributes:
        mxfp4_8x4: The 8x4 layout of MXFP4 scales exists; before, asking for it raised.
        mxfp4_padded: Swizzled MXFP4 scales are ``(round_up(m, tile), round_up(C, 4))``; before,
            the same buffer was forced into rows of C and raised where that does not divide.
        tma: When the kernel for large inputs runs: by size, or by size where
            FLASHINFER_NVFP4_QUANTIZE_USE_TMA=1 asks for it.
        tma_8x4_tile: Rows that this kernel pads 8x4 scales to: 16 or 8.
        empty_returns_early: An empty NVFP4 input returns before its global scale is looked at, and
            with K = 0 it returns at all.
        recipe_first: A wrong recipe is refused before a missing CuTe DSL is.
    """

    mxfp4_8x4: bool
    mxfp4_padded: bool
    tma: Literal["by size", "on request"]
    tma_8x4_tile: Literal[16, 8]
    empty_returns_early: bool
    recipe_first: bool


@dataclass(frozen=True)
class Fp4Traits:
    """What a run of releases does in its own way.

    Attributes:
        padded_columns: Swizzled scales are ``(round_up(m, tile), round_up(C, 4))``; before, the
            same buffer was forced into rows of C and raised where that does not divide.
        linear_slack: Linear scales are a slice of a buffer of ``round_up(m, 16) * C`` bytes.
        backends: The names that ``backend`` takes, in the order in which the error text gives
            them; empty where there is no such parameter.
        four_over_six: Where a 4over6 recipe comes from: nowhere, upstream's environment variables
            (for ``cute-dsl`` alone), or the parameter and, where it is omitted, the environment.
        cute: The ``cute-dsl`` backend, or None.
    """

    padded_columns: bool
    linear_slack: bool
    backends: tuple[str, ...] = ()
    four_over_six: Literal["absent", "environment", "parameter"] = "absent"
    cute: CuteTraits | None = None
