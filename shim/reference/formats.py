"""The three small float formats of block-scaled FP4, encoded and decoded with tensor operations.

Encoding rounds as the GPU's conversion instructions do, not as ``Tensor.to`` does: E2M1 and E4M3
round to nearest even and saturate, UE8M0 rounds up, and NaN has one code in each format.
"""

from __future__ import annotations

import torch
from torch import Tensor

E2M1_MAX = 6.0
E4M3_MAX = 448.0

_E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1_SIGN = 8
_E4M3_NAN = 0x7F
_UE8M0_MAX = 0xFE
_UE8M0_NAN = 0xFF
_FLOAT32_MANTISSA_BITS = 23


def encode_e2m1(values: Tensor) -> Tensor:
    """Round to E2M1: 1 sign, 2 exponent and 1 mantissa bit.

    Args:
        values: float32, any shape.

    Returns:
        uint8 of the same shape, one code 0..15 an element. Ties go to the even code, magnitudes
        above 6 and infinities become 6, NaN becomes +6, and zero keeps its sign.
    """
    # fmin saturates and, since it prefers a number to a NaN, also turns NaN into 6.
    magnitude = torch.fmin(values.abs(), values.new_full((), E2M1_MAX))
    # The codes of each binade are evenly spaced, and a code is even where the rounded quotient is:
    # rounding the quotient half to even is therefore rounding to the even code.
    code = torch.where(
        magnitude < 2,
        torch.round(magnitude * 2),
        torch.where(magnitude < 4, torch.round(magnitude) + 2, torch.round(magnitude / 2) + 4),
    ).to(torch.uint8)
    negative = values.signbit() & ~values.isnan()
    return code + negative.to(torch.uint8) * _E2M1_SIGN


def decode_e2m1(codes: Tensor) -> Tensor:
    """Read E2M1 codes: uint8 0..15 of any shape to float32 of the same shape."""
    positive = torch.tensor(_E2M1_MAGNITUDES, dtype=torch.float32, device=codes.device)
    return torch.cat((positive, -positive))[codes.to(torch.int64)]


def pack_e2m1(codes: Tensor) -> Tensor:
    """Put two codes in a byte, the even element in the low nibble: (..., k) to (..., k / 2)."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_e2m1(packed: Tensor) -> Tensor:
    """Take the two codes of each byte apart: (..., k / 2) to (..., k), uint8."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)


def encode_e4m3(values: Tensor) -> Tensor:
    """Round float32 to the bytes (uint8) of E4M3: nearest even, saturating at 448, NaN 0x7F."""
    saturated = values.clamp(-E4M3_MAX, E4M3_MAX)
    codes = saturated.to(torch.float8_e4m3fn).view(torch.uint8)
    return torch.where(values.isnan(), _E4M3_NAN, codes)


def decode_e4m3(codes: Tensor) -> Tensor:
    """Read E4M3 bytes (uint8) as float32."""
    return codes.view(torch.float8_e4m3fn).to(torch.float32)


def encode_ue8m0(values: Tensor) -> Tensor:
    """Round float32 magnitudes up to a power of two, as UE8M0 bytes (uint8): exponent + 127.

    Zero becomes 0 (which reads back as 2**-127), infinity 254, NaN 255. The sign is ignored.
    Float32 subnormals are not expected.
    """
    bits = values.abs().view(torch.int32)
    # A carry out of any non-zero mantissa is the rounding up. NaN overflows here and is replaced.
    rounded_up = (bits + ((1 << _FLOAT32_MANTISSA_BITS) - 1)) >> _FLOAT32_MANTISSA_BITS
    codes = rounded_up.clamp(max=_UE8M0_MAX)
    return torch.where(values.isnan(), _UE8M0_NAN, codes).to(torch.uint8)


def decode_ue8m0(codes: Tensor) -> Tensor:
    """Read UE8M0 bytes (uint8) as float32: 2**(byte - 127), NaN for 255."""
    return codes.view(torch.float8_e8m0fnu).to(torch.float32)
