"""What is made for one model: DeepSeek, Kimi, MiniMax, Qwen."""

from __future__ import annotations

import functools
import math
import types
from importlib import import_module
from typing import Any

from ...opaque.declare import Example, MakeTensor, Op, Uncovered

_FP8, _FP4, _BYTES, _SCALE = "float8_e4m3fn", "uint8", "uint8", "float32"
_BLACKWELL, _SM120 = (10, 0), (12, 0)

#: Positions of a table for rotary embeddings.
_POSITIONS = 1000
#: Kimi K3: its hidden size, experts, and sizes within its MoE on one of eight cards.
_KIMI, _EXPERTS, _LATENT, _SHARED = 7168, 896, 3584, 768

#: MiniMax H3: the sizes of its layers, and rows of the tables that modulate them.
_H3, _H3_FFN, _H3_HEADS, _H3_HEAD, _H3_TABLE = 5376, 14336, 56, 128, 9
_H3_ATTENTION = _H3_HEADS * _H3_HEAD
#: Rows of FC1's scales: those of 224 rows of its weight lie in tiles of 256.
_H3_SCALED = 2 * _H3_FFN * 256 // 224


def _number(make: MakeTensor) -> Any:
    return make(1, dtype=_SCALE, values=(1.0,))


def _h3_positions() -> bool:
    """Whether a row says by a number where it stands, as it does from 0.7.2 on."""
    import inspect

    from flashinfer.diffusion_ops import minimax_h3_bf16_pre_attention

    return "rope_positions" in inspect.signature(minimax_h3_bf16_pre_attention).parameters


def _h3_index(make: MakeTensor, m: int) -> Any:
    return make(m, dtype="int64" if _h3_positions() else "int32")


def _h3_norm(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "x": make(m, _H3),
        "x_norm_weight": make(_H3),
        **{name: make(_H3_TABLE, _H3) for name in ("adaln_scale", "adaln_shift")},
        "adaln_index": _h3_index(make, m),
    }


def _h3_residual(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"gate": make(_H3_TABLE, _H3), "residual": make(m, _H3)}


