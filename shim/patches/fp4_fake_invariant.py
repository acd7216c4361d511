"""What ``fp4_quantize(batch_invariant=True)`` (FlashInfer 0.7.4) returns, without running it.

Unlike the ``cuda`` backend it keeps the leading dimensions, takes 1-D inputs, and calls an input
column-major only where its last stride is not 1 as well.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from .fp4_layout import round_up

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_ROW_BYTES = 131072


def fake_batch_invariant(
    input: Tensor,
    global_scale: Tensor | None,
    sf_vec_size: int,
    sf_use_ue8m0: bool,
    *,
    tile: int,
    recipe: Any,
) -> tuple[Tensor, Tensor]:
    """Return empty outputs; arguments, results and errors as those of ``fake_fp4_quantize``.

    Args:
        tile: Rows that the layout of scales pads to; 1 is the linear layout.
        recipe: The 4over6 recipe that the caller asked for, or None.
    """
    api = import_module("flashinfer.batch_invariant.quantization.nvfp4_api")
    mx_api = import_module("flashinfer.batch_invariant.quantization.mx_api")
    if (sf_vec_size, sf_use_ue8m0) not in ((16, False), (32, True)):
        raise api.unsupported(
            f"{api.CLASS_NVFP4} / {mx_api.CLASS_MXFP4}",
            f"sf_vec_size = {sf_vec_size} with sf_use_ue8m0 = {sf_use_ue8m0}",
            "sf_vec_size = 16 with e4m3 scales (the NVFP4 class) or sf_vec_size = 32 with UE8M0 "
            "scales (the MXFP4 class)",
        )
    name = mx_api.CLASS_MXFP4 if sf_use_ue8m0 else api.CLASS_NVFP4
    if recipe is not None:
        raise api.unsupported(
            name,
            "an NVFP4 4over6 scale-candidate search",
            "the plain NVFP4 recipe (nvfp4_4over6=None): a candidate search is another "
            "specification",
        )
    column_major = input.dim() >= 2 and input.stride(-2) == 1 and input.stride(-1) != 1
    if column_major:
        input = input.transpose(-2, -1)
    if not input.is_cuda:
        api.check_device(input.device, name, api.NVFP4_QUANT_ARCHS)
    _check_input(api, name, input, sf_vec_size)
    if not sf_use_ue8m0 and global_scale is not None and global_scale.numel() != 1:
        raise api.unsupported(
            name, f"a global scale of {global_scale.numel()} elements", "one scalar global scale"
        )
    k = input.shape[-1]
    m = input.numel() // k
    _check_rows(input, m, k)
    columns = k // sf_vec_size
    padded = columns if tile == 1 else round_up(columns, 4)
    x_q = input.new_empty((*input.shape[:-1], k // 2), dtype=torch.uint8)
    sf = input.new_empty((round_up(m, tile) * padded,), dtype=torch.uint8).reshape(-1, padded)
    if column_major:
        return x_q.transpose(-2, -1), sf.transpose(-2, -1)
    return x_q, sf


def _check_input(api: Any, name: str, input: Tensor, block: int) -> None:
    if input.dtype not in _DTYPES:
        raise api.unsupported(name, f"input dtype {input.dtype}", "bf16, f16 or fp32 inputs")
    if input.dim() < 1:
        raise api.unsupported(name, f"a {input.dim()}-D input", "inputs of shape (..., K)")
    k = input.shape[-1]
    if k <= 0 or k % block:
        raise api.unsupported(name, f"K = {k}", f"K a positive multiple of {block}")
    if k * input.element_size() > _ROW_BYTES:
        raise api.unsupported(
            name,
            f"K = {k} for {input.dtype}",
            f"rows of at most {_ROW_BYTES} bytes (K <= {_ROW_BYTES // input.element_size()})",
        )


def _check_rows(input: Tensor, m: int, k: int) -> None:
    """Refuse rows with gaps between their elements, unless upstream copies them for alignment."""
    if input.stride(-1) == 1 or m == 0:
        return
    rows = input.reshape(-1, k)  # a copy, and so without gaps, where no view will do
    size = input.element_size()
    aligned = rows.storage_offset() * size % 16 == 0 and (m == 1 or rows.stride(0) * size % 16 == 0)
    if rows.stride(-1) != 1 and aligned:
        raise ValueError("input must have a unit stride along the last dimension")
