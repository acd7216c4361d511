"""What test_ops cannot tell of some ops, and why: limits of a CPU, of torch, of the stand-ins.

Such a test runs all the same and may fail. What stands here was compared on a GPU where the card
has a kernel for it (docs/coverage.md).
"""

from __future__ import annotations

from collections.abc import Mapping

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
_FLOAT4 = "torch fills no FP4 tensors on the CPU"
_FLOAT8 = "torch compares no FP8 tensors on the CPU"
_PADDED = "what no kernel writes, as padding, is compared too"
_STRIDED = "torch hands it tensors with other strides than the function takes"
_UNCOUNTED = "the stand-in for its kernel is not counted"
_IN_PARTS = "it writes into parts of a tuple, which the stand-in for its kernel does not see"

LIMITS: Mapping[tuple[str, str], str] = {
    (_GRAPHS, "nvfp4_kv_dequantize_paged"): _FOURTH,
    (_GRAPHS, "trtllm_sage_attention_quantize"): _FOURTH,
    (_COMPILED, "mxfp4_quantize"): _GREATEST,
    (_FAKE, "mxfp4_quantize"): _GREATEST,
    **{
        (test, "nvfp4_quantize_append_paged_kv_cache_with_slot_mapping"): _HOST
        for test in (_EXAMPLE, _FAKE, _TURNS)
    },
    (_FAKE, "fused_rmsnorm_silu"): _RULE,
    **{
        (test, op): _FLOAT4
        for test in (_FAKE, _WRITES, _OPCHECK)
        for op in ("rmsnorm_fp4quant", "add_rmsnorm_fp4quant")
    },
    **{
        (_OPCHECK, op): _FLOAT8
        for op in (
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
    (_WRITES, "rope_quantize_fp8_append_paged_kv_cache"): _IN_PARTS,
}
