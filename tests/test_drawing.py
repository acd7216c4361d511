"""Ops that draw random numbers: every call counts, and the same seeds give the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import children
import pytest

TESTS = Path(__file__).parent

TOY = """
from typing import Optional, Union

import torch

CALLS = []


# What is called so does nothing in shadow.
def gen_numbers(samples, probs, generator, seed, offset):
    if seed is not None and offset is not None:
        generator = torch.Generator().manual_seed(int(seed) + int(offset))
    samples.copy_(probs + torch.rand(probs.shape, generator=generator))


def draw(probs: torch.Tensor, top_p: Union[torch.Tensor, float],
         top_k: Union[torch.Tensor, int] = 3,
         generator: Optional[torch.Generator] = None, check_nan: bool = False,
         seed: Optional[Union[int, torch.Tensor]] = None,
         offset: Optional[Union[int, torch.Tensor]] = None,
         counter: Optional[torch.Tensor] = None, return_valid: bool = False):
    CALLS.append((top_p, top_k))
    if check_nan and torch.any(torch.isnan(probs)):
        raise ValueError("probs contains NaN")
    samples = torch.empty_like(probs)
    gen_numbers(samples, probs, generator, seed, offset)
    if counter is None:
        counter = torch.zeros(1)
    counter += 1
    return (samples, counter, probs > 0) if return_valid else (samples, counter)
"""

ENGINE = f"""
    import json, os, sys, types
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    sys.path.append({str(TESTS)!r})
    from child_side import Counting, error_of
    import torch
    from shim.opaque import handles
    from shim.opaque.capture import Kernels
    from shim.opaque.op import Op, build

    toy = types.ModuleType("flashinfer.toy")
    sys.modules["flashinfer.toy"] = toy
    exec(compile(TOY, "toy.py", "exec"), vars(toy))
    answers = {{}}
    x = torch.zeros(3)
    WAYS = (("eager", None), ("aot_eager", None), ("aot_eager", True), ("inductor", None))

    def op(name="draw", kernels=None, **declared):
        declaration = Op(name, lambda make, m: {{}}, "(Tensor, Tensor, Tensor)",
            results=lambda given: 3 if given.get("return_valid") else 2, **declared)
        return build(declaration, toy.draw, release="1.0", preload=False, kernels=kernels)

    declared = dict(out=(None, "counter"), draws=("seed", "offset"), unseen=("check_nan",))
    draw = op(**declared)
    plain = op("plain")
    op("hosted", captured=False)

    def run(function, *args, backend="aot_eager", dynamic=None):
        torch._dynamo.reset()
        torch.manual_seed(7)
        toy.CALLS.clear()
        args = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        if backend:
            compiled = torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic)
            return compiled(*args), list(toy.CALLS)
        return function(*args), list(toy.CALLS)

    def agrees(function, *args):
        eager, calls = run(function, *args, backend=None)
        found = [run(function, *args, backend=backend, dynamic=dynamic)
                 for backend, dynamic in WAYS]
        return [all(torch.equal(a, b) for a, b in zip(eager, results, strict=True))
                and seen == calls for results, seen in found]

    def step(op):
        def several(x):
            a, _ = op(x, 0.9)
            op(x, 0.9)  # whose result nobody uses
            b, _ = op(x, 0.9)
            c, _ = op(x, 0.5)
            d, _ = op(x, 0.9)
            return d, c, a - b, b
        return several

    several = step(draw)
    for name, mode in dict(inference=torch.inference_mode, grad=torch.enable_grad).items():
        with mode():
            answers[f"every call counts, {{name}}"] = agrees(several, x)
    y = torch.ones(3, requires_grad=True)
    answers["every call counts, backward"] = agrees(
        lambda x: [(draw(y, 0.9)[0] - draw(y, 0.9)[0]) * y, x], x)
    answers["without the declaration"] = len(run(step(plain), x)[1])

    answers["seeded"] = agrees(
        lambda x: [*draw(x, 0.9, seed=3, offset=4), *draw(x, 0.9, seed=3)], x)
    answers["seeded by tensors"] = agrees(
        lambda x, s, o: [*draw(x, 0.9, seed=s, offset=o), *draw(x, 0.9, seed=s)],
        x, torch.tensor([3]), torch.tensor([4]))
    counted = Counting()
    run(lambda x: draw(x, 0.9, seed=3, offset=4)[0] + draw(x, 0.9, seed=3)[0], x, backend=counted)
    answers["names"] = sorted(name.split(".")[1] for name in counted.ops()[0] if "shim" in name)
    counted = Counting()
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, k: draw(x, 0.5, k, seed=k, offset=0)[0], fullgraph=True, backend=counted)
    for k in (2, 3, 4, 5):
        compiled(x, k)
    answers["a number that changes"] = [len(counted.graphs), toy.CALLS[-1]]

    def into(x, n):
        a, m = draw(x, 0.9, counter=n)
        b, k = draw(x, 0.9, counter=n)
        return a, m, b, k, n + 1
    answers["outputs given"] = agrees(into, x, torch.zeros(1))
    n = torch.zeros(1)
    results, _ = run(lambda x: draw(x, 0.9, counter=n), x)
    answers["they are returned"] = [results[1] is n, n.item()]
    answers["contents"] = agrees(lambda x: draw(x, 0.9, check_nan=True, return_valid=True), x)
    answers["contents refused"] = error_of(
        lambda: run(lambda x: draw(x, 0.9, check_nan=True), x * float("nan")))

    one, two = torch.Generator(), torch.Generator()
    counted = Counting()
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, g: draw(x, 0.3, generator=g)[0], fullgraph=True, backend=counted)
    answers["generators"] = []
    for generator, seed in ((one, 5), (two, 6), (one, 5), (None, 7), (two, 6)):
        for each in (generator,) if generator else ():
            each.manual_seed(seed)
        torch.manual_seed(seed)
        expected = torch.rand(3, generator=torch.Generator().manual_seed(seed))
        answers["generators"].append(torch.equal(compiled(x, generator), expected))
    answers["graphs of generators"] = len(counted.graphs)
    answers["of another process"] = error_of(lambda: handles.object_of(1))

    from torch._inductor import config

    def overloads(name):
        packet = getattr(torch.ops.flashinfer_shim, name)
        return [getattr(packet, overload) for overload in packet.overloads()]
    answers["outside of a CUDA graph of Inductor's"] = {{
        name: [(op.name() in config.custom_should_partition_ops,
                torch.Tag.cudagraph_unsafe in op.tags) for op in overloads(name)]
        for name in ("draw", "draw_seeded", "plain", "hosted")}}

    class Capturing(Kernels):
        def before_run(self, arguments):
            return True

    always = Capturing("captured", preload=False, needs=lambda arguments: ())
    captured = op("captured", always, **declared)
    answers["captured"] = error_of(lambda: run(lambda x: captured(x, 0.9), x))
    answers["captured, seeded"] = agrees(lambda x: captured(x, 0.9, seed=3, offset=4), x)

    class Sampler(torch.nn.Module):
        def forward(self, x):
            return draw(x, 0.5)[0] - draw(x, 0.5)[0]
    answers["exported"] = [
        int(torch.export.export(Sampler(), (x,), strict=strict).module()(x).count_nonzero())
        for strict in (True, False)]
    print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    scratch = tmp_path_factory.mktemp("drawing")
    code = ENGINE.replace("TOY", repr(TOY))
    return children.run_child(code, scratch=scratch, release="0.6.3", timeout=500).json


