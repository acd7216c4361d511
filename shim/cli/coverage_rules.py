"""What the modules and names of FlashInfer's public functions say about them.

A rule here decides where a function is listed, and whether it counts as part of a forward at all.
What is covered, traces or cannot be covered is said by the patches and by ``shim/patches/ops``.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping

from .coverage_sources import Definition

#: Where a function's own patch or declaration does not say the family: by its module, below
#: ``flashinfer``; the first that fits. A module that none fits is a family of its own.
_FAMILIES = {
    "training": ("*_train*",),
    "linear_attention": ("gdn*", "gdp*", "kda*", "cake_gdp*", "mamba*", "cudnn.linear_attention"),
    "comm": ("comm*", "cake_ulysses*"),
    "toolchain": ("jit.*",),
    "norm": ("norm*", "*rmsnorm*", "*_norm_backend*", "mhc", "mega_mhc"),
    "activation": ("activation", "*gated_act*"),
    "rope": ("rope", "*_qk_rope_*"),
    "page": ("page",),
    "quantization": ("quantization*", "fp4_quantization", "fp8_quantization"),
    "gemm": ("gemm.*", "gemm", "grouped_mm*", "deep_gemm", "*_gemm*", "prims_ts.gemm.*"),
    "fused_moe": ("fused_moe*", "moe_ep*", "*mega_moe*", "megamoe*", "mega_gate", "mok"),
    "sampling": ("sampling", "cake_sampling", "topk*", "logits_processor*", "chunked_lm_head"),
    "attention": (
        *("attention*", "decode", "prefill", "cascade", "mla*", "pod", "sparse*", "xqa", "*_xqa"),
        *("cudnn.decode", "cudnn.prefill", "cute_dsl.attention*", "cute_dsl.sparse*"),
        *("attn_scores*", "*mqa*", "msa_ops*", "qsa", "sdsa*", "dsa_*", "token_sparse"),
        *("*attention*", "cake_fmha*", "cake_vsa*", "cake_dcp"),
    ),
    "models": ("deepseek_*", "kimi_*", "qwen_*", "diffusion_ops*", "cake_minimax*"),
}

#: Modules below ``flashinfer`` of which nothing belongs in a forward, by what they are for.
_MODULES_APART = {
    "builds kernels": ("jit.*", "*.cake_jit"),
    "measures or records calls": ("testing*", "profiler*", "trace*", "fi_trace", "api_logging"),
    "chooses kernels beforehand": (
        *("autotuner*", "autotune_cache", "*.cake_planner", "comm.pcie_ipc_tuning"),
    ),
    "divides the device": ("green_ctx", "locality_domain"),
    "serves training, where a backward follows": (
        *("*_train", "*_train_kcp", "*_train*_backend*"),
        # The loss; attention that also returns what a backward needs.
        *("chunked_lm_head", "dsa_sparse_attention"),
    ),
}
#: Names of functions (``Class.method``) that do not belong in a forward, likewise. A pattern has to
#: be sure of it: what none fits is listed as not looked at yet.
_NAMES_APART = {
    "builds or loads a kernel": (
        *("configure_cute_dsl_cache_dir", "get_prims_ts_compile_options", "make_ptr"),
        *("gen_*", "get_*_module*", "*_warmup", "warm", "warm_up", "*.prewarm_*", "precompile_*"),
        *("*_preload", "allreduce_mhc_post_prenorm_prepare"),
    ),
    "plans beforehand": (
        *("*.plan", "*.begin_forward", "*.end_forward", "fast_decode_plan", "plan_*"),
        *("create_plan", "compile_pipeline", "legalize_processors", "flush_first_row_order"),
        *("*_varlen_config", "uneven_cp_config"),
        *("*_plan_head_tiles", "*_plan_prefill", "*_plan_splits", "*_sharded_plan"),
        *("*_sharded_plan_device", "convert_*_to_hca_metadata", "make_*_qo_indptr"),
        *("clear_launch_plans", "bind_prepared"),
    ),
    "chooses a kernel": (
        *("select_*", "choose_*", "decide_*", "resolve_*", "probe_*", "launch_plan"),
        "default_cache_path",
        *(
            "*_route",
            "route_arch",
            "*_variant",
            "*_variant_flags",
            "*_manifest",
            "get_*_launch_config",
            "get_mtp_config",
            "make_*_tune_cache",
        ),
        *("*_select_kernel", "dcp_balanced_*", "dcp_static_shape", "suggest_*_group_size"),
    ),
    "asks what is supported": (
        *("is_*", "has_*", "have_*", "supports_*", "supported_*", "available_*"),
        *("*_is_optimized", "*_supported", "*_supports_*", "*_support", "*_unsupported_reason"),
        *("get_sm_version", "get_num_sm", "check_device", "kernel_requires_weights", "capability"),
        "experimental_backend",
    ),
    "checks what it is given": ("validate_*", "require_*", "ensure_*", "verify_*", "check_inputs"),
    "makes or measures workspaces": (
        *("*workspace_size*", "*_bytes", "*_bytes_kcp", "allocate_*", "*_allocate_*"),
        *("create_*workspace", "*create_workspace", "*_destroy_workspace", "*_reset_workspace"),
        *("*_init_workspace", "*_ipc_workspace_*", "alloc_scratchpad", "pack_strided_memory"),
        *("UlyssesCommunicator.allocate_output", "UlyssesCommunicator.input_buffer"),
        *("UlyssesCommunicator.prepare_qkv",),
        *("*_train_workspace", "*_forward_workspace", "*_train_arena", "empty_outputs"),
        *("ugpu_state_pool", "ugpu_*_buffers"),
    ),
    "prepares weights, buffers or calls": (
        *("prepare", "prepare_*", "preprocess_*", "*_pack_weights", "pad_*_weights"),
        *("create_scale_factor_tensor", "kimi_k3_fp8_projection_launcher"),
        *("quantize_*_weight*", "interleave_*weights*", "transform_*_weights*"),
        "zero_post_weight",
        *("interleave_moe_scales_*", "interleave_for_tma_wgmma_up", "convert_to_block_layout"),
        *("alphamoe_interleave_gated_weights", "deinterleave_gated_rows", "dummy_moe_weights"),
        # Scales of a checkpoint's weights, before they are stored.
        *("reorder_rows_for_gated_act_gemm", "fill_w_ptr", "encode_csf_scales"),
    ),
    "sets up or ends communication": (
        *("init_*", "dispose*", "*_initialize", "*_initialize_all", "create_shared_buffer"),
        *("free_shared_buffer", "register_*", "get_graph_buffer_ipc_meta", "meta_size"),
        *("moe_a2a_active_rank_mask",),
        *("*.checkpoint_*", "bootstrap_*", "finalize_moe_ep_runtime", "create_fleet"),
        *("create_communication", "get_parallel_groups", "release_*"),
        *("MoEEpLayer", "CakeMxfp8MegaMoeEp16"),
    ),
    "holds or frees what captured graphs use": (
        *("trtllm_moe_acquire_da_graph_leases", "trtllm_moe_release_da_resources"),
    ),
    "measures or records calls": ("trtllm_moe_da_diagnostics",),
    "computes a size or a type": (
        *("next_positive_power_of_2", "compute_*_sf_size", "get_mma_sf_shape"),
        *("padded_seq_len", "min_block_table_width", "payload_spec"),
        "kind_slots",
        *("msa_icp_comm_layout", "msa_icp_*_score_columns", "*_plan_storage"),
        *("get_cutlass_dtype", "torch_to_cutlass_dtype"),
        # A recipe of FP4 as a number and back, and the largest scale that it allows.
        *("nvfp4_4over6_code", "nvfp4_4over6_from_code", "nvfp4_e4m3_max"),
    ),
    "tells what ran": ("*_specialized_stats",),
    # Products with a backward of their own.
    "serves training, where a backward follows": ("cake_grouped_det_mm", "cake_grouped_mm"),
    "names what a kernel guarantees": ("fingerprint", "class_name"),
    "runs in a backward": ("*_backward", "*_backward_*", "*_bwd", "*_bwd_*", "*_dgrad", "*_wgrad"),
}

#: Names of functions that launch a kernel, in whatever module.
_LAUNCHES = "run_*"

#: Modules whose functions others of the public ones call, and choose between; it is said of those
#: alone that are neither decorated nor exported by the package itself.
_BACKENDS = {
    "is called through other public functions": (
        *("*_backend", "*_backend.*", "*.backends.*", "*_kernels.*"),
        *("norm.kernels.*", "quantization.kernels.*_quantize"),
    )
}
#: Modules among them of which nothing else in FlashInfer calls the functions.
_CALLED_BY_USERS = ("gdn_kernels.gdn_decode_bf16_wy_*", "gdn_kernels.gdn_prefix_materialize")


def _compile(rules: Mapping[str, tuple[str, ...]]) -> list[tuple[str, re.Pattern[str]]]:
    return [
        (meaning, re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns)))
        for meaning, patterns in rules.items()
    ]


_BY_MODULE = _compile(_FAMILIES)
_APART_BY_MODULE = _compile(_MODULES_APART)
_APART_BY_NAME = _compile(_NAMES_APART)
_BACKEND_BY_MODULE = _compile(_BACKENDS)


def family(definition: Definition) -> str:
    """The part of FlashInfer that a function belongs to, by its module."""
    module = _below(definition)
    return _first(_BY_MODULE, module) or module.partition(".")[0] or "flashinfer"


def apart(definition: Definition) -> str:
    """What a function is for that does not belong in a forward; empty where it may well do."""
    module = "" if fnmatch.fnmatchcase(definition.name, _LAUNCHES) else _below(definition)
    return _first(_APART_BY_MODULE, module) or _first(_APART_BY_NAME, definition.name)


def backend(definition: Definition) -> str:
    """What is to be said of a function that is called through others; empty for all else."""
    module = _below(definition)
    if any(fnmatch.fnmatchcase(module, pattern) for pattern in _CALLED_BY_USERS):
        return ""
    return _first(_BACKEND_BY_MODULE, module)


def _below(definition: Definition) -> str:
    return definition.module.partition(".")[2]


def _first(rules: list[tuple[str, re.Pattern[str]]], text: str) -> str:
    return next((meaning for meaning, pattern in rules if pattern.match(text)), "")
