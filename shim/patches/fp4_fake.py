"""What ``fp4_quantize`` returns, without running it.

The compiler asks for the outputs of an op on tensors that hold no data. Upstream allocates these
outputs in Python and hands them to a kernel, so this module does what that Python does, view by
view, and leaves the kernel out: same shapes, strides, offsets and storage, same errors in the same
order. What changed from release to release is data (:class:`Fp4Traits`), not a question for a
version. Batch sizes stay symbolic.

Left out on purpose is every question to the card: upstream refuses some before it comes to shapes,
and still does when the op runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor

from .fp4_fake_cute import fake_cute_dsl
from .fp4_fake_invariant import fake_batch_invariant
from .fp4_layout import round_up, row_tile, with_slack
from .fp4_traits import Fp4Traits

OMITTED: Final = object()
"""Default of ``nvfp4_4over6``: not passed, so upstream looks at its environment variables."""


def fake_fp4_quantize(
    traits: Fp4Traits,
    input: Tensor,
    global_scale: Tensor | None = None,
    *,
    sf_vec_size: int = 16,
    sf_use_ue8m0: bool = False,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
    is_global_scale_inversed: bool = False,
    enable_pdl: bool | None = None,
    backend: str = "cuda",
    nvfp4_4over6: object = OMITTED,
    batch_invariant: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return empty outputs, exactly as the release that ``traits`` describes allocates them.

    The parameters are upstream's; those that a release lacks stay at their defaults here.
    ``is_global_scale_inversed`` and ``enable_pdl`` change no output and are not looked at.

    Args:
        traits: The release's own ways.
        input: ``(..., K)``; sizes may be symbolic.
        global_scale: One float32 value, never read.

    Returns:
        ``x_q``, uint8 ``(..., K / 2)``, and the block scales, uint8 and 2-D; both transposed where
        the input is column-major.

    Raises:
        Exception: What upstream's Python raises for these arguments, with its text.
    """
    if sf_vec_size != 16 and sf_vec_size != 32:
        raise NotImplementedError("sf_vec_size can only be 16 or 32")
    recipe = None
    if traits.four_over_six == "parameter":
        recipe = _four_over_six(input, sf_vec_size, sf_use_ue8m0, nvfp4_4over6)
    tile = row_tile(swizzled=is_sf_swizzled_layout, is_8x4=is_sf_8x4_layout)
    if batch_invariant:
        if backend != "auto":
            raise ValueError(
                "fp4_quantize: batch_invariant=True requires backend='auto' "
                f"(got backend={backend!r})"
            )
        return fake_batch_invariant(
            input, global_scale, sf_vec_size, sf_use_ue8m0, tile=tile, recipe=recipe
        )
    if backend == "cute-dsl" and traits.cute is not None:
        return fake_cute_dsl(
            traits,
            input,
            global_scale,
            sf_vec_size,
            sf_use_ue8m0,
            tile=tile,
            is_8x4=is_sf_8x4_layout,
            recipe=recipe,
        )
    if backend != "cuda" and not (backend == "auto" and "auto" in traits.backends):
        *others, last = map(repr, traits.backends)
        raise ValueError(f"Unknown backend: {backend}. Must be {', '.join(others)} or {last}.")
    return _fake_cuda(traits, input, sf_vec_size, tile=tile)


def _four_over_six(
    input: Tensor, sf_vec_size: int, sf_use_ue8m0: bool, nvfp4_4over6: object
) -> Any:
    """The 4over6 recipe in force, or None; refuses one where it does not apply."""
    upstream = import_module("flashinfer.quantization.nvfp4_quantization_utils")
    explicit = nvfp4_4over6 is not OMITTED and nvfp4_4over6 is not upstream._UNSET
    if sf_vec_size != 16 or sf_use_ue8m0:
        if explicit and nvfp4_4over6 is not None:
            raise ValueError(
                "nvfp4_4over6 applies to NVFP4 only (sf_vec_size=16, sf_use_ue8m0=False); "
                f"got sf_vec_size={sf_vec_size}, sf_use_ue8m0={sf_use_ue8m0}."
            )
        return None
    recipe = upstream.resolve_nvfp4_4over6(nvfp4_4over6 if explicit else upstream._UNSET)
    if explicit and recipe is not None and input.dtype == torch.float8_e4m3fn:
        raise upstream.nvfp4_4over6_fp8_input_error(input.dtype)
    return recipe


def _fake_cuda(
    traits: Fp4Traits, input: Tensor, sf_vec_size: int, *, tile: int
) -> tuple[Tensor, Tensor]:
    # Upstream looks at one stride only, so a (1, K) input with strides (1, 1) counts as
    # column-major and a contiguous (M, 1) is quantized along M.
    column_major = input.stride(-2) == 1
    if column_major:
        input = input.transpose(-2, -1)
    k = input.shape[-1]
    assert k % sf_vec_size == 0  # without a text, as upstream
    x_q = input.new_empty((*input.shape[:-1], k // 2), dtype=torch.uint8)
    m = input.numel() // k
    columns = k // sf_vec_size
    if tile > 1:
        padded = round_up(columns, 4)
        sf = input.new_empty((round_up(m, tile) * padded,), dtype=torch.uint8)
        sf = sf.reshape(-1, padded if traits.padded_columns else columns)
    else:
        rows = with_slack(m) if traits.linear_slack else m
        sf = input.new_empty((rows * columns,), dtype=torch.uint8)
        sf = sf[: m * columns].reshape(-1, columns)
    if column_major:
        return x_q.transpose(-2, -1), sf.transpose(-2, -1)
    return x_q, sf
