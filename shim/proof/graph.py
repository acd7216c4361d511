"""One CUDA graph of a compiled example: captured, replayed, and replayed on other contents."""

from __future__ import annotations

import torch

from .comparing import one_line
from .compiling import (
    ERRORS,
    Run,
    compare,
    compile_step,
    make_inputs,
    make_step,
    mark_batch,
    try_step,
)
from .examples import Example

_ROWS = 48


def run_graph(example: Example, run: Run) -> Run:
    """Fill in ``run``, whose ``backend`` and ``compared`` are given."""
    inputs = make_inputs(example, _ROWS, "cuda")
    _, error = try_step(make_step(example), inputs)
    if error:
        run.compared, run.note = ERRORS, f"not captured: eager raises {error}"
        return run
    try:
        run.fault = _capture_and_replay(example, run, inputs)
    except Exception as fault:
        run.fault = one_line(fault)
    return run


def _capture_and_replay(example: Example, run: Run, inputs: list[torch.Tensor]) -> str:
    """What a replay got wrong, or nothing. What is captured is the call on ``inputs``."""
    step = make_step(example)
    compiled, _ = compile_step(step, run.backend)
    mark_batch(example, inputs, _ROWS)
    compiled(*inputs)  # compiles, and loads the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = compiled(*inputs)
    for replay, seed in enumerate((0, 1), 1):
        others = make_inputs(example, _ROWS, "cuda", seed=seed)
        for static, other in zip(inputs, others, strict=True):
            static.copy_(other)
        graph.replay()
        torch.cuda.synchronize()
        unequal = compare(captured, step(*inputs), run)
        if unequal:
            return f"replay {replay}: {unequal}"
    return ""
