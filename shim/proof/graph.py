"""One CUDA graph of a compiled example: captured, replayed, and replayed on other contents."""

from __future__ import annotations

import torch

from .comparing import one_line
from .compiling import ERRORS, Call, Inputs, Outcome, Run, compare, compile_step, tensors, try_step
from .making import on

_ROWS = 48


def run_graph(call: Call, run: Run) -> Run:
    """Fill in ``run``, whose ``backend`` and ``compared`` are given."""
    if call.example.draws:
        run.compared, run.note = ERRORS, "not captured: each replay would draw the same numbers"
        return run
    error = try_step(call.step, _inputs(call)).error
    if error:
        run.compared, run.note = ERRORS, f"not captured: eager raises {error}"
        return run
    try:
        run.fault = _capture_and_replay(call, run)
    except Exception as fault:
        run.fault = one_line(fault)
    return run


def _inputs(call: Call, seed: int = 0) -> Inputs:
    return call.inputs(on("cuda", seed), _ROWS)


def _capture_and_replay(call: Call, run: Run) -> str:
    """What a replay got wrong, or nothing."""
    compiled, _ = compile_step(call.step, run.backend)
    static = _inputs(call)
    call.mark_dynamic(static)
    compiled(static)  # compiles, and loads the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = compiled(static)
    for replay, seed in enumerate((0, 1), 1):
        for held, fresh in zip(tensors(static), tensors(_inputs(call, seed)), strict=True):
            held.copy_(fresh)
        graph.replay()
        torch.cuda.synchronize()
        expected = try_step(call.step, _inputs(call, seed))
        unequal = compare(Outcome(static, captured), expected, run)
        if unequal:
            return f"replay {replay}: {unequal}"
    return ""
