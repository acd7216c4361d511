"""FlashInfer's ``fp4_quantize`` and its inverse, in plain PyTorch on any device.

The arithmetic is that of FlashInfer's CUDA kernel in its default build, operation by operation in
float32, with flush-to-zero. Two things differ. The kernel takes reciprocals with an approximate
instruction, we take correctly rounded ones, so that an element next to the middle between two E2M1
values may become its neighbour. And releases differ from each other where a block is almost zero;
``docs/reference.md`` lists these corners and which of them is followed here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import formats, layout

_SMALLEST_NORMAL = torch.finfo(torch.float32).tiny
_KERNEL_DTYPES = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)


def quantize_fp4(
    input: Tensor,
    global_scale: Tensor | None,
    *,
    sf_vec_size: int,
    sf_use_ue8m0: bool,
    is_sf_swizzled_layout: bool,
    is_sf_8x4_layout: bool,
    is_global_scale_inversed: bool = False,
    padded_columns: bool,
) -> tuple[Tensor, Tensor]:
    """Quantize to E2M1 with a scale byte for each block of ``sf_vec_size`` elements.

    NVFP4 is ``sf_vec_size=16`` with E4M3 scales, MXFP4 is 32 with UE8M0 scales. In what follows
    k is the last dimension, m the product of the others, and C = k / sf_vec_size.

    Args:
        input: (..., m, k), float16, bfloat16 or float8_e4m3fn, contiguous. An input whose
            ``stride(-2)`` is 1 counts as column-major: it is transposed first, and so are both
            results at the end.
        global_scale: 1 or m elements (one for each row), multiplied into the block scales: usually
            448 * 6 / amax(input). Float8 input is taken to stand for ``input * 6 / global_scale``.
            NVFP4 needs it; MXFP4 uses it with float8 input only.
        sf_vec_size: elements of a block along k.
        sf_use_ue8m0: UE8M0 scales instead of E4M3.
        is_sf_swizzled_layout: 128x4 or 8x4 tiles instead of row-major scales.
        is_sf_8x4_layout: 8x4 tiles; only looked at when swizzled.
        is_global_scale_inversed: ``global_scale`` holds the reciprocal of what is meant.
        padded_columns: shape of swizzled scales. True (FlashInfer 0.6.8 and newer):
            (round_up(m, 8 or 128), round_up(C, 4)). False (older): the same bytes as (-1, C).

    Returns:
        ``x_q``, uint8, (..., m, k / 2), the even element in the low nibble; and ``sf``, uint8,
        two-dimensional for any input: (m, C) when linear, else as ``padded_columns`` says, with
        zeros for padding.

    Raises:
        NotImplementedError: a dtype or an ``sf_vec_size`` that the kernel does not know.
        AssertionError: k is not a multiple of ``sf_vec_size``.
        IndexError: ``input`` has fewer than two dimensions.
        ZeroDivisionError: k is 0.
        RuntimeError: ``sf_vec_size`` does not go with the scale format, ``global_scale`` is missing
            or has a wrong number of elements, ``input`` is not contiguous, or the padded scales do
            not divide into rows of C with ``padded_columns=False``.
    """
    if sf_vec_size not in (16, 32):
        raise NotImplementedError(f"sf_vec_size is {sf_vec_size}, but can only be 16 or 32")
    is_column_major = input.stride(-2) == 1
    if is_column_major:
        input = input.transpose(-2, -1)
    k = input.shape[-1]
    if k % sf_vec_size != 0:
        raise AssertionError(f"the last dimension is {k}: not a multiple of {sf_vec_size}")
    m = input.numel() // k
    _check_as_the_kernel_does(input, global_scale, m, sf_vec_size, sf_use_ue8m0)

    columns = k // sf_vec_size
    blocks = input.detach().reshape(m, columns, sf_vec_size)
    if sf_use_ue8m0 and input.dtype != torch.float8_e4m3fn:
        global_scale = None
    scale = _kernel_scale(global_scale, input.device, is_inversed=is_global_scale_inversed)
    codes, sf = _quantize_blocks(blocks, scale, sf_use_ue8m0=sf_use_ue8m0)

    x_q = formats.pack_e2m1(codes).reshape(*input.shape[:-1], k // 2)
    if is_sf_swizzled_layout:
        sf = layout.swizzle(sf, is_sf_8x4_layout=is_sf_8x4_layout)
        sf = sf.reshape(
            -1, layout.round_up(columns, layout.TILE_COLUMNS) if padded_columns else columns
        )
    if is_column_major:
        x_q, sf = x_q.transpose(-2, -1), sf.transpose(-2, -1)
    return x_q, sf


def dequantize_fp4(
    x_q: Tensor,
    sf: Tensor,
    global_scale: Tensor | None,
    *,
    sf_vec_size: int,
    sf_use_ue8m0: bool,
    is_sf_swizzled_layout: bool,
    is_sf_8x4_layout: bool,
) -> Tensor:
    """Read back what ``quantize_fp4`` wrote: E2M1 value * block scale / global scale.

    Args:
        x_q: uint8, (..., m, k / 2), row-major: transpose the results for a column-major input
            before they come here.
        sf: uint8, the scales in the layout that the flags name, in any shape.
        global_scale: the one given to ``quantize_fp4``, *not* inversed; None stands for 1. With
            UE8M0 scales and float16 or bfloat16 input it had no part and must be None.
        sf_vec_size: elements of a block along k.
        sf_use_ue8m0: UE8M0 scales instead of E4M3.
        is_sf_swizzled_layout: 128x4 or 8x4 tiles instead of row-major scales.
        is_sf_8x4_layout: 8x4 tiles; only looked at when swizzled.

    Returns:
        float32, (..., m, k).
    """
    values = formats.decode_e2m1(formats.unpack_e2m1(x_q))
    k = values.shape[-1]
    m, columns = values.numel() // k, k // sf_vec_size
    if is_sf_swizzled_layout:
        sf = layout.unswizzle(sf, m, columns, is_sf_8x4_layout=is_sf_8x4_layout)
    else:
        sf = sf.reshape(m, columns)
    # Copied, because a byte view as another dtype wants a contiguous tensor.
    sf = sf.contiguous()
    scale = formats.decode_ue8m0(sf) if sf_use_ue8m0 else formats.decode_e4m3(sf)
    if global_scale is not None:
        scale = scale / global_scale.to(torch.float32).reshape(-1, 1)
    blocks = values.reshape(m, columns, sf_vec_size) * scale.unsqueeze(-1)
    return blocks.reshape(values.shape)


def _check_as_the_kernel_does(
    input: Tensor, global_scale: Tensor | None, m: int, sf_vec_size: int, sf_use_ue8m0: bool
) -> None:
    expected = 32 if sf_use_ue8m0 else 16
    if sf_vec_size != expected:
        name = "UE8M0" if sf_use_ue8m0 else "E4M3"
        raise RuntimeError(f"sf_vec_size is {sf_vec_size}, but {name} scales need {expected}")
    if global_scale is None and not sf_use_ue8m0:
        raise RuntimeError("global_scale is None, but E4M3 scales (sf_use_ue8m0=False) need one")
    if global_scale is not None and global_scale.numel() not in (1, m):
        raise RuntimeError(
            f"global_scale has {global_scale.numel()} elements: give 1, or one for each of the "
            f"{m} rows"
        )
    if input.dtype not in _KERNEL_DTYPES:
        raise NotImplementedError(
            f"input is {input.dtype}, but only float16, bfloat16 and float8_e4m3fn can be "
            "quantized: convert it first"
        )
    if not input.is_contiguous():
        raise RuntimeError(
            f"input has strides {tuple(input.stride())} for shape {tuple(input.shape)}: make it "
            "contiguous (or column-major in its last two dimensions) first"
        )


def _kernel_scale(
    global_scale: Tensor | None, device: torch.device, *, is_inversed: bool
) -> Tensor:
    """The global scale that the kernel computes with: float32, (1 or m, 1)."""
    if global_scale is None:
        return torch.ones((1, 1), dtype=torch.float32, device=device)
    scale = global_scale.detach().to(device=device, dtype=torch.float32).reshape(-1, 1)
    return _reciprocal(scale) if is_inversed else _flush(scale)


def _quantize_blocks(blocks: Tensor, scale: Tensor, *, sf_use_ue8m0: bool) -> tuple[Tensor, Tensor]:
    """Quantize (m, C, sf_vec_size) blocks: E2M1 codes (m, k), scale bytes (m, C), both uint8."""
    is_float8 = blocks.dtype == torch.float8_e4m3fn
    values = blocks.to(torch.float32)
    if is_float8:
        # The kernel brings float8 input back to the values that it stands for, as float16.
        stands_for = formats.E2M1_MAX * _reciprocal(scale)
        values = (values * stands_for.unsqueeze(-1)).to(torch.float16).to(torch.float32)
    values = _flush(values)

    amax = _amax(values, is_float8=is_float8)
    wanted = _flush(scale * _flush(amax * (1 / formats.E2M1_MAX)))
    if sf_use_ue8m0:
        sf = formats.encode_ue8m0(wanted)
        stored = formats.decode_ue8m0(sf)
    else:
        sf = formats.encode_e4m3(wanted)
        stored = formats.decode_e4m3(sf)

    if is_float8:
        factor = _flush(scale * _reciprocal(stored))
        is_zero = wanted == 0
    else:
        factor = _reciprocal(stored * _reciprocal(scale))
        # A block may be all but zero and its E4M3 scale 0: the kernel leaves the factor infinite.
        # The NaN scale of UE8M0 has a reciprocal for the kernel, so small that it is flushed.
        is_zero = (wanted == 0) | wanted.isnan() if sf_use_ue8m0 else amax == 0
    factor = torch.where(is_zero, 0.0, factor)
    codes = formats.encode_e2m1(values * factor.unsqueeze(-1))
    return codes.flatten(1), sf


def _amax(values: Tensor, *, is_float8: bool) -> Tensor:
    """Largest magnitude of each block: (m, C, n) to (m, C).

    NaN elements are passed over, a block of nothing but NaN is NaN. The kernel reduces the even and
    the odd elements apart and joins them by ``even > odd ? even : odd``, which is NaN as soon as
    all odd elements are; for float8 input it joins them by an instruction that passes NaN over.
    """
    known = torch.where(values.isnan(), -1.0, values.abs())
    even, odd = known[..., 0::2].amax(dim=-1), known[..., 1::2].amax(dim=-1)
    largest = torch.maximum(even, odd)
    is_nan = largest < 0 if is_float8 else odd < 0
    return torch.where(is_nan, torch.nan, largest)


def _flush(values: Tensor) -> Tensor:
    """Float32 subnormals to zero of the same sign, as arithmetic under flush-to-zero sees them."""
    return torch.where(values.abs() < _SMALLEST_NORMAL, values * 0, values)


def _reciprocal(values: Tensor) -> Tensor:
    """1 / values with flush-to-zero on both sides."""
    return _flush(1.0 / _flush(values))