def _h3_pre_attention(make: MakeTensor, m: int) -> dict[str, Any]:
    positions: dict[str, Any] = {"rope_cos_sin": make(m, 96)}
    if _h3_positions():
        positions = {"rope_cos_sin": make(_H3_TABLE, 96), "rope_positions": _h3_index(make, m)}
    return {
        **_h3_norm(make, m),
        "qkv_weight": make(3 * _H3_ATTENTION, _H3),
        "q_norm_weight": make(_H3_HEAD),
        "k_norm_weight": make(_H3_HEAD),
        **positions,
        "ulysses_degree": 2,
        "out": make(2, m, _H3_HEADS // 2, 3, _H3_HEAD),
    }


def _h3_fc1(make: MakeTensor, block: int, *, sm120: bool = False) -> dict[str, Any]:
    """FC1's weight in FP8, or in FP4 where a scale is for 16 numbers."""
    columns, kind = (_H3 // 2, _FP4) if block == 16 else (_H3, _FP8)
    rows = 2 * _H3_FFN if sm120 else _H3_SCALED
    return {
        "fc1_weight_q": make(2 * _H3_FFN, columns, dtype=kind),
        "fc1_scale_tiles": make(rows * _H3 // block, dtype=_BYTES),
    }


def _h3_fc2(make: MakeTensor, block: int, scales: str = "fc2_scale_tiles") -> dict[str, Any]:
    columns, kind = (_H3_FFN // 2, _FP4) if block == 16 else (_H3_FFN, _FP8)
    return {
        "fc2_weight_q": make(_H3, columns, dtype=kind),
        scales: make(_H3 * _H3_FFN // block, dtype=_BYTES),
    }


def _h3_fc1_bf16(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_h3_norm(make, m), "fc1_weight": make(2 * _H3_FFN, _H3)}


def _h3_fc1_nvfp4(make: MakeTensor, m: int) -> dict[str, Any]:
    numbers = {name: _number(make) for name in ("a_global_scale", "alpha")}
    return {**_h3_norm(make, m), **_h3_fc1(make, 16), **numbers}


def _h3_row_scales(make: MakeTensor) -> dict[str, Any]:
    return {
        "fc1_weight_q": make(2 * _H3_FFN, _H3, dtype=_FP8),
        "fc1_weight_scale": make(2 * _H3_FFN, dtype=_SCALE),
    }


def _h3_fc1_fp8(make: MakeTensor, m: int) -> dict[str, Any]:
    index = {"adaln_index": make(m, dtype="int32")}
    return {**_h3_norm(make, m), **index, **_h3_row_scales(make)}


def _h3_mlp(make: MakeTensor, m: int) -> dict[str, Any]:
    weight = {"fc2_weight": make(_H3, _H3_FFN)}
    return {**_h3_fc1_bf16(make, m), **weight, **_h3_residual(make, m)}


def _h3_mlp_mxfp8(make: MakeTensor, m: int) -> dict[str, Any]:
    weights = {**_h3_fc1(make, 32), **_h3_fc2(make, 32)}
    return {**_h3_norm(make, m), **weights, **_h3_residual(make, m)}


def _h3_mlp_nvfp4(make: MakeTensor, m: int) -> dict[str, Any]:
    numbers = ("a_global_scale", "alpha1", "y_global_scale", "alpha2")
    return {
        **_h3_norm(make, m),
        **_h3_fc1(make, 16),
        **_h3_fc2(make, 16),
        **{name: _number(make) for name in numbers},
        **_h3_residual(make, m),
    }


def _h3_mlp_fp8_sm120(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_h3_norm(make, m),
        **_h3_residual(make, m),
        **_h3_row_scales(make),
        "fc2_weight_q": make(_H3, _H3_FFN, dtype=_FP8),
        "fc2_weight_scale": make(_H3, dtype=_SCALE),
    }


def _h3_mlp_nvfp4_sm120(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_h3_norm(make, m),
        **_h3_residual(make, m),
        **_h3_fc1(make, 16, sm120=True),
        **_h3_fc2(make, 16, "fc2_weight_sf"),
        **{name: _number(make) for name in ("a_global_scale", "y_global_scale")},
        **dict.fromkeys(("fc1_alpha", "fc2_alpha"), 0.5),  # a tensor would be read on the host
    }


def _h3_out(make: MakeTensor, m: int, block: int = 0) -> dict[str, Any]:
    """The projection of what attention gives, by a weight in BF16, FP8 or FP4."""
    columns = _H3_ATTENTION // 2 if block == 16 else _H3_ATTENTION
    weight = {
        "o_weight_q": make(_H3, columns, dtype=_FP4 if block == 16 else _FP8),
        "o_scale_tiles": make(_H3 * _H3_ATTENTION // max(block, 1), dtype=_BYTES),
    }
    return {
        "attn_out": make(2, m, _H3_HEADS // 2, _H3_HEAD),
        **(weight if block else {"o_weight": make(_H3, _H3_ATTENTION)}),
        **_h3_residual(make, m),
        "gate_index": _h3_index(make, m),
    }


def _h3_out_nvfp4(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_h3_out(make, m, 16), "a_global_scale": _number(make), "alpha": _number(make)}


def _h3_out_sm120(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "attn_out": make(m, _H3_ATTENTION),
        **_h3_residual(make, m),
        "gate_index": make(m, dtype="int32"),
    }


def _h3_out_fp8_sm120(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_h3_out_sm120(make, m),
        "o_weight_q": make(_H3, _H3_ATTENTION, dtype=_FP8),
        "o_weight_scale": make(_H3, dtype=_SCALE),
    }


def _h3_out_nvfp4_sm120(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        **_h3_out_sm120(make, m),
        "o_weight_q": make(_H3, _H3_ATTENTION // 2, dtype=_FP4),
        "o_weight_sf": make(_H3 * _H3_ATTENTION // 16, dtype=_BYTES),
        "o_weight_global_scale": _number(make),
        "act_global_scale": _number(make),
    }


def _h3_pack(make: MakeTensor, m: int) -> dict[str, Any]:
    heads = {name: make(m, _H3_HEADS, _H3_HEAD) for name in "qkv"}
    return {**heads, "P": 2, "format": "nvfp4", "out_global_scale": _number(make)}


def _rope_tables(make: MakeTensor, m: int) -> dict[str, Any]:
    positions = make(m, dtype="int64", values="range")
    return {"positions": positions, "cos_sin_cache": make(_POSITIONS, 64)}


@functools.cache
def _gdn_geometry() -> Any:
    """The only one that there are kernels for."""
    kind: Any = import_module("flashinfer.qwen_3_5_gdn_block").Qwen35GdnGeometry
    return kind(
        d_model=5120, num_v_heads=48, num_k_heads=16, head_k_dim=128, head_v_dim=128, conv_kernel=4
    )


def _gdn(make: MakeTensor, requests: int, tokens: int = 1) -> dict[str, Any]:
    rows, slots, conv, heads = requests * tokens, 2, 10240, (48, 128)
    indices = (requests,) if tokens == 1 else (requests, tokens)
    return {
        "qkv": make(rows, conv),
        "z": make(rows, *heads),
        "hidden": make(rows, 5120),
        "ba_weight": make(96, 5120),
        "A_log": make(48, dtype=_SCALE),
        "dt_bias": make(48),
        "ssm_state": make(slots, *heads, 128, dtype=_SCALE),
        "state_indices": make(*indices, dtype="int32"),
        "norm_weight": make(128),
        "out_scale": _number(make),
        "conv_state": make(slots, tokens + 2, conv).mT,
        "conv_weight": make(conv, 4),
        "geometry": _gdn_geometry(),
    }


def _gdn_verify(make: MakeTensor, m: int) -> dict[str, Any]:
    requests = min(max(m, 1), 4)  # what the kernel is made for
    return {
        **_gdn(make, requests, 2),
        "cu_seqlens": make(requests + 1, dtype="int32", values=range(0, 2 * requests + 1, 2)),
        "num_accepted_tokens": make(requests, dtype="int32", values=(1,) * requests),
    }


def _gdn_fake(z: Any, out: Any = None, **_: Any) -> Any:
    import torch

    return z.new_empty(z.shape, dtype=torch.float8_e4m3fn) if out is None else out


def _attn_res(make: MakeTensor, m: int) -> dict[str, Any]:
    weights = ("norm_weight", "qk_weight", "output_norm_weight")
    return {
        **{name: make(m, _KIMI) for name in ("prefix", "delta", "out")},
        "blocks": make(m, 8, _KIMI),
        **{name: make(_KIMI) for name in weights},
        "num_blocks": 4,
        "block_write_idx": 4,
    }


def _latent_front(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "x": make(m, _KIMI),
        "gate_weight": make(_EXPERTS, _KIMI),
        "down_weight": make(_LATENT, _KIMI),
        "shared_gate_up_weight": make(2 * _SHARED, _KIMI),
        "logits": make(m, _EXPERTS, dtype=_SCALE),
        "latent": make(m, _LATENT),
        "shared_act": make(m, _SHARED),
    }


def _latent_tail(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "routed": make(2, m, _LATENT),
        "norm_weight": make(_LATENT),
        "up_weight": make(_KIMI, _LATENT),
        "shared_act": make(m, _SHARED),
        "shared_down_weight": make(_KIMI, _SHARED),
        "out": make(m, _KIMI),
        "y_workspace": make(m, _LATENT),
        "tp": 8,
        "rank": 0,
    }


@functools.cache
def _tail_workspace() -> Any:
    """A workspace of rank 0 as its constructor leaves it, without the other ranks."""
    import torch

    tail: Any = import_module("flashinfer.experimental.kimi_k3_tp12_tail.cake_backend")
    workspace = tail.KimiK3Tp12TailWorkspace.__new__(tail.KimiK3Tp12TailWorkspace)
    flags = torch.zeros(8, dtype=torch.int32)
    shared = types.SimpleNamespace(mc_ptr=0, uc_ptr_local=0, buffer_flags=flags)
    names, room = ("k1_oneshot", "k1_twoshot", "k3"), 1024
    vars(workspace).update(
        rank=0,
        world_size=tail.WORLD_SIZE,
        device=torch.device("cuda", 0),
        arch="sm_100a",
        sm_count=148,
        max_tokens=room,
        my_col_begin=tail.COL_BEGIN[0],
        my_cols=tail.PARTITION[0],
        buffers=dict.fromkeys(names, shared),
        peer_ptrs=dict.fromkeys(names, torch.zeros(tail.WORLD_SIZE, dtype=torch.int64)),
        y=torch.zeros(room, _LATENT, dtype=torch.bfloat16),
        gemm=torch.zeros(room, tail.PARTITION[0], dtype=torch.bfloat16),
        _destroyed=False,
        _last_stream=None,
    )
    return workspace


def _tail(make: MakeTensor, m: int) -> dict[str, Any]:
    return {
        "routed_partial": make(m, _LATENT),
        "shared_partial": make(m, _KIMI),
        "norm_weight": make(_LATENT),
        "up_weight": make(_KIMI, _LATENT),
        "out": make(m, _KIMI),
        "workspace": _tail_workspace(),
    }


def _given(*names: str) -> Any:
    """A fake of a function that returns what it is given to write into."""

    def fake(**arguments: Any) -> Any:
        outputs = tuple(arguments[name] for name in names)
        return outputs if len(outputs) > 1 else outputs[0]

    return fake


def _quantized_cache(x: Any, format: str, out: Any = None, **_: Any) -> Any:
    width = 288 if format == "main_kv_fp4" else 528
    pages = (x.shape[0] + 63) // 64
    return x.new_empty((pages, 64, 1, width), dtype=_uint8()) if out is None else out


def _uint8() -> Any:
    import torch  # declarations are read without torch

    return torch.uint8


def _h3(name: str, example: Example, *workspaces: str, **declared: Any) -> Op:
    """A layer of MiniMax H3, which may be given its output and what it writes on the way."""
    options: dict[str, Any] = {"capability": _BLACKWELL, **declared}
    return Op(f"minimax_h3_{name}", example, mutates=workspaces, out=("out",), **options)


_ON_SM120: dict[str, Any] = {"capability": _SM120, "arch": "12.0"}
_MLP_Q = ("workspace_a_q", "workspace_a_sf", "workspace_y_q", "workspace_y_sf")

#: Of a block of Qwen: the width of a token, its heads, those of the cache, and their width.
_BLOCK, _BLOCK_HEADS, _BLOCK_KV, _BLOCK_HEAD, _BLOCK_PAGES = 1024, 8, 2, 256, 16
_RUBIN = (10, 7)


@functools.cache  # each has graphs of its own
def _block_geometry(version: int) -> Any:
    module = import_module(f"flashinfer.experimental.qwen_3_{version}_block.support")
    kind = getattr(module, f"Qwen3{version}BlockGeometry")
    return kind(d_model=_BLOCK, num_qo_heads=_BLOCK_HEADS, num_kv_heads=_BLOCK_KV)


def _block_weights(version: int) -> str:
    return f"flashinfer.experimental.qwen_3_{version}_block.weights.Qwen3{version}BlockWeights"


def _block(make: MakeTensor, m: int, version: int, index_rows: int = 0) -> dict[str, Any]:
    """What every block takes, for m tokens."""
    rows = 2 * (_BLOCK_HEADS + _BLOCK_KV) * _BLOCK_HEAD + index_rows
    module, _, name = _block_weights(version).rpartition(".")
    norms = [make(_BLOCK_HEAD), make(_BLOCK_HEAD)] + [make(128), make(128)] * bool(index_rows)
    tables = dict.fromkeys(("rope_cos", "rope_sin"), None if index_rows else make(m, 64))
    cache = (_BLOCK_PAGES, 64, _BLOCK_KV, _BLOCK_HEAD)
    return {
        "hidden_states": make(m, _BLOCK),
        **tables,
        "weights": getattr(import_module(module), name)(make(rows, _BLOCK), *norms),
        "w_o": make(_BLOCK, _BLOCK_HEADS * _BLOCK_HEAD),
        "kv_cache": (make(*cache), make(*cache)),
        "slot_mapping": make(m, dtype="int32"),
    }


def _paged_block(make: MakeTensor, sequences: int) -> dict[str, Any]:
    return {
        "block_table": make(sequences, 4, dtype="int32"),
        "seq_lens": make(sequences, dtype="int32"),
    }


def _block_prefill(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_block(make, m, 5), "geometry": _block_geometry(5)}


def _block_extend(make: MakeTensor, m: int) -> dict[str, Any]:
    start = make(2, dtype="int32", values=(0, m))
    return {**_block_prefill(make, m), **_paged_block(make, 1), "query_start_loc": start}


def _block_decode(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_block_prefill(make, m), **_paged_block(make, m)}


def _indexed_block(make: MakeTensor, m: int) -> dict[str, Any]:
    """Likewise with an index, by which each token chooses what it looks at."""
    return {
        **_block(make, m, 8, index_rows=5 * 128),
        **_paged_block(make, m),
        "index_kv_cache": make(_BLOCK_PAGES, 16, 1, 128),
        "index_state_cache": make(m, 8, 1, 128),
        "index_state_block_table": make(m, 1, dtype="int32"),
    }


def _block_tables(make: MakeTensor) -> dict[str, Any]:
    return {"position_tables": (make(1, 256, 64), make(1, 256, 64))}


def _block_decode_indexed(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_indexed_block(make, m), "geometry": _block_geometry(8), **_block_tables(make)}


def _block_like(
    form: str, *, hidden_states: Any, q_len_per_req: int = 1, plan: Any = None, **_: object
) -> Any:
    *leading, width = hidden_states.shape
    rows = math.prod(leading)
    if form == "extend" or len(leading) == 1:
        size: tuple[Any, ...] = (rows,)
    else:
        tokens = q_len_per_req if plan is None else plan.q_len
        size = tuple(leading) if form == "prefill" else (rows // tokens, tokens)
    return hidden_states.new_empty((*size, width))


def _planned_block(make: MakeTensor, m: int, version: int, example: Example) -> dict[str, Any]:
    """A step of a wrapper that was planned for m sequences."""
    found = dict(example(make, m))
    kind = f"Qwen3{version}BlockWrapper"
    wrapper = getattr(import_module(f"flashinfer.qwen_3_{version}_block"), kind)(
        make(1 << 20, dtype=_BYTES), geometry=_block_geometry(version)
    )
    names = ("weights", "w_o", "kv_cache", "block_table")
    planned = {name: found[name] for name in names} | (_block_tables(make) if version == 8 else {})
    wrapper.plan("decode", page_size=64, batch_size=m, **planned)
    return {"self": wrapper, **found}


def _dense_step(make: MakeTensor, m: int) -> dict[str, Any]:
    return {**_block(make, m, 5), **_paged_block(make, m)}


def _stepped_like(wrapper: Any, *, hidden_states: Any, **_: object) -> Any:
    return _block_like(wrapper._plan.form, hidden_states=hidden_states, plan=wrapper._plan)


def _wrapped_block(version: int, example: Example, *mutates: str) -> Op:
    return Op(
        f"Qwen3{version}BlockWrapper.run",
        lambda make, m: _planned_block(make, m, version, example),
        mutates=("kv_cache", *mutates),
        out=("out",),
        # In shadow it asks a plan for the sizes that it was made for.
        fake=_stepped_like,
        state=("_plan.form",),
        annotations={"weights": _block_weights(version)},
        requires=("cutlass",),
        capability=_RUBIN,
        newest=_RUBIN,
        arch="10.7",
    )


def _qwen_block(version: int, form: str, example: Example, *mutates: str) -> Op:
    return Op(
        f"qwen_3_{version}_block_bf16_{form}",
        example,
        mutates=("kv_cache", "workspace_buffer", *mutates),
        out=("out",),
        # It looks the sizes up among its plans, and plans what it does not find.
        fake=functools.partial(_block_like, form),
        annotations={
            "weights": _block_weights(version),
            **dict.fromkeys(("geometry", "plan"), "object"),
        },
        requires=("cutlass",),
        capability=_RUBIN,
        newest=_RUBIN,
        arch="10.7",
    )


OPS: tuple[Op, ...] = (
    _h3("bf16_pre_attention", _h3_pre_attention, "workspace"),
    _h3("fc1_swiglu", _h3_fc1_bf16, "workspace"),
    _h3(
        "fc1_swiglu_mxfp8",
        lambda make, m: {**_h3_norm(make, m), **_h3_fc1(make, 32)},
        *("workspace_q", "workspace_sf"),
    ),
    _h3("fc1_swiglu_nvfp4", _h3_fc1_nvfp4, "workspace_q", "workspace_sf"),
    _h3(
        "fc1_swiglu_fp8",
        _h3_fc1_fp8,
        *("workspace_q", "workspace_scale"),
        **_ON_SM120,
    ),
    _h3("mlp", _h3_mlp, "workspace_a", "workspace_y"),
    _h3("mlp_mxfp8", _h3_mlp_mxfp8, *_MLP_Q),
    _h3("mlp_nvfp4", _h3_mlp_nvfp4, *_MLP_Q),
    _h3(
        "mlp_fp8_sm120",
        _h3_mlp_fp8_sm120,
        *("workspace_a_q", "workspace_a_scale", "workspace_y"),
        *("workspace_y_q", "workspace_y_scale", "workspace_flags"),
        **_ON_SM120,
    ),
    _h3("mlp_nvfp4_sm120", _h3_mlp_nvfp4_sm120, *_MLP_Q, "workspace_flags", **_ON_SM120),
    _h3("out_proj", _h3_out),
    _h3("out_proj_mxfp8", lambda make, m: _h3_out(make, m, 32), "workspace_q", "workspace_sf"),
    _h3("out_proj_nvfp4", _h3_out_nvfp4, "workspace_q", "workspace_sf"),
    _h3("fp8_out_proj", _h3_out_fp8_sm120, "act_q", "act_scale", **_ON_SM120),
    _h3("nvfp4_out_proj", _h3_out_nvfp4_sm120, "act_q", "act_sf", **_ON_SM120),
    Op(
        "minimax_h3_qkv_quantize_pack",
        _h3_pack,
        "(Tensor, Tensor)",
        out=("out_q", "out_sf"),
        capability=_BLACKWELL,
    ),
    # By rule, since in shadow these three look up the number of tokens in tables of kernels, and a
    # symbolic one cannot be looked up.
    Op(
        "kimi_k3_attn_res",
        _attn_res,
        mutates=("prefix", "blocks"),
        out=("out",),
        fake=_given("out"),
        capability=_BLACKWELL,
    ),
    Op(
        "kimi_k3_latent_moe_front",
        _latent_front,
        "(Tensor, Tensor, Tensor)",
        out=("logits", "latent", "shared_act"),
        fake=_given("logits", "latent", "shared_act"),
        capability=_BLACKWELL,
    ),
    Op(
        "kimi_k3_latent_moe_tail",
        _latent_tail,
        mutates=("y_workspace",),
        out=("out",),
        fake=_given("out"),
        capability=_BLACKWELL,
    ),
    Op(
        "kimi_k3_tp12_tail",
        _tail,
        mutates=("out",),
        collective=True,
        returned=lambda given: "out",
        annotations={"workspace": "object"},
        fake=_given("out"),  # likewise
        capability=_BLACKWELL,
    ),
    *(
        Op(
            f"qwen_3_{version}_block_rope_tables",
            _rope_tables,
            "(Tensor, Tensor)",
            out=("out_cos", "out_sin"),
        )
        for version in (5, 8)
    ),
    Op(
        "qwen_3_8_block_rope_position_tables",
        lambda make, m: {"cos_sin_cache": make(_POSITIONS, 64), "num_positions": m},
        "(Tensor, Tensor)",
    ),
    *(
        Op(
            f"qwen_3_5_gdn_block_{form}",
            example,
            mutates=("ssm_state", "conv_state", "out_bf16"),
            out=("out",),
            kept=True,
            # It looks the number of rows up among its plans, and plans what it does not find.
            fake=_gdn_fake,
            annotations={"geometry": "object", "plan": "object"},
            requires=("cutlass",),
            capability=_BLACKWELL,
            newest=_BLACKWELL,
        )
        for form, example in (("decode", _gdn), ("verify", _gdn_verify))
    ),
    _qwen_block(5, "prefill", _block_prefill),
    _qwen_block(5, "extend", _block_extend),
    _qwen_block(5, "decode", _block_decode),
    _qwen_block(
        *(8, "decode", _block_decode_indexed, "index_kv_cache", "index_state_cache"),
        *("block_ids_out", "block_lens_out"),
    ),
    _wrapped_block(5, _dense_step),
    _wrapped_block(
        *(8, _indexed_block, "index_kv_cache", "index_state_cache"),
        *("block_ids_out", "block_lens_out"),
    ),
    Op(
        "deepseek_v41_quantize_cache",
        lambda make, m: {"x": make(m, 512), "format": "swa_mxfp8"},
        out=("out",),
        # Its module imports Triton, which torch for CPUs comes without.
        fake=_quantized_cache,
        annotations={"x": "Tensor", "format": "str", "out": "Tensor", "slots": "Tensor"},
        capability=_BLACKWELL,
        newest=_BLACKWELL,
    ),
)

_PLAN = "it returns a plan, an object of a class of its own, which keeps the results"

UNCOVERED: tuple[Uncovered, ...] = (
    *(
        Uncovered(
            f"MiniMaxH3{name}.run",
            "it takes the very tensors that it was prepared with, and no copies",
        )
        for name in ("Mxfp8PreAttention", "Nvfp4PreAttention", "QkvQuantizePack")
    ),
    Uncovered("deepseek_v41_decode", _PLAN),
    Uncovered("deepseek_v41_window_decode", _PLAN),
    Uncovered(
        "kimi_k3_vision_tower",
        "it takes the sizes of its images as a list of lists, and its weights as an object",
    ),
)