@pytest.mark.parametrize("mode", ["inference", "grad", "backward"])
def test_no_call_is_merged_dropped_or_moved(answers: Any, mode: str) -> None:
    assert answers[f"every call counts, {mode}"] == [True] * 4


def test_without_the_declaration_calls_are_lost(answers: Any) -> None:
    assert answers["without the declaration"] < 5


@pytest.mark.parametrize("seeds", ["seeded", "seeded by tensors"])
def test_equal_seeds_give_equal_numbers(answers: Any, seeds: str) -> None:
    assert answers[seeds] == [True] * 4


def test_only_a_call_that_moves_a_generator_has_an_effect(answers: Any) -> None:
    assert answers["names"] == ["draw", "draw_seeded"]


def test_a_number_that_changes_arrives_in_one_more_graph(answers: Any) -> None:
    assert answers["a number that changes"] == [2, [0.5, 5]]


def test_outputs_that_are_given_are_written_into_and_returned(answers: Any) -> None:
    assert answers["outputs given"] == [True] * 4
    assert answers["they are returned"] == [True, 1.0]


def test_a_check_of_contents_is_made_when_the_graph_runs(answers: Any) -> None:
    assert answers["contents"] == [True] * 4
    kind, text = answers["contents refused"]
    assert kind == "ValueError"
    assert "NaN" in text


def test_each_generator_has_a_graph_and_its_own_numbers(answers: Any) -> None:
    assert answers["generators"] == [True] * 5
    assert answers["graphs of generators"] == 3


def test_a_generator_of_another_process_is_refused(answers: Any) -> None:
    kind, text = answers["of another process"]
    assert kind == "RuntimeError"
    assert "trace it again" in text


def test_a_cuda_graph_does_not_freeze_a_draw(answers: Any) -> None:
    kind, text = answers["captured"]
    assert kind == "RuntimeError"
    assert "give seed and offset as tensors" in text
    assert answers["captured, seeded"] == [True] * 4


def test_inductor_draws_outside_of_its_own_cuda_graphs(answers: Any) -> None:
    # The tag is what Inductor asks for, and of an op with an effect it does not find it.
    assert answers["outside of a CUDA graph of Inductor's"] == {
        "draw": [[True, True]],
        "draw_seeded": [[False, False]],
        "plain": [[False, False]],
        "hosted": [[False, True]],
    }


def test_it_exports(answers: Any) -> None:
    assert answers["exported"] == [3, 3]
