"""What the ``cute-dsl`` backend of ``fp4_quantize`` returns, without running it.

It flattens the leading dimensions, knows no column-major input and pads in ways of its own: see
:class:`~shim.patches.fp4_traits.CuteTraits`.
"""

from __future__ import annotations

import os
from importlib import import_module
from itertools import count
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .fp4_layout import round_up, with_slack
from .fp4_traits import CuteTraits, Fp4Traits

_MXFP4_DTYPES = (torch.float16, torch.bfloat16)
_NVFP4_DTYPES = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)


def fake_cute_dsl(
    traits: Fp4Traits,
    input: Tensor,
    global_scale: Tensor | None,
    sf_vec_size: int,
    sf_use_ue8m0: bool,
    *,
    tile: int,
    is_8x4: bool,
    recipe: Any,
) -> tuple[Tensor, Tensor]:
    """Return empty outputs; arguments, results and errors as those of ``fake_fp4_quantize``.

    Args:
        tile: Rows that the layout of scales pads to; 1 is the linear layout.
        is_8x4: What the caller said of 8x4, which some releases mind in the linear layout too.
        recipe: The 4over6 recipe that the caller found, or None.
    """
    assert traits.cute is not None  # this release has the backend
    if traits.cute.recipe_first:
        _check_four_over_six(input, recipe)
        _check_format(sf_vec_size, sf_use_ue8m0)
    if not import_module("flashinfer.cute_dsl").is_cute_dsl_available():
        raise RuntimeError(
            "CuTe-DSL backend requested but CuTe-DSL is not available. "
            "Please install the required dependencies."
        )
    _check_format(sf_vec_size, sf_use_ue8m0)
    if sf_use_ue8m0:
        if is_8x4 and not traits.cute.mxfp4_8x4:
            raise ValueError(
                "CuTe-DSL MXFP4 kernel does not support 8x4 layout. "
                "Supported: swizzled 128x4 and linear."
            )
        return _fake_mxfp4(traits.cute, input, tile)
    return _fake_nvfp4(traits, traits.cute, input, global_scale, tile, recipe)


def _fake_mxfp4(cute: CuteTraits, input: Tensor, tile: int) -> tuple[Tensor, Tensor]:
    assert input.dtype in _MXFP4_DTYPES, (
        f"Input dtype must be float16 or bfloat16, got {input.dtype}"
    )
    m, k = _matrix(input)
    assert k % 32 == 0, f"K ({k}) must be divisible by MXFP4_SF_VEC_SIZE=32"
    columns = k // 32
    rows, padded = m, columns
    if tile > 1:
        _refuse_no_columns(columns)
        rows, padded = round_up(m, tile), round_up(columns, 4)
    sf = _bytes(input, rows * padded)
    sf = sf.reshape(rows, padded) if cute.mxfp4_padded else sf.reshape(-1, columns)
    return _bytes(input, m, k // 2), sf


def _fake_nvfp4(
    traits: Fp4Traits,
    cute: CuteTraits,
    input: Tensor,
    global_scale: Tensor | None,
    tile: int,
    recipe: Any,
) -> tuple[Tensor, Tensor]:
    assert input.dtype in _NVFP4_DTYPES, (
        f"Input dtype must be one of {_NVFP4_DTYPES}, got {input.dtype}"
    )
    m, k = _matrix(input)
    assert k % 16 == 0, f"K ({k}) must be divisible by NVFP4_SF_VEC_SIZE=16"
    _check_four_over_six(input, recipe)
    columns = k // 16
    padded = columns if tile == 1 else round_up(columns, 4)
    if cute.empty_returns_early and k == 0:
        return _bytes(input, m, k // 2), _bytes(input, m, padded)
    try:
        _check_scale(global_scale)
        if traits.four_over_six == "environment":
            recipe = _recipe_of_environment(input)
    except Exception:
        # Asked of m only here: each question for a size may cost the compiler a graph.
        if cute.empty_returns_early and m == 0:
            return _bytes(input, m, k // 2), _bytes(input, m, padded)
        raise
    rows = round_up(m, tile)
    pads_by_16 = tile == 1 or (tile == 8 and cute.tma_8x4_tile == 16)
    if pads_by_16 and recipe is None and _large(cute, m, k, input.dtype):
        rows = with_slack(m) if tile == 1 else round_up(m, 16)
    if tile > 1:
        _refuse_no_columns(columns)
    sf = _bytes(input, rows * padded)
    if tile == 1:
        sf = sf[: m * columns]
    return _bytes(input, m, k // 2), sf.reshape(-1, padded)


def _large(cute: CuteTraits, m: int, k: int, dtype: torch.dtype) -> bool:
    """Whether the kernel for large inputs runs.

    From 0.7.1 on, upstream also picks it by itself on SM107, which shows in nothing but the unused
    end of the storage of linear scales; that is left out.
    """
    if cute.tma == "on request" and os.environ.get("FLASHINFER_NVFP4_QUANTIZE_USE_TMA") != "1":
        return False
    if dtype == torch.float8_e4m3fn or k % 512 != 0:
        return False
    # floor(log2(m)) + floor(log2(k)) >= 25, put so that m is asked once.
    log2_k = next(power for power in count() if k < 2 << power)
    return m >= 1 << max(10, 25 - log2_k)


def _matrix(input: Tensor) -> tuple[int, int]:
    assert input.is_cuda, "Input must be on CUDA device"
    if input.dim() > 2:
        return input.numel() // input.shape[-1], input.shape[-1]
    m, k = input.shape
    return m, k


def _bytes(input: Tensor, *size: int) -> Tensor:
    return input.new_empty(size, dtype=torch.uint8)


def _refuse_no_columns(columns: int) -> None:
    """Fail for K = 0 as upstream does where it sizes its thread blocks: ZeroDivisionError."""
    _ = 1024 // columns


def _check_scale(global_scale: Any) -> None:
    """Fail for what is not one number as upstream does where it makes it one."""
    if not isinstance(global_scale, Tensor):
        float(global_scale)
    elif global_scale.numel() != 1:
        global_scale.reshape(1)


def _check_format(sf_vec_size: int, sf_use_ue8m0: bool) -> None:
    if (sf_vec_size, sf_use_ue8m0) not in ((16, False), (32, True)):
        raise ValueError(
            f"CuTe-DSL backend does not support sf_vec_size={sf_vec_size} with "
            f"sf_use_ue8m0={sf_use_ue8m0}. Supported: (sf_vec_size=16, sf_use_ue8m0=False) for "
            "NVFP4, (sf_vec_size=32, sf_use_ue8m0=True) for MXFP4."
        )


def _check_four_over_six(input: Tensor, recipe: Any) -> None:
    if recipe is not None and input.dtype == torch.float8_e4m3fn:
        raise _upstream_four_over_six().nvfp4_4over6_fp8_input_error(input.dtype)


def _recipe_of_environment(input: Tensor) -> Any:
    recipe = _upstream_four_over_six().current_nvfp4_4over6_config()
    if recipe is not None and input.dtype == torch.float8_e4m3fn:
        raise ValueError("FLASHINFER_NVFP4_4OVER6 requires fp16 or bf16 input")
    return recipe


def _upstream_four_over_six() -> ModuleType:
    return import_module("flashinfer.quantization.nvfp4_quantization_utils")
