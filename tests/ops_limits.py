"""What test_ops cannot tell of some ops, and why: limits of a CPU, of torch, of the stand-ins.

Such a test runs all the same and may fail. What stands here was compared on a GPU where the card
has a kernel for it (docs/coverage.md).
"""

from __future__ import annotations

from collections.abc import Mapping

_PREMISE = "test_it_fails_without_us"
_CAPTURE = "test_a_capture_takes_a_call_that_ran_and_refuses_one_that_would_load"
_EXAMPLE = "test_its_example_is_a_valid_call"
_GRAPHS = "test_it_compiles_whole_in_three_graphs_of_nothing_else"
_COMPILED = "test_compiled_it_returns_what_upstream_does"
_FAKE = "test_its_fake_is_what_upstream_returns"
_TURNS = "test_real_and_traced_calls_do_not_disturb_each_other"
_WRITES = "test_what_it_writes_into_is_seen_by_compiler_and_caller"
_OPCHECK = "test_opcheck_passes"

_FOURTH = "it takes a fourth graph, for one more size"
_GREATEST = "no rows: torch refuses the greatest of nothing with data, and not without"
_HOST = "upstream reads scales on the host, which tensors without data do not have"
_RULE = "its fake, a rule, refuses no dtype; upstream does when the graph runs"
_ADDRESSES = "upstream refuses addresses, which tensors without data do not have"
_UNTOLD = "upstream does not say that it writes into its output"
_COPIED = "its output is a copy of what the kernel was to write"
_FLOAT4 = "torch fills no FP4 tensors on the CPU"
_FLOAT8 = "torch compares no FP8 tensors on the CPU"
_PADDED = "what no kernel writes, as padding, is compared too"
_STRIDED = "torch hands it tensors with other strides than the function takes"
_UNCOUNTED = "the stand-in for its kernel is not counted"
_COPIED = "what its kernel writes is an accumulator, which is copied over its output"
_MASK = "without us the compiler fails over a mask, before it meets what it cannot take"
_NO_KERNEL = "it is plain torch, and no kernel of FlashInfer's is there to count"
_WHEN_LAUNCHED = "upstream refuses strides where it launches, which is when the graph runs"
_KEPT = "upstream keeps a workspace of the calls with data for those without"
_ZEROS = "torch fills what it returns with zeros: there is no kernel"
_SM90_OUT = "it takes outputs on compute capability 9.0 alone"

_SET_UP = "it takes what all ranks have set up before"
_HELD = "its kernel is one that its workspace holds, which the example stands in for"

#: What refuses more when the graph runs than while it is traced: layouts that pipelines of kernels
#: check, which are left out in shadow.
LATE = frozenset(
    {
        "b12x_fused_moe",
        "cute_dsl_fused_moe",
        "cute_dsl_fused_moe_bf16",
        "cute_dsl_fused_moe_mxfp8_mxfp4",
        "cute_dsl_fused_moe_nvfp4",
    }
)

