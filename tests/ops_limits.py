"""What test_ops cannot tell of some ops, and why: limits of a CPU, of torch, of the stand-ins.

Such a test runs all the same and may fail. docs/coverage.md tells which ops were compared on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_PREMISE = "test_it_fails_without_us"
_CAPTURE = "test_a_capture_takes_a_call_that_ran_and_refuses_one_that_would_load"
_EXAMPLE = "test_its_example_is_a_valid_call"
_GRAPHS = "test_it_compiles_whole_in_three_graphs_of_nothing_else"
_COMPILED = "test_compiled_it_returns_what_upstream_does"
_FAKE = "test_its_fake_is_what_upstream_returns"
_RUN = "test_run_it_is_upstream"
_TURNS = "test_real_and_traced_calls_do_not_disturb_each_other"
_WRITES = "test_what_it_writes_into_is_seen_by_compiler_and_caller"
_OPCHECK = "test_opcheck_passes"

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

#: What opcheck is not asked about, since it copies all that it is given many times over, and that
#: is most of a gigabyte.
TOO_LARGE = frozenset({"mono_moe"})

#: What it is asked about in the whole matrix only, since copying all that takes it seconds.
LARGE = frozenset(
    {
        "minimax_h3_bf16_pre_attention",
        "minimax_h3_fc1_swiglu",
        "minimax_h3_fc1_swiglu_mxfp8",
        "minimax_h3_fc1_swiglu_nvfp4",
        "minimax_h3_mlp",
        "minimax_h3_mlp_mxfp8",
        "minimax_h3_mlp_nvfp4",
    }
)

#: By reason and test, the ops of which the test may fail.
_BY_REASON: Mapping[str, Mapping[str, Sequence[str]]] = {
    "it asks the driver itself whether a stream is capturing, and there is none": {
        _CAPTURE: (
            "minimax_h3_sm120_varlen_attention_fp8",
            "minimax_h3_sm120_varlen_attention_nvfp4",
            "minimax_h3_sm120_varlen_attention_nvfp4_nodelta",
        ),
    },
    "with CuTe DSL it asks which architecture that compiles for, which the tests pretend": {
        _EXAMPLE: ("rmsnorm_sigmoid_gate",),
        _TURNS: ("rmsnorm_sigmoid_gate",),
        _WRITES: ("rmsnorm_sigmoid_gate",),
        _OPCHECK: ("rmsnorm_sigmoid_gate",),
    },
    "it takes a fourth graph, for one more size": {
        _GRAPHS: (
            "alphamoe_fp8_block_scale_aligned_moe",
            "mm_bf16_fp4",
            "recurrent_kda_decode",
            "trtllm_sage_attention_quantize",
        ),
    },
    "it takes what all ranks have set up before": {
        _EXAMPLE: (
            "decode_cp_a2a_lse_reduce",
            "tp_moe_finalize_rmsnorm",
        ),
        _TURNS: (
            "decode_cp_a2a_lse_reduce",
            "tp_moe_finalize_rmsnorm",
        ),
        _WRITES: ("tp_moe_finalize_rmsnorm",),
        _OPCHECK: (
            "decode_cp_a2a_lse_reduce",
            "tp_moe_finalize_rmsnorm",
        ),
    },
    "it is plain torch, and no kernel of FlashInfer's is there to count": {
        _TURNS: (
            "gdn_fused_decode_step",
            "k_boundary_minmax",
            "qwen_3_5_block_rope_tables",
            "qwen_3_8_block_rope_position_tables",
            "qwen_3_8_block_rope_tables",
        ),
    },
    "its kernel is one that its workspace holds, which the example stands in for": {
        _PREMISE: (
            "cake_fp4_allreduce",
            "cake_fp4_allreduce_nvfp4",
            "run_mixed_comm",
        ),
        _TURNS: (
            "all_gather_gated_residual_next_rmsnorm",
            "all_gather_rmsnorm_fp4_quantize",
            "cake_fp4_allreduce",
            "cake_fp4_allreduce_nvfp4",
            "moe_finalize_rmsnorm_allreduce",
            "run_mixed_comm",
        ),
        _WRITES: (
            "cake_fp4_allreduce",
            "cake_fp4_allreduce_nvfp4",
            "moe_finalize_rmsnorm_allreduce",
            "run_mixed_comm",
        ),
    },
    "upstream refuses addresses, which tensors without data do not have": {
        _FAKE: ("mm_bf16_fp4",),
    },
    "what its kernel writes is another tensor, which is copied over its output": {
        _WRITES: (
            "alphamoe_nvfp4_aligned_moe",
            "alphamoe_nvfp4_routed_moe",
            "gated_delta_rule_mtp_wy_output_only",
            "masked_bmm",
        ),
    },
    "0.6.7 leaves the output that is given as it is, and returns another": {
        _FAKE: ("trtllm_fp8_block_scale_routed_moe",),
        _RUN: ("trtllm_fp8_block_scale_routed_moe",),
        _WRITES: ("trtllm_fp8_block_scale_routed_moe",),
    },
    "before 0.7 its module imports Triton, which is not there while it is traced": {
        _COMPILED: ("b12x_fused_moe",),
        _FAKE: ("b12x_fused_moe",),
    },
    "torch fills no FP4 tensors on the CPU": {
        _OPCHECK: (
            "add_rmsnorm_fp4quant",
            "rmsnorm_fp4quant",
        ),
    },
    "torch compares no FP8 tensors on the CPU": {
        _OPCHECK: (
            "fp8_linear",
            "fp8_linear_swiglu",
            "fp8_qkv_qknorm_rope",
            "group_gemm_fp8_nt_groupwise_contiguous",
            "ragged_block_scaled_bmm",
        ),
    },
    "torch hands it tensors with other strides than the function takes": {
        _OPCHECK: (
            "fused_dit_gate_residual_layernorm_gamma_beta",
            "fused_dit_gate_residual_layernorm_scale_shift",
            "fused_dit_residual_layernorm_scale_shift",
        ),
    },
    "upstream itself plans in no capture": {
        _CAPTURE: (
            "batch_decode_with_paged_kv_cache",
            "batch_mla_decode_with_paged_kv_cache",
            "batch_prefill",
            "batch_prefill_with_paged_kv_cache",
            "batch_sparse_mla_decode_with_paged_kv_cache",
            "block_sparse_attention",
            "block_sparse_attention_with_paged_kv_cache",
            "q_token_kv_block_sparse_attention_with_paged_kv_cache",
        ),
    },
    "upstream itself wants an output in a capture": {
        _CAPTURE: ("b12x_fused_moe",),
    },
    "upstream does not say that it writes into its output": {
        _WRITES: (
            "prims_ts_fp4_block_scale_moe",
            "prims_ts_fp8_block_scale_moe",
            "prims_ts_fp8_per_tensor_scale_moe",
        ),
    },
    "without us the compiler fails over a mask, before it meets what it cannot take": {
        _PREMISE: ("bgmv_moe_gemm2_lora_delta",),
    },
    "on the card of the tests it is plain torch": {
        _TURNS: ("mhc_fused_post_pre",),
    },
    "no rows: torch refuses the greatest of nothing with data, and not without": {
        _COMPILED: ("gdn_fused_decode_step",),
        _FAKE: ("gdn_fused_decode_step",),
    },
    "upstream refuses strides where it launches, which is when the graph runs": {
        _FAKE: (
            "chunk_gated_delta_rule",
            "chunk_gated_delta_rule_paged",
            "gated_delta_rule_decode_pretranspose",
        ),
    },
    "upstream keeps a workspace of the calls with data for those without": {
        _FAKE: ("ssd_combined_fwd",),
    },
    "torch fills what it returns with zeros: there is no kernel": {
        _TURNS: ("paged_mqa_get_paged_mqa_logits_metadata",),
        _WRITES: ("paged_mqa_get_paged_mqa_logits_metadata",),
    },
    "it takes outputs on compute capability 9.0 alone": {
        _GRAPHS: (
            "msa_sparse_attention",
            "msa_sparse_decode_attention",
        ),
        _COMPILED: (
            "msa_sparse_attention",
            "msa_sparse_decode_attention",
        ),
        _WRITES: (
            "msa_sparse_attention",
            "msa_sparse_decode_attention",
        ),
        _OPCHECK: (
            "msa_sparse_attention",
            "msa_sparse_decode_attention",
        ),
    },
    "an output that is given has one dimension less than one that is returned": {
        _GRAPHS: (
            "trtllm_batch_decode_with_kv_cache_mla",
            "xqa_batch_decode_with_kv_cache_mla",
        ),
        _COMPILED: (
            "trtllm_batch_decode_with_kv_cache_mla",
            "xqa_batch_decode_with_kv_cache_mla",
        ),
        _WRITES: (
            "trtllm_batch_decode_with_kv_cache_mla",
            "xqa_batch_decode_with_kv_cache_mla",
        ),
        _OPCHECK: (
            "trtllm_batch_decode_with_kv_cache_mla",
            "xqa_batch_decode_with_kv_cache_mla",
        ),
    },
    "the stand-in for its kernel is not counted": {
        _TURNS: ("mm_fp8",),
        _WRITES: ("mm_fp8",),
    },
    "its kernel is kept by the number of the card, which the tests' stand-ins have not": {
        _CAPTURE: ("causal_conv1d_fn", "causal_conv1d_update"),
    },
    "upstream itself wants lengths on the CPU in a capture": {
        _CAPTURE: ("trtllm_ragged_attention_deepseek",),
    },
}

#: Why a test may fail for an op.
LIMITS: Mapping[tuple[str, str], str] = {
    (test, op): why
    for why, tests in _BY_REASON.items()
    for test, ops in tests.items()
    for op in ops
}
