"""Quantization to FP4 and FP8 and back, and the layouts of their scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...opaque.declare import MakeTensor, Op, Traces, Uncovered

_HIDDEN, _GROUPS = 256, 3
_PAIR, _TRIPLE = "(Tensor, Tensor)", "(Tensor, Tensor, Tensor)"
_FOUR = "(Tensor, Tensor, Tensor, Tensor)"
_BLACKWELL = (10, 0)
#: Beginnings of the names of FlashInfer's variables that choose between kernels with other shapes.
SHAPE_VARIABLES = ("FLASHINFER_NVFP4_QUANTIZE_USE_TMA", "FLASHINFER_NVFP4_4OVER6")


def _rows(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"input": make(m, _HIDDEN)}


def _scale(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_rows(make, m), "global_scale": make(1, dtype="float32")}


def _token_scales(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_rows(make, m), "global_scale_inv": make(1, dtype="float32")}


def _nvfp4(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"a": make(m, _HIDDEN), "a_global_sf": make(1, dtype="float32")}


def _batched(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"a": make(_GROUPS, m, _HIDDEN), "a_global_sf": make(_GROUPS, dtype="float32")}


def _masked(make: MakeTensor, m: int, hidden: int = _HIDDEN) -> dict[str, Any]:
    mask = make(_GROUPS, dtype="int32", values=(m,) * _GROUPS)
    return {"a": make(_GROUPS, m, hidden), "mask": mask}


def _experts(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_masked(make, m, 2 * _HIDDEN), "a_global_sf": make(_GROUPS, dtype="float32")}


def _gated(make: MakeTensor, m: int) -> dict[str, Any]:
    # Rows and columns come in tiles of 128.
    return {"gated_input": make(128 * m, 2 * _HIDDEN)}


def _gated_backward(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_gated(make, m), "grad_output": make(128 * m, _HIDDEN)}


def _packed(make: MakeTensor, m: int, block: int) -> tuple[Any, Any]:
    """FP4 numbers, two in a byte, and their scales in the swizzled layout."""
    rows = (m + 127) // 128 * 128
    scales = make(rows * (_HIDDEN // block), dtype="uint8")
    return make(m, _HIDDEN // 2, dtype="uint8"), scales


def _to_float(make: MakeTensor, m: int) -> dict[str, Any]:
    packed, scales = _packed(make, m, 16)
    scale = make(1, dtype="float32")
    return {"e2m1_tensor": packed, "ufp8_scale_tensor": scales, "global_scale_tensor": scale}


def _mxfp4(make: MakeTensor, m: int) -> dict[str, Any]:
    packed, scales = _packed(make, m, 32)
    return {"a_fp4": packed, "a_sf": scales}


def _mxfp4_host(make: MakeTensor, m: int) -> dict[str, Any]:
    weight, scale = make(m, _HIDDEN // 2, dtype="uint8"), make(m, _HIDDEN // 32, dtype="uint8")
    return {"weight": weight.cpu(), "scale": scale.cpu()}


def _mxfp8_host(make: MakeTensor, m: int) -> dict[str, Any]:
    scales = _packed(make, m, 32)[1]
    return {"input": make(m, _HIDDEN, dtype="uint8").cpu(), "scale_tensor": scales.cpu()}


def _kv(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "fp4_data": make(m, _HIDDEN // 2, dtype="uint8"),
        "block_scales": make(m, _HIDDEN // 16, dtype="uint8"),
        "global_scale": make(1, dtype="float32"),
    }


def _paged_kv(make: MakeTensor, m: int) -> dict[str, Any]:
    pages, heads, head = (4, 16), 2, 64
    return {
        "paged_kv_cache": tuple(make(*pages, heads, head // 2, dtype="uint8") for _ in "kv"),
        "kv_cache_sf": tuple(make(*pages, heads, head // 16, dtype="uint8") for _ in "kv"),
        "block_tables": make(1, 64, dtype="int32"),
        "seq_lens": make(1, dtype="int32", values=(m,)),
        **{name: make(1, dtype="float32") for name in ("k_scale", "v_scale")},
        **{name: make(1, m, heads, head) for name in ("output_k", "output_v")},
    }


def _materialized(make: MakeTensor, m: int) -> dict[str, Any]:
    pages, head = (4, 2, 16), 64
    caches = {f"{name}_cache": make(*pages, head // 2, dtype="uint8") for name in "kv"}
    scales = {f"{name}_block_scales": make(*pages, head // 16, dtype="uint8") for name in "kv"}
    tables = {"block_tables": make(m, 4, dtype="int32"), "seq_lens": make(m, dtype="int32")}
    return {**caches, **scales, **tables, "max_kv_len": 64}


def _materializer(make: MakeTensor, m: int) -> dict[str, Any]:
    from flashinfer.quantization.kernels.nvfp4_kv_materialize import NVFP4KVMaterializer

    given = _materialized(make, m)
    del given["max_kv_len"]
    pages, heads, page, head = 4, 2, 16, 64
    return {
        "self": NVFP4KVMaterializer(heads, page, head),
        **given,
        # As many pages as the table of each request has.
        "kv_page_indptr": pages * make(m + 1, dtype="int32", values="range"),
        "out": make(pages * m + 1, 2, heads, page, head, dtype="float8_e4m3fn"),
        "fp8_block_tables": make(m, pages, dtype="int32"),
    }


def _shuffled(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = (m + 127) // 128 * 128
    return {"input_tensor": make(rows, 16, dtype="uint8"), "epilogue_tile_m": 128}


def _shuffled_fake(input_tensor: Any, **_: Any) -> Any:
    assert input_tensor.dim() == 2  # as upstream does
    rows, columns = input_tensor.shape
    return input_tensor.new_empty(((rows + 127) // 128 * 128 * ((columns + 3) // 4 * 4),))


def _expanded(make: MakeTensor, m: int) -> dict[str, Any]:
    from flashinfer.quantization import CsfScales

    experts, rows, columns = 5, 80, 10
    scales = CsfScales(
        make(experts, rows // 16, 16 * (1 + columns // 2), dtype="uint8"),
        make(1, dtype="uint32"),
        make(experts * rows // 16 + 1, dtype="int32"),
        rows,
        columns,
    )
    return {
        "csf": scales,
        "out": make(experts, rows, columns, dtype="uint8"),
        "token_selected_experts": make(m, 2, dtype="int32"),
    }


def _with_token_scales(given: Mapping[str, Any]) -> int:
    return 3 if given.get("per_token_activation") else 2


OPS = (
    Op(
        "nvfp4_quantize",
        _nvfp4,
        _TRIPLE,
        results=_with_token_scales,
        annotations={"a": "Tensor", "a_global_sf": "Tensor | float", "enable_pdl": "bool | None"},
        variables=SHAPE_VARIABLES,
        capability=_BLACKWELL,
    ),
    Op(
        "mxfp4_quantize",
        lambda make, m: {"a": make(m, _HIDDEN)},
        _PAIR,
        annotations={"a": "Tensor"},
        capability=_BLACKWELL,
    ),
    Op("mxfp8_quantize", _rows, _PAIR, capability=_BLACKWELL),
    Op(
        "mxfp8_quantize_bshd",
        lambda make, m: {"x": make(m, 130, 3, 128)},
        _PAIR,
        capability=_BLACKWELL,
    ),
    Op(
        "nvfp4_batched_quantize",
        _batched,
        _PAIR,
        annotations={"a": "Tensor", "a_global_sf": "Tensor"},
        capability=_BLACKWELL,
    ),
    *(
        Op(
            name,
            example,
            _PAIR,
            annotations=dict.fromkeys(("a", "mask", "a_global_sf"), "Tensor"),
            capability=_BLACKWELL,
        )
        for name, example in (
            (
                "scaled_fp4_grouped_quantize",
                lambda make, m: {**_masked(make, m), **_batched(make, m)},
            ),
            ("silu_and_mul_scaled_nvfp4_experts_quantize", _experts),
        )
    ),
    Op(
        "silu_and_mul_nvfp4_quantize",
        lambda make, m: {**_scale(make, m), "input": make(m, 2 * _HIDDEN)},
        _PAIR,
        requires=("cutlass",),
        capability=_BLACKWELL,
    ),
    Op("mxfp8_grouped_quantize", _masked, _PAIR, requires=("cuda.tile",), capability=_BLACKWELL),
    Op(
        "silu_and_mul_mxfp8_experts_quantize",
        lambda make, m: _masked(make, m, 2 * _HIDDEN),
        _PAIR,
        capability=_BLACKWELL,
    ),
    *(
        Op(name, example, _FOUR, capability=_BLACKWELL, newest=(10, 7))
        for name, example in (
            ("silu_and_mul_mxfp8_quantize", _gated),
            ("silu_and_mul_mxfp8_quantize_backward", _gated_backward),
        )
    ),
    Op(
        "cake_silu_and_mul_mxfp8_quantize",
        _gated,
        _FOUR,
        function="silu_and_mul_mxfp8_quantize",
        module="flashinfer.cake_gated_act_mxfp8_backend*",
        capability=_BLACKWELL,
        newest=(10, 7),
    ),
    Op(
        "per_token_group_quant_8bit",
        lambda make, m: {"x": make(m, _HIDDEN), "group_size": 128},
        _PAIR,
        requires=("cuda.tile",),
    ),
    Op("nvfp4_kv_quantize", _scale, _PAIR, capability=_BLACKWELL),
    Op("nvfp4_kv_dequantize", _kv),
    Op("nvfp4_kv_dequantize_paged", _paged_kv, "()", mutates=("output_k", "output_v")),
    Op(
        "nvfp4_kv_materialize_fp8",
        _materialized,
        _PAIR,
        out=("out",),
        requires=("cutlass",),
        capability=_BLACKWELL,
    ),
    Op(
        "NVFP4KVMaterializer.run",
        _materializer,
        _PAIR,
        out=("out", "fp8_block_tables"),
        requires=("cutlass",),
        capability=_BLACKWELL,
    ),
    # What the functions above call where the backend is "cute-dsl"; public where that is installed.
    *(
        Op(
            name,
            example,
            returns,
            # The results would be views of it, which an op cannot return.
            annotations={"out": "None"},
            variables=SHAPE_VARIABLES,
            requires=("cutlass",),
            capability=_BLACKWELL,
        )
        for name, example, returns in (
            ("nvfp4_quantize_cute_dsl", _scale, _PAIR),
            ("nvfp4_quantize_per_token_cute_dsl", _token_scales, _TRIPLE),
            ("mxfp4_quantize_cute_dsl", _rows, _PAIR),
            ("mxfp8_quantize_cute_dsl", _rows, _PAIR),
        )
    ),
    # The next three return tensors on the CPU.
    Op("e2m1_and_ufp8sf_scale_to_float", _to_float, capability=(9, 0)),
    Op(
        "mxfp4_dequantize",
        _mxfp4,
        annotations={"a_fp4": "Tensor", "a_sf": "Tensor"},
        capability=(9, 0),
    ),
    Op("mxfp4_dequantize_host", _mxfp4_host, capability=(9, 0)),
    Op("mxfp8_dequantize_host", _mxfp8_host, capability=_BLACKWELL),
    Op(
        "block_scale_interleave",
        lambda make, m: {"unswizzled_sf": make(m, 16, dtype="uint8")},
        out=("out",),
        capability=(9, 0),
    ),
    # In shadow it counts rows one by one up to 0.6.7, which would make a graph for every number.
    Op("shuffle_matrix_sf_a", _shuffled, fake=_shuffled_fake, capability=(9, 0)),
    Op("expand_csf_scales", _expanded, out=("out",)),
    Op("packbits", lambda make, m: {"x": make(m, dtype="bool")}, capability=(7, 5)),
)

TRACES = (Traces("shuffle_matrix_a", _shuffled),)

UNCOVERED = (
    Uncovered("segment_packbits", "its output's size is read from the GPU"),
    Uncovered("nvfp4_quantize_paged_kv_cache", "it returns numbers that are read from the GPU"),
    Uncovered("make_nvfp4_global_scale", "it decides by a number that is read from the GPU"),
)
