"""Normalization, alone and fused with what comes before or after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...opaque.declare import MakeTensor, Op

_HIDDEN = 256
#: What kernels for one model alone are compiled for.
_WAN_HIDDEN, _GATED_HIDDEN, _GATED_HEAD, _MHC_HIDDEN = 3072, 8192, 64, 4096
#: FP4 conversion, and the last of the line that three kernels were written for.
_BLACKWELL, _DATACENTER = (10, 0), (10, 7)
_PAIR, _TRIPLE = "(Tensor, Tensor)", "(Tensor, Tensor, Tensor)"


def _norm(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"input": make(m, _HIDDEN), "weight": make(_HIDDEN)}


def _add_norm(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"input": make(m, _HIDDEN), "residual": make(m, _HIDDEN), "weight": make(_HIDDEN)}


def _layernorm(make: MakeTensor, m: int) -> dict[str, Any]:
    weight = {name: make(_HIDDEN, dtype="float32") for name in ("gemma", "beta")}
    return {"input": make(m, _HIDDEN), **weight}


def _quantized(make: MakeTensor, m: int) -> dict[str, Any]:
    import inspect

    from flashinfer.norm import rmsnorm_quant

    # Up to 0.6.6 a number; from then on a number is copied to the card, which no capture can hold.
    scale = inspect.signature(rmsnorm_quant, eval_str=True).parameters["scale"]
    return {
        "out": make(m, _HIDDEN, dtype="float8_e4m3fn"),
        "scale": 0.5 if scale.annotation is float else make(1, dtype="float32", values=(0.5,)),
    }


def _norm_quant(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_norm(make, m), **_quantized(make, m)}


def _add_norm_quant(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_add_norm(make, m), **_quantized(make, m)}


def _norm_quant_cute(make: MakeTensor, m: int) -> dict[str, Any]:
    quantized = make(m, _HIDDEN, dtype="float8_e4m3fn")
    return {
        **_norm(make, m),
        "out": quantized,
        "scale": make(1, dtype="float32", values=(0.5,)),
    }


def _layernorm_quant(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_layernorm(make, m), **_quantized(make, m)}


def _add_norm_block_quant(make: MakeTensor, m: int) -> dict[str, Any]:
    rows = 4 * m  # scales come for four rows at a time
    return {
        "out": make(rows, _HIDDEN, dtype="float8_e4m3fn"),
        "block_scale": make(_HIDDEN // 128, rows, dtype="float32"),
        "normed_out": make(rows, _HIDDEN),
        **_add_norm(make, rows),
    }


def _qk_norm_rope(make: MakeTensor, m: int) -> dict[str, Any]:
    heads, head = {"num_heads_q": 4, "num_heads_k": 2, "num_heads_v": 2}, 64
    channels = {"num_frame_channels": 32, "num_height_channels": 16, "num_width_channels": 16}
    return {
        "qkv": make(m, sum(heads.values()) * head),
        "q_weight": make(heads["num_heads_q"] * head),
        "k_weight": make(heads["num_heads_k"] * head),
        **dict.fromkeys(("ppf", "pph", "ppw"), 1),
        **channels,
        **heads,
        "head_dim": head,
    }


def _dit(make: MakeTensor, m: int, *modulations: str) -> dict[str, Any]:
    # The rows of each modulation lie as chunks of the time embedding do, which has six. The kernel
    # reads the optional biases whether they are there or not.
    embedding = make(1, m, 6, _WAN_HIDDEN)
    return {
        "input": make(1, m, _WAN_HIDDEN),
        "residual": make(1, m, _WAN_HIDDEN),
        **{name: embedding[:, :, i] for i, name in enumerate(modulations)},
        **{f"{name}_bias": make(_WAN_HIDDEN, dtype="float32") for name in modulations},
    }


def _dit_gamma_beta(make: MakeTensor, m: int) -> dict[str, Any]:
    weight = {name: make(_WAN_HIDDEN, dtype="float32") for name in ("gamma", "beta")}
    return {**_dit(make, m, "gate"), **weight}


def _cute() -> dict[str, str]:
    """The backend that takes any number of rows, where there is a choice: from 0.7.4 on."""
    import inspect

    from flashinfer.norm import rmsnorm_sigmoid_gate

    choice = "backend" in inspect.signature(rmsnorm_sigmoid_gate).parameters
    return {"backend": "cute"} if choice else {}


def _gated_residual(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "branch": make(m, _GATED_HIDDEN),
        "residual": make(m, _GATED_HIDDEN, dtype="float32"),
        **{name: make(_GATED_HIDDEN, dtype="float32") for name in ("alpha", "beta")},
        **_cute(),
    }


def _sigmoid_gate(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**{name: make(m, 16, _GATED_HEAD) for name in ("input", "gate")}, **_cute()}


def _cake_gated_residual(make: MakeTensor, m: int, *outputs: str) -> dict[str, Any]:
    return {
        "branch": make(m, _GATED_HIDDEN),
        **{n: make(m, _GATED_HIDDEN, dtype="float32") for n in ("residual", outputs[0])},
        **{n: make(m, _GATED_HIDDEN) for n in outputs[1:]},
        **{n: make(_GATED_HIDDEN, dtype="float32") for n in ("alpha", "beta")},
    }


def _mhc(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"residual": make(m, 4, _MHC_HIDDEN)}


def _mhc_post(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "x": make(m, _MHC_HIDDEN),
        **_mhc(make, m),
        "post_layer_mix": make(m, 4, dtype="float32"),
        "comb_res_mix": make(m, 4, 4, dtype="float32"),
    }


def _mhc_pre(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "dot_mix": make(m, 24, dtype="float32"),
        **_mhc(make, m),
        "mhc_scale": make(3, dtype="float32"),
        "mhc_base": make(24, dtype="float32"),
    }


def _mhc_pre_summed(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_mhc_pre(make, m), "sqrsum": make(m, dtype="float32").abs(), "k": 4 * _MHC_HIDDEN}


def _mhc_pre_norm(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "gemm_out_mul": make(8, m, 24, dtype="float32"),
        "gemm_out_sqrsum": make(8, m, dtype="float32").abs(),
        "hc_scale": make(3, dtype="float32"),
        "hc_base": make(24, dtype="float32"),
        **_mhc(make, m),
        "norm_weight": make(_MHC_HIDDEN),
        **dict.fromkeys(("rms_eps", "norm_eps"), 1e-5),
        **dict.fromkeys(("hc_pre_eps", "hc_sinkhorn_eps"), 1e-6),
        "hc_post_mult_value": 2.0,
        "sinkhorn_repeat": 20,
    }


def _mhc_post_pre(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_mhc_post(make, m),
        "fn": make(24, 4 * _MHC_HIDDEN, dtype="float32"),
        "hc_scale": make(3, dtype="float32"),
        "hc_base": make(24, dtype="float32"),
        "norm_weight": make(_MHC_HIDDEN),
    }


def _both_layouts(given: Mapping[str, Any]) -> int:
    return 3 if given.get("output_both_sf_layouts") else 2


def _is_packed(out: Any, input: Any) -> bool:
    # Two FP4 numbers in a byte. By shape, since older torch has no such dtype.
    return out is not None and out.shape[-1] != input.shape[-1]


def _with_scales(given: Mapping[str, Any]) -> int:
    return 2 if _is_packed(given.get("out"), given["input"]) else 1


def _like(*names: str) -> Any:
    """A fake that returns a tensor like each of these arguments."""

    def fake(**arguments: Any) -> Any:
        import torch

        made = tuple(torch.empty_like(arguments[name]) for name in names)
        return made if len(made) > 1 else made[0]

    return fake


def _norm_silu_fake(input: Any, out: Any = None, **_: Any) -> Any:
    import torch

    if _is_packed(out, input):
        scales = (input.shape[0], input.shape[1] // 16)
        return out, input.new_empty(scales, dtype=torch.float8_e4m3fn)
    return torch.empty_like(input)


def _mhc_pre_norm_fake(residual: Any, **_: Any) -> Any:
    import torch

    tokens, heads, hidden = residual.shape
    return (
        residual.new_empty((tokens, heads), dtype=torch.float32),
        residual.new_empty((tokens, heads * heads), dtype=torch.float32),
        residual.new_empty((tokens, hidden), dtype=torch.bfloat16),
    )


def _mhc_post_pre_fake(residual: Any, **_: Any) -> Any:
    import torch

    *tokens, heads, hidden = residual.shape
    return (
        residual.new_empty(residual.shape),
        residual.new_empty((*tokens, heads, 1), dtype=torch.float32),
        residual.new_empty((*tokens, heads, heads), dtype=torch.float32),
        residual.new_empty((*tokens, hidden)),
    )


OPS = (
    Op("rmsnorm", _norm, out=("out",)),
    Op("gemma_rmsnorm", _norm, out=("out",)),
    Op("fused_add_rmsnorm", _add_norm, "()", mutates=("input", "residual")),
    Op("gemma_fused_add_rmsnorm", _add_norm, "()", mutates=("input", "residual")),
    Op("layernorm", _layernorm),
    Op("rmsnorm_quant", _norm_quant, "()", mutates=("out",)),
    Op("fused_add_rmsnorm_quant", _add_norm_quant, "()", mutates=("out", "residual")),
    Op("layernorm_quant", _layernorm_quant, "()", mutates=("out",)),
    Op(
        "fused_add_rmsnorm_fp8_block_quant",
        _add_norm_block_quant,
        "()",
        mutates=("out", "block_scale", "normed_out", "residual"),
    ),
    Op(
        "rmsnorm_fp4quant",
        _norm,
        _PAIR,
        out=("y_fp4", "block_scale"),
        requires=("cutlass",),
        capability=_BLACKWELL,
    ),
    Op(
        "add_rmsnorm_fp4quant",
        _add_norm,
        _TRIPLE,
        _both_layouts,
        mutates=("residual", "y_out"),
        out=("y_fp4", "block_scale", "block_scale_unswizzled"),
        requires=("cutlass",),
        capability=_BLACKWELL,
    ),
    Op(
        "fused_rmsnorm_silu",
        _norm,
        _PAIR,
        _with_scales,
        out=("out", "block_scale"),
        # In shadow it looks up the number of rows in a table of kernels, and a symbolic one cannot
        # be looked up.
        fake=_norm_silu_fake,
    ),
    Op("fused_qk_rmsnorm_rope", _qk_norm_rope, _TRIPLE, out=("q_out", "k_out", "v_out")),
    Op(
        "fused_dit_residual_layernorm_scale_shift",
        lambda make, m: _dit(make, m, "scale", "shift"),
        _PAIR,
        mutates=("sf_out",),
        out=("residual_out", "norm_out"),
    ),
    Op(
        "fused_dit_gate_residual_layernorm_scale_shift",
        lambda make, m: _dit(make, m, "gate", "scale", "shift"),
        _PAIR,
        mutates=("sf_out",),
        out=("residual_out", "norm_out"),
    ),
    Op(
        "fused_dit_gate_residual_layernorm_gamma_beta",
        _dit_gamma_beta,
        _PAIR,
        mutates=("sf_out",),
        out=("residual_out", "norm_out"),
    ),
    # By rule, so that a graph with the next two can be traced on a card that they do not run on.
    Op(
        "gated_residual_rmsnorm",
        lambda make, m: {**_gated_residual(make, m), "weight": make(_GATED_HIDDEN)},
        out=("out",),
        fake=_like("residual"),
        requires=("cutlass",),
        capability=_BLACKWELL,
        newest=_DATACENTER,
    ),
    Op(
        "gated_residual_next_rmsnorm",
        lambda make, m: {**_gated_residual(make, m), "next_weight": make(_GATED_HIDDEN)},
        _PAIR,
        out=("residual_out", "ffn_input"),
        fake=_like("residual", "branch"),
        requires=("cutlass",),
        capability=_BLACKWELL,
        newest=_DATACENTER,
    ),
    Op(
        "rmsnorm_sigmoid_gate",
        _sigmoid_gate,
        "()",
        mutates=("input",),
        requires=("cutlass",),
        capability=_BLACKWELL,
        newest=_DATACENTER,
    ),
    # The kernels of Cake that these three choose with backend="cake".
    Op(
        "cake_gated_residual_rmsnorm",
        lambda make, m: {
            **_cake_gated_residual(make, m, "out"),
            "weight": make(_GATED_HIDDEN),
            "eps": 1e-5,
        },
        "()",
        mutates=("out",),
        capability=_BLACKWELL,
        newest=_DATACENTER,
    ),
    Op(
        "cake_gated_residual_next_rmsnorm",
        lambda make, m: {
            **_cake_gated_residual(make, m, "residual_out", "ffn_input"),
            "next_weight": make(_GATED_HIDDEN),
            **dict.fromkeys(("post_eps", "next_eps"), 1e-5),
            "next_gain_center": 0.0,
        },
        "()",
        mutates=("residual_out", "ffn_input"),
        capability=_BLACKWELL,
        newest=_DATACENTER,
    ),
    Op(
        "cake_rmsnorm_sigmoid_gate",
        lambda make, m: {
            **{name: make(m, 16, _GATED_HEAD) for name in ("input", "gate")},
            "eps": 1e-5,
        },
        "()",
        mutates=("input",),
        capability=_BLACKWELL,
        newest=_DATACENTER,
    ),
    # The kernels in CuTe DSL that the functions above choose.
    Op(
        "rmsnorm_cute",
        lambda make, m: {**_norm(make, m), "out": make(m, _HIDDEN)},
        "()",
        mutates=("out",),
        requires=("cutlass",),
    ),
    Op(
        "qk_rmsnorm_cute",
        lambda make, m: {
            **{name: make(m, 4, _HIDDEN) for name in ("input", "output")},
            "weight": make(_HIDDEN),
        },
        "()",
        mutates=("output",),
        requires=("cutlass",),
    ),
    Op("rmsnorm_quant_cute", _norm_quant_cute, "()", mutates=("out",), requires=("cutlass",)),
    Op(
        "fused_add_rmsnorm_cute",
        _add_norm,
        "()",
        mutates=("input", "residual"),
        requires=("cutlass",),
    ),
    Op(
        "fused_add_rmsnorm_quant_cute",
        lambda make, m: {**_norm_quant_cute(make, m), "residual": make(m, _HIDDEN)},
        "()",
        mutates=("out", "residual"),
        requires=("cutlass",),
    ),
    Op(
        "layernorm_cute",
        lambda make, m: {
            "out": make(m, _HIDDEN),
            "input": make(m, _HIDDEN),
            **{name: make(_HIDDEN, dtype="float32") for name in ("gamma", "beta")},
        },
        "()",
        mutates=("out",),
        requires=("cutlass",),
    ),
    Op("mhc_post", _mhc_post),
    Op("mhc_pre_big_fuse", _mhc_pre_summed, _TRIPLE),
    Op("mhc_pre_big_fuse_with_prenorm", _mhc_pre, _TRIPLE),
    Op(
        "mhc_pre_big_fuse_with_norm",
        _mhc_pre_norm,
        _TRIPLE,
        out=("post_mix", "comb_mix", "layer_input"),
        # In shadow it compares the number of tokens with what its kernel was compiled for, which
        # would make a graph for every number.
        fake=_mhc_pre_norm_fake,
    ),
    Op(
        "mhc_fused_post_pre",
        _mhc_post_pre,
        "(Tensor, Tensor, Tensor, Tensor)",
        # Without the fallback it returns nothing where the card has no kernel for the size; what
        # it returns of outputs that it is given are views of them.
        annotations={"fallback": "None", "out": "None"},
        fake=_mhc_post_pre_fake,  # for the reason of the one before
    ),
)
