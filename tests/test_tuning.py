"""FlashInfer's autotuner times nothing while a compiler traces, not even within ``autotune()``."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import RunChild

TESTS = Path(__file__).parent

TRACED = f"""
    import json, sys
    sys.path.append({str(TESTS)!r})
    from child_side import *
    pretend("10.0")
    import torch
    import flashinfer
    from flashinfer.autotuner import AutoTuner, autotune
    from shim.patches.ops import OPS
    from shim.proof import making

    asked = []
    real = AutoTuner.choose_one
    def choose_one(self, custom_op, *args, **kwargs):
        asked.append(custom_op)
        return real(self, custom_op, *args, **kwargs)
    AutoTuner.choose_one = choose_one

    counting = Counting()
    tuner = AutoTuner.get()
    with fake_cuda(), autotune(True):
        for name, function in (
            ("mm_fp4", flashinfer.mm_fp4),
            ("trtllm_fp8_block_scale_moe", flashinfer.fused_moe.trtllm_fp8_block_scale_moe),
        ):
            op = OPS[name]
            arguments = making.arguments_of(function, op.example(making.fake(), 32), op.also)
            whole = torch.compile(function, fullgraph=True, backend=counting)
            whole(**arguments)
        within = tuner.is_tuning_mode
    records = len(getattr(tuner, "profiling_cache", ()))
    print(json.dumps([len(counting.graphs), within, asked, records]))
"""


@pytest.mark.parametrize("release", ["0.6.3", "0.6.18.post1", "0.7.4"])
def test_nothing_is_tuned_while_a_compiler_traces(run_child: RunChild, release: str) -> None:
    graphs, within, asked, records = run_child(TRACED, release=release).json
    assert graphs == 2
    # The context is on all the same, and what runs for real within it is tuned.
    assert within is True
    assert asked == []
    assert records == 0
