"""The reference quantizer against a model of the kernel for one block, in scalar arithmetic.

The model is written after the CUDA source, statement by statement, on NumPy's float32 and float16,
and shares nothing with the tensor version: it looks values up in tables of what each code means.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shim.reference import formats, quantize_fp4

F32 = np.float32
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E4M3 = [
    (code & 7) * 2.0**-9 if code < 8 else (1 + (code & 7) / 8) * 2.0 ** ((code >> 3) - 7)
    for code in range(0x7F)
]
UE8M0 = [2.0 ** (code - 127) for code in range(255)]


def nearest(value: float, numbers: list[float]) -> int:
    """Code of the nearest number, the even code of two that are as near; saturating."""
    magnitude = min(abs(value), numbers[-1])
    return min(range(len(numbers)), key=lambda code: (abs(numbers[code] - magnitude), code & 1))


def to_e2m1(value: F32) -> int:
    if math.isnan(value):
        return 7
    return nearest(float(value), E2M1) | (8 if math.copysign(1, value) < 0 else 0)


def to_e4m3(value: F32) -> tuple[int, F32]:
    if math.isnan(value):
        return 0x7F, F32(math.nan)
    code = nearest(float(value), E4M3)
    if math.copysign(1, value) < 0:
        return code | 0x80, F32(-E4M3[code])
    return code, F32(E4M3[code])


def to_ue8m0(value: F32) -> tuple[int, F32]:
    if math.isnan(value):
        return 255, F32(math.nan)
    code = next((code for code, power in enumerate(UE8M0) if power >= abs(value)), 254)
    return code, F32(UE8M0[code])


def ftz(value: F32) -> F32:
    return value * F32(0) if abs(value) < np.finfo(F32).tiny else value


def mul(one: F32, other: F32) -> F32:
    return ftz(ftz(one) * ftz(other))


def rcp(value: F32) -> F32:
    return ftz(F32(1) / ftz(value))


def vec_max(values: list[F32]) -> tuple[F32, F32]:
    """The maxima of the even and of the odd elements; a NaN loses against a number."""
    absolute = [abs(value) for value in values]
    return functools.reduce(np.fmax, absolute[0::2]), functools.reduce(np.fmax, absolute[1::2])


def fp16_block(values: list[F32], scale: F32, *, ue8m0: bool) -> tuple[list[int], int]:
    even, odd = vec_max(values)
    amax = even if even > odd else odd
    if ue8m0:
        amax = mul(amax, rcp(F32(6)))
        sf, _ = to_ue8m0(amax)
        power = ftz(F32(2.0 ** (127 - sf))) if sf else F32(1)
        factor = power if amax != 0 else F32(0)
    else:
        sf, stored = to_e4m3(mul(scale, mul(amax, rcp(F32(6)))))
        factor = rcp(mul(stored, rcp(scale))) if ftz(amax) != 0 else F32(0)
    return [to_e2m1(mul(value, factor)) for value in values], sf


def fp8_block(values: list[F32], scale: F32, *, ue8m0: bool) -> tuple[list[int], int]:
    to_fp16 = mul(F32(6), rcp(scale))
    values = [F32(np.float16(mul(value, to_fp16))) for value in values]
    even, odd = vec_max(values)
    wanted = mul(scale, mul(np.fmax(even, odd), rcp(F32(6))))
    sf, stored = (to_ue8m0 if ue8m0 else to_e4m3)(wanted)
    factor = mul(scale, rcp(stored)) if wanted != 0 else F32(0)
    return [to_e2m1(mul(value, factor)) for value in values], sf


@st.composite
def elements(draw: st.DrawFn, size: int) -> list[float]:
    """Anything, or numbers of like magnitude, or one of these with every other element NaN."""
    some = st.floats(width=16) | st.floats(-8, 8, width=16)
    values = draw(
        st.lists(
            draw(st.sampled_from([some, st.floats(-8, 8, width=16)])), min_size=size, max_size=size
        )
    )
    holes = draw(st.sampled_from([None, 0, 1]) if draw(st.booleans()) else st.none())
    if holes is not None:
        values[holes::2] = [math.nan] * (size // 2)
    return values


@settings(deadline=None, max_examples=300)
@given(
    data=st.data(),
    ue8m0=st.booleans(),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float8_e4m3fn]),
    shift=st.integers(-133, 120) | st.just(0),
    scale=st.floats(width=32) | st.floats(2**-10, 2**14, width=32),
)
def test_the_reference_computes_what_the_kernel_computes(
    data: st.DataObject, ue8m0: bool, dtype: torch.dtype, shift: int, scale: float
) -> None:
    size = 32 if ue8m0 else 16
    values = torch.tensor([data.draw(elements(size))], dtype=torch.float64)
    x = (values * 2.0**shift).to(torch.float32).to(dtype)
    like_the_model(x, scale, ue8m0=ue8m0)


def like_the_model(x: torch.Tensor, scale: float, *, ue8m0: bool) -> list[int]:
    """Both quantize ``x``, (1, 16) or (1, 32), to the same bits; its codes."""
    x_q, sf = quantize_fp4(
        x,
        torch.tensor([scale]),
        sf_vec_size=x.shape[1],
        sf_use_ue8m0=ue8m0,
        is_sf_swizzled_layout=False,
        is_sf_8x4_layout=False,
        padded_columns=True,
    )
    model = fp8_block if x.dtype == torch.float8_e4m3fn else fp16_block
    with np.errstate(all="ignore"):
        codes, byte = model(list(x[0].float().numpy()), F32(scale), ue8m0=ue8m0)
    assert formats.unpack_e2m1(x_q)[0].tolist() == codes
    assert int(sf) == byte
    return codes


def test_an_infinite_element_meets_a_factor_that_is_flushed() -> None:
    """-1.0 is brought back to -inf and meets a factor that is subnormal: their product is NaN."""
    x = torch.tensor([[0.0] * 15 + [-1.0]]).to(torch.float8_e4m3fn)
    assert like_the_model(x, 2.496695581440417e-36, ue8m0=False) == [0] * 15 + [7]