LIMITS: Mapping[tuple[str, str], str] = {
    (_GRAPHS, "trtllm_sage_attention_quantize"): _FOURTH,
    **{
        (test, "tp_moe_finalize_rmsnorm"): _SET_UP for test in (_EXAMPLE, _TURNS, _WRITES, _OPCHECK)
    },
    (_TURNS, "k_boundary_minmax"): _NO_KERNEL,
    **{(test, "decode_cp_a2a_lse_reduce"): _SET_UP for test in (_EXAMPLE, _TURNS)},
    **{
        (_TURNS, op): _HELD
        for op in (
            "all_gather_gated_residual_next_rmsnorm",
            "all_gather_rmsnorm_fp4_quantize",
            "moe_finalize_rmsnorm_allreduce",
        )
    },
    **{
        (test, op): _HELD
        for test in (_PREMISE, _TURNS)
        for op in ("cake_fp4_allreduce", "cake_fp4_allreduce_nvfp4", "run_mixed_comm")
    },
    **{
        (_WRITES, op): _HELD
        for op in (
            "moe_finalize_rmsnorm_allreduce",
            "cake_fp4_allreduce",
            "cake_fp4_allreduce_nvfp4",
            "run_mixed_comm",
        )
    },
    (_COMPILED, "mxfp4_quantize"): _GREATEST,
    (_FAKE, "mxfp4_quantize"): _GREATEST,
    **{
        (test, "nvfp4_quantize_append_paged_kv_cache_with_slot_mapping"): _HOST
        for test in (_EXAMPLE, _FAKE, _TURNS)
    },
    (_FAKE, "fused_rmsnorm_silu"): _RULE,
    (_FAKE, "mm_bf16_fp4"): _ADDRESSES,
    (_WRITES, "masked_bmm"): _COPIED,
    **{
        (test, op): _FLOAT4
        for test in (_FAKE, _WRITES, _OPCHECK)
        for op in ("rmsnorm_fp4quant", "add_rmsnorm_fp4quant")
    },
    **{
        (_OPCHECK, op): _FLOAT8
        for op in (
            "cake_fused_qk_rmsnorm_rope_quantize_fp8_append_paged_kv_cache",
            "fp8_linear",
            "fp8_linear_swiglu",
            "fp8_qkv_qknorm_rope",
            "group_gemm_fp8_nt_groupwise_contiguous",
            "grouped_mm_fp4",
            "grouped_mm_fp8",
            "grouped_mm_mxfp8",
            "mm_fp8_lora",
            "ragged_block_scaled_bmm",
            "mla_rope_quantize_fp8",
            "rope_quantize_fp8",
            "rope_quantize_fp8_append_paged_kv_cache",
            "nvfp4_quantize_append_paged_kv_cache",
            "nvfp4_quantize_append_paged_kv_cache_with_slot_mapping",
            "nvfp4_quantize_append_paged_mla_kv_cache",
        )
    },
    **{
        (_OPCHECK, op): _PADDED
        for op in (
            "mxfp8_quantize_cute_dsl",
            "nvfp4_quantize_per_token_cute_dsl",
            "scaled_fp4_grouped_quantize",
            "silu_and_mul_mxfp8_quantize",
            "silu_and_mul_mxfp8_quantize_backward",
            "silu_and_mul_scaled_nvfp4_experts_quantize",
        )
    },
    **{
        (_OPCHECK, f"fused_dit_{op}"): _STRIDED
        for op in (
            "residual_layernorm_scale_shift",
            "gate_residual_layernorm_scale_shift",
            "gate_residual_layernorm_gamma_beta",
        )
    },
    **{
        (_TURNS, op): _UNCOUNTED
        for op in (
            "nvfp4_quantize_cute_dsl",
            "nvfp4_quantize_per_token_cute_dsl",
            "silu_and_mul_nvfp4_quantize",
        )
    },
    (_CAPTURE, "b12x_fused_moe"): "upstream itself wants an output in a capture",
    (_WRITES, "alphamoe_nvfp4_aligned_moe"): _COPIED,
    **{
        (_WRITES, f"prims_ts_{op}_scale_moe"): _UNTOLD
        for op in ("fp8_block", "fp8_per_tensor", "fp4_block")
    },
    (_WRITES, "alphamoe_nvfp4_routed_moe"): _COPIED,
    (_PREMISE, "bgmv_moe_gemm2_lora_delta"): _MASK,
    (_TURNS, "mhc_fused_post_pre"): "on the card of the tests it is plain torch",
    **{
        (_TURNS, f"qwen_3_{op}_tables"): _NO_KERNEL
        for op in ("5_block_rope", "8_block_rope", "8_block_rope_position")
    },
    (_COMPILED, "gdn_fused_decode_step"): _GREATEST,
    (_FAKE, "gdn_fused_decode_step"): _GREATEST,
    (_TURNS, "gdn_fused_decode_step"): _NO_KERNEL,
    (_FAKE, "chunk_gated_delta_rule"): _WHEN_LAUNCHED,
    (_FAKE, "chunk_gated_delta_rule_paged"): _WHEN_LAUNCHED,
    (_FAKE, "ssd_combined_fwd"): _KEPT,
    **{(test, "paged_mqa_get_paged_mqa_logits_metadata"): _ZEROS for test in (_TURNS, _WRITES)},
    **{
        (test, op): _SM90_OUT
        for test in (_GRAPHS, _COMPILED, _WRITES, _OPCHECK)
        for op in ("msa_sparse_attention", "msa_sparse_decode_attention")
    },
}
