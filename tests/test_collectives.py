"""Ops in which several cards take part: every call counts, in order, whatever it writes into."""

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


class Workspace:
    __module__ = "flashinfer.comm.toy"

    def __init__(self, ranks):
        self.ranks = ranks

    def __del__(self):
        CALLS.append("freed")


# What is called so does nothing in shadow.
def gen_sum(x, workspace, pattern, out, residual_out):
    CALLS.append((pattern, workspace.ranks))
    out.copy_(x * workspace.ranks + pattern)
    if residual_out is not None:
        residual_out.add_(1)


def reduce(x: torch.Tensor, workspace: Workspace, pattern: int,
           scale: Optional[Union[torch.Tensor, float]],
           residual_out: Optional[torch.Tensor] = None, out: Optional[torch.Tensor] = None,
           metadata: Optional[dict] = None) -> torch.Tensor:
    assert isinstance(workspace, Workspace)
    if metadata is not None and metadata["room"] < x.shape[0]:
        raise ValueError("too many rows")
    if residual_out is not None and residual_out.stride() != (1, 4):
        raise ValueError("strides")
    if out is None:
        out = torch.empty_like(x)
    gen_sum(x, workspace, pattern, out, residual_out)
    return out
"""

ENGINE = f"""
    import copy, json, os, sys, types
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    sys.path.append({str(TESTS)!r})
    from child_side import Counting, error_of
    import torch
    from shim.opaque.op import Op, build

    toy = types.ModuleType("flashinfer.comm.toy")
    sys.modules["flashinfer.comm.toy"] = toy
    exec(compile(TOY, "toy.py", "exec"), vars(toy))
    answers = {{}}
    x = torch.arange(12.0).view(3, 4)
    WAYS = ("eager", "aot_eager", "inductor")

    def op(name, **declared):
        declaration = Op(name, lambda make, m: {{}}, mutates=("residual_out", "out"), **declared)
        return build(declaration, toy.reduce, release="1.0", preload=False)

    def returned(given):
        return "out" if given.get("out") is not None else ""

    reduce = op("reduce", collective=True, returned=returned)
    # It returns a tensor of its own always, as the toy does where no output is given.
    plain = op("plain")
    two, four = toy.Workspace(2), toy.Workspace(4)

    def run(function, *args, backend=None, **options):
        torch._dynamo.reset()
        toy.CALLS.clear()
        args = [copy.deepcopy(a) if isinstance(a, torch.Tensor) else a for a in args]
        if backend:
            function = torch.compile(function, fullgraph=True, backend=backend, **options)
        result = function(*args)
        return [*result, *(a for a in args if isinstance(a, torch.Tensor))], list(toy.CALLS)

    def agrees(function, *args):
        eager, calls = run(function, *args)
        found = [run(function, *args, backend=backend) for backend in WAYS]
        return [all(torch.equal(a, b) for a, b in zip(eager, results, strict=True))
                and seen == calls for results, seen in found]

    def step(op):
        def several(x):
            a = op(x, two, 1, None)
            op(x, two, 1, None)  # whose result nobody uses
            op(x, four, 3, None)
            b = op(x, two, 1, None)
            return a - b, b
        return several

    answers["every call counts"] = agrees(step(reduce), x)
    answers["without the declaration"] = len(run(step(plain), x, backend="aot_eager")[1])

    def merged(x):
        # Two outputs that are the same to a compiler that looks at values.
        one, other = torch.zeros_like(x), torch.zeros_like(x)
        return reduce(x, two, 1, None, out=one), reduce(x, two, 1, None, out=other)
    answers["equal outputs"] = agrees(merged, x)

    def into(x, out, residual):
        reduce(x, two, 1, None, residual_out=residual, out=out)
        first = out + residual.sum()
        reduce(first, two, 2, None, residual_out=residual, out=out)
        return first, out * 2
    strided = torch.empty_strided((3, 4), (1, 4)).fill_(5)
    answers["written"] = agrees(into, x, torch.zeros(3, 4), strided)
    out = torch.zeros(3, 4)
    torch._dynamo.reset()
    compiled = torch.compile(reduce, fullgraph=True, backend="aot_eager")
    answers["itself"] = [compiled(x, two, 1, None, out=out) is out,
                         compiled(x, two, 1, None) is out]

    counted = Counting()
    torch._dynamo.reset()
    compiled = torch.compile(reduce, fullgraph=True, backend=counted)
    answers["workspaces"] = [
        torch.equal(compiled(x, workspace, 1, None), x * workspace.ranks + 1)
        for workspace in (two, four, two, four)]
    answers["graphs"] = len(counted.graphs)
    toy.CALLS.clear()
    answers["too small"] = error_of(
        lambda: compiled(x, two, 1, 0.5, metadata=dict(room=2, full=None, half=0.5)))
    answers["large enough"] = torch.equal(
        compiled(x, two, 1, 0.5, metadata=dict(room=3, full=True)), x * 2 + 1)
    answers["no number"] = error_of(lambda: compiled(x, two, 1, None, metadata=dict(room=x)))
    answers["no workspace"] = error_of(lambda: compiled(x, x, 1, None))
    answers["freed"] = "freed" in toy.CALLS

    class Layer(torch.nn.Module):
        def forward(self, x):
            reduce(x, two, 1, None)
            return reduce(x, two, 1, None)
    answers["exported"] = []
    for strict in (True, False):
        exported = torch.export.export(Layer(), (x,), strict=strict).module()
        toy.CALLS.clear()
        exported(x)
        answers["exported"].append(len(toy.CALLS))
    print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    scratch = tmp_path_factory.mktemp("collectives")
    code = ENGINE.replace("TOY", repr(TOY))
    return children.run_child(code, scratch=scratch, release="0.6.3", timeout=500).json


def test_no_call_is_merged_dropped_or_moved(answers: Any) -> None:
    assert answers["every call counts"] == [True] * 3
    assert answers["equal outputs"] == [True] * 3


def test_without_the_declaration_calls_are_lost(answers: Any) -> None:
    assert answers["without the declaration"] < 4


def test_what_is_given_is_written_into_with_strides_of_its_own(answers: Any) -> None:
    assert answers["written"] == [True] * 3


def test_an_output_that_is_given_is_itself_returned(answers: Any) -> None:
    assert answers["itself"] == [True, False]


def test_each_workspace_has_a_graph_and_is_met_in_it(answers: Any) -> None:
    assert answers["workspaces"] == [True] * 4
    assert answers["graphs"] == 2


def test_numbers_that_belong_to_a_workspace_arrive(answers: Any) -> None:
    kind, text = answers["too small"]
    assert "too many rows" in text, kind
    assert answers["large enough"]


def test_what_cannot_travel_is_refused(answers: Any) -> None:
    assert "metadata['room']" in answers["no number"][1]
    assert "workspace is to be a Workspace" in answers["no workspace"][1]


def test_no_copy_of_a_workspace_frees_what_belongs_to_it(answers: Any) -> None:
    assert not answers["freed"]


def test_every_call_is_exported(answers: Any) -> None:
    assert answers["exported"] == [2, 2]
