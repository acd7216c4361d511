"""The reference quantizer against the pure PyTorch references that FlashInfer's releases ship.

Each release runs in a child of its own, unpatched, and reports how many bytes differ.
"""

from __future__ import annotations

import pytest
from conftest import RunChild

OFF = {"FLASHINFER_SHIM": "off"}

# Shared by the children: inputs, our results for them, and a count of what differs.
COMMON = """
import json
import torch
from shim.reference import dequantize_fp4, formats, layout, quantize_fp4

generator = torch.Generator().manual_seed(0)

def spread(m, k, dtype):
    "Blocks of very different magnitudes, and a row of zeros of both signs."
    x = torch.randn(m, k, generator=generator)
    x *= torch.rand(m, k // 16, generator=generator).mul(12).sub(6).exp2().repeat_interleave(16, 1)
    x[m // 2] = 0
    x[m // 2, 1::2] *= -1
    return x.to(dtype)

def quantize(x, scale, size, swizzled=False, is_8x4=False):
    return quantize_fp4(
        x, scale, sf_vec_size=size, sf_use_ue8m0=size == 32, is_sf_swizzled_layout=swizzled,
        is_sf_8x4_layout=is_8x4, padded_columns=True,
    )

def differ(ours, theirs):
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    return int((ours != theirs).sum())

report = {}
"""

DEQUANTIZER = """
from flashinfer.quantization.fp4_quantization import _e2m1_and_ufp8sf_scale_to_float_cpu

for size in (16, 32):
    x = spread(33, 224, torch.bfloat16)
    # A power of two, because upstream multiplies by the reciprocal where we divide.
    scale = torch.tensor([4.0]) if size == 16 else None
    x_q, sf = quantize(x, scale, size)
    ours = dequantize_fp4(
        x_q, sf, scale, sf_vec_size=size, sf_use_ue8m0=size == 32, is_sf_swizzled_layout=False,
        is_sf_8x4_layout=False,
    )
    reciprocal = None if scale is None else 1 / scale
    theirs = _e2m1_and_ufp8sf_scale_to_float_cpu(x_q, sf, reciprocal, size, int(size == 16), False)
    report[f"dequantized, blocks of {size}"] = differ(ours, theirs)
"""

# Upstream's template divides where the kernel multiplies by a rounded reciprocal, and takes the
# lower of two neighbours that are as near where the kernel takes the even one. Blocks whose largest
# element is six times a power of two, without such midpoints, leave no room for either. Its MXFP4
# scales are rounded down, the kernel's up: it cannot serve for those.
TEMPLATE = """
from flashinfer.trace.templates.quantize import _fp4_quantize_reference

x = torch.randn(64, 256, generator=generator).mul(2).clamp(-5.75, 5.75).to(torch.bfloat16).float()
x[torch.isin(x.abs(), torch.tensor([0.0, 0.75, 1.75, 3.5]))] = 1
x[:, ::16] = 6
x *= torch.randint(-6, 6, (64, 16), generator=generator).exp2().repeat_interleave(16, 1)
x_q, sf = quantize(x.to(torch.bfloat16), torch.ones(1), 16)
their_q, their_sf = _fp4_quantize_reference(x.to(torch.bfloat16), torch.ones(1), 16, False)
report["codes of the template"] = differ(x_q, their_q)
report["scales of the template"] = differ(sf, their_sf.view(torch.uint8))
"""

UNSWIZZLE = """
from flashinfer.trace.templates.gemm import _unswizzle_sf_128x4

scales = torch.randint(0, 256, (300, 14), generator=generator).to(torch.uint8)
swizzled = layout.swizzle(scales, is_sf_8x4_layout=False)
report["scales unswizzled"] = differ(scales, _unswizzle_sf_128x4(swizzled, 300, 14))
"""

# The classes of 0.7.4 that promise the same bits for any batch, and the reference that its own
# tests use: exact specifications, which we meet bit for bit on everything but almost-zero blocks.
SPECIFICATIONS = """
from flashinfer.batch_invariant.quantization import layout as their_layout
from flashinfer.batch_invariant.quantization import mx_spec
from flashinfer.batch_invariant.quantization.mx_reference import quantize_mx_reference
from flashinfer.batch_invariant.quantization.nvfp4_reference import quantize_reference
from flashinfer.experimental.b12x.testing.reference.helpers import ref_fp4_quant

LAYOUTS = {"linear": (False, False), "128x4": (True, False), "8x4": (True, True)}

for dtype in (torch.float16, torch.bfloat16):
    x = spread(150, 224, dtype)
    for name, where in LAYOUTS.items():
        x_q, sf = quantize(x, None, 32, *where)
        their_q, their_sf, _ = quantize_mx_reference(x, mx_spec.MXFP4, swizzled=name)
        report[f"MXFP4 codes, {name}, {dtype}"] = differ(x_q, their_q)
        report[f"MXFP4 scales, {name}, {dtype}"] = differ(sf.flatten(), their_sf)

        _, linear = quantize(x, torch.ones(1), 16)
        _, sf = quantize(x, torch.ones(1), 16, *where)
        their_sf = their_layout.swizzle_sf(linear, 150, 224, 16, name)
        report[f"NVFP4 scales, {name}, {dtype}"] = differ(sf.flatten(), their_sf)

    # A power of two: this specification multiplies the three factors in another order.
    x_q, sf = quantize(x, torch.tensor([16.0]), 16, True)
    their_q, their_sf, _ = quantize_reference(x, 16.0)
    report[f"NVFP4 codes, {dtype}"] = differ(x_q, their_q)
    report[f"NVFP4 scales, {dtype}"] = differ(sf, their_sf)

    scale = 448 * 6 / x.float().abs().amax()
    x_q, sf = quantize(x, scale, 16)
    their_values, their_scales = ref_fp4_quant(x, scale)
    ours = formats.decode_e2m1(formats.unpack_e2m1(x_q))
    report[f"NVFP4 values, any global scale, {dtype}"] = differ(ours, their_values)
    report[f"NVFP4 scale values, any global scale, {dtype}"] = differ(
        formats.decode_e4m3(sf), their_scales
    )
"""


def differences(run_child: RunChild, release: str, *parts: str) -> dict[str, int]:
    """What the child reports: each comparison with the number of elements that differ."""
    code = "\n".join([COMMON, *parts, "print(json.dumps(report))"])
    report: dict[str, int] = run_child(code, release=release, env=OFF).json
    return report


@pytest.mark.parametrize("release", ["0.6.11.post3", "0.6.13"])
def test_releases_with_a_dequantizer_and_a_template_agree(
    run_child: RunChild, release: str
) -> None:
    report = differences(run_child, release, DEQUANTIZER, TEMPLATE)
    assert len(report) == 4
    assert not any(report.values()), report


@pytest.mark.parametrize("release", ["0.6.18.post1", "0.7.4"])
def test_releases_that_unswizzle_scales_too_agree(run_child: RunChild, release: str) -> None:
    report = differences(run_child, release, DEQUANTIZER, TEMPLATE, UNSWIZZLE)
    assert len(report) == 5
    assert not any(report.values()), report


def test_the_exact_specifications_of_0_7_4_agree_bit_for_bit(run_child: RunChild) -> None:
    report = differences(run_child, "0.7.4", SPECIFICATIONS)
    assert len(report) == 26
    assert not any(report.values()), report
