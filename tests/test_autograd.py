"""No result of an op requires grad, and what an op writes is nothing to autograd.

So it is with FlashInfer's own kernels, which the toys stand for: torch allocates, and a kernel of
which autograd knows nothing writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import children
import pytest

TESTS = Path(__file__).parent

TOY = """
import torch


# What is called so does nothing in shadow.
def gen_numbers(out, values):
    with torch.no_grad():
        out.copy_(values)


def double(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    gen_numbers(out, 2 * x)
    return out


def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2


def add_one(x: torch.Tensor) -> None:
    gen_numbers(x, x + 1)
"""

CHILD = f"""
    import json, sys, types, warnings
    sys.path.append({str(TESTS)!r})
    from child_side import error_of
    import torch
    from shim.opaque.op import Op, build

    warnings.simplefilter("error", UserWarning)
    toy = sys.modules["flashinfer.toy"] = types.ModuleType("flashinfer.toy")
    exec(compile(TOY, "toy.py", "exec"), vars(toy))

    def op(name, **declared):
        declaration = Op(name, lambda make, m: {{}}, **declared)
        return build(declaration, getattr(toy, name), release="1.0", preload=False)

    double, halve = op("double"), op("halve")
    add_one = op("add_one", returns="()", mutates=("x",))
    answers = {{}}
    numbers = torch.arange(3.0)

    def leaf():
        return numbers.clone().requires_grad_()

    def after(x):
        add_one(x)
        return x * 2

    def within(x):
        y = x * 3
        add_one(y)
        return double(y) + y

    def told(function, x, compiled):
        y = compiled(function)(x)
        grad = None
        if y is not None and y.requires_grad:
            y.sum().backward()
            grad = x.grad.tolist()
        values = None if y is None else y.tolist()
        return values, grad, x.tolist(), x.is_leaf, x.requires_grad

    def each(function, compiled):
        with torch.set_grad_enabled(True):
            found = [told(function, leaf(), compiled)]
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                found.append(told(function, leaf(), compiled))
        return found

    steps = dict(
        result=double, used=lambda x: double(x) + 1, written=add_one, written_and_used=after,
        written_within=within)
    for backend in ("eager", "aot_eager", "inductor"):
        def compiled(function):
            torch._dynamo.reset()
            return torch.compile(
                lambda x: function(x), fullgraph=True, backend=backend)
        answers[backend] = {{
            name: each(step, compiled) == each(step, lambda f: f) for name, step in steps.items()}}
        answers[backend]["computed by torch"] = not compiled(halve)(leaf()).requires_grad

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x):
            h = x * self.weight
            add_one(h)
            return double(h), halve(h)

    for strict in (True, False):
        exported = torch.export.export(Layer(), (numbers,), strict=strict).module()
        results = exported(leaf())
        answers[f"export, strict={{strict}}"] = {{
            "values": torch.equal(results[0], 2 * (numbers + 1)),
            "results": not any(result.requires_grad for result in results),
        }}
    print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    scratch = tmp_path_factory.mktemp("autograd")
    return children.run_child(CHILD.replace("TOY", repr(TOY)), scratch=scratch, timeout=500).json


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_autograd_sees_of_a_compiled_call_what_it_sees_of_upstreams(
    answers: Any, backend: str
) -> None:
    assert all(answers[backend].values()), answers[backend]


@pytest.mark.parametrize("strict", [True, False])
def test_so_it_is_in_an_exported_program(answers: Any, strict: bool) -> None:
    told = answers[f"export, strict={strict}"]
    assert all(told.values()), told
