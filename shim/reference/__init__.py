"""A reference NVFP4/MXFP4 quantizer in plain PyTorch: no kernel, no JIT, any device.

It is what ``fp4_quantize`` computes on a CPU when ``FLASHINFER_SHIM_REFERENCE=1``, and what tests
hold against FlashInfer's own references.
"""

from __future__ import annotations

from .quantize import dequantize_fp4, quantize_fp4

__all__ = ["dequantize_fp4", "quantize_fp4"]
