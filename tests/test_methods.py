"""Methods as ops, on a class of the tests' own: an object with a plan travels as a handle."""

from __future__ import annotations

from pathlib import Path

from conftest import RunChild

TESTS = Path(__file__).parent

TOY = """
import functools
from typing import Optional, Tuple, Union

import torch


class Wrapper:
    def __init__(self, layout="NHD"):
        self._layout = layout
        self._runs = 0

    def plan(self, rows, shift, dtype=torch.float32):
        self._rows, self._shift, self._dtype = rows, shift, dtype

    begin_forward = plan

    def run(self, q: torch.Tensor, cache: Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]],
            *args, out: Optional[torch.Tensor] = None, lse: Optional[torch.Tensor] = None,
            return_lse: bool = False):
        if q.size(0) != self._rows:
            raise ValueError(f"planned for {self._rows} rows")
        if out is None:
            out = torch.empty(q.shape, dtype=self._dtype, device=q.device)
        if return_lse and lse is None:
            lse = torch.empty(q.shape[:1], device=q.device)
        out.copy_(q + self._shift + sum(args))
        self._runs += 1
        if return_lse:
            lse.fill_(self._shift)
        return (out, lse) if return_lse else out

    def into_its_own(self, q: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "_buffer"):
            self._buffer = torch.empty(16, q.shape[1])
        out = self._buffer[: q.shape[0]]
        return out.copy_(q)

    again = run
    run_return_lse = functools.partialmethod(run, return_lse=True)

    def forward(self, q: torch.Tensor, cache: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
        self._shift = shift
        return self.run(q, cache)
"""

CHILD = f"""
    import copy, json, pickle, sys, types
    sys.path.append({str(TESTS)!r})
    from child_side import Counting, error_of
    import torch
    from shim import replacing
    from shim.opaque import method, tracking
    from shim.opaque.declare import Op

    toy = sys.modules["toy"] = types.ModuleType("flashinfer.toy")
    sys.modules["flashinfer.toy"] = toy
    exec(compile(TOY, "toy.py", "exec"), vars(toy))
    Wrapper = toy.Wrapper
    before = dict(vars(Wrapper))
    late = Wrapper()

    PAIR = dict(returns="(Tensor, Tensor)", out=("out", "lse"),
                results=lambda given: 2 if given.get("return_lse") else 1)
    stood = dict()
    for name, declared in dict(run=PAIR, forward=dict(), into_its_own=dict()).items():
        op = Op("Wrapper." + name, lambda make, m: {{}}, state=("_layout", "_dtype"), **declared)
        original = vars(Wrapper)[name]
        built = method.build(op, Wrapper, original, release="1.0", preload=False)
        for attribute, (before_it, since) in replacing.methods(Wrapper, original, built).items():
            stood[attribute] = before_it
            setattr(Wrapper, attribute, since)
    tracking.track(Wrapper)

    q, cache = torch.randn(4, 8), torch.randn(3)
    answers = {{}}

    def planned(shift, rows=4, **options):
        wrapper = Wrapper()
        wrapper.plan(rows, shift, **options)
        return wrapper

    class Layer(torch.nn.Module):
        def __init__(self, wrapper):
            super().__init__()
            self.wrapper = wrapper

        def forward(self, q, cache):
            return self.wrapper.run(q, cache)

    def compiled(function, backend, **options):
        torch._dynamo.reset()
        return torch.compile(function, fullgraph=True, backend=backend, **options)

    # Layers of one code, each compiled by itself, then all in one graph.
    for told, wrappers in dict(
        own=[planned(float(i)) for i in range(6)], shared=[planned(7.0)] * 6
    ).items():
        layers = [Layer(wrapper) for wrapper in wrappers]
        counting = Counting()
        torch._dynamo.reset()
        each = [torch.compile(layer, fullgraph=True, backend=counting) for layer in layers]
        right = [torch.equal(one(q, cache), q + layer.wrapper._shift)
                 for one, layer in zip(each, layers)]
        answers[told] = [all(right), len(counting.graphs)]

        def stack(q, cache):
            for layer in layers:
                q = layer(q, cache)
            return q

        for backend in ("aot_eager", "inductor"):
            answers[told].append(torch.equal(compiled(stack, backend)(q, cache), stack(q, cache)))

    counting = Counting()
    call = compiled(lambda wrapper, q: wrapper.run(q, cache), counting, dynamic=True)
    wrapper, other = planned(1.0), planned(2.0, rows=9)
    call(wrapper, q)
    answers["another object"] = torch.equal(call(other, torch.ones(9, 8)), torch.full((9, 8), 3.0))
    wrapper.plan(4, 5.0)
    answers["planned anew"] = torch.equal(call(wrapper, q), q + 5)
    wrapper.plan(7, 6.0)
    seven = torch.ones(7, 8)
    answers["for other sizes"] = torch.equal(call(wrapper, seven), seven + 6)
    answers["in one graph"] = len(counting.graphs)
    wrapper.plan(4, 1.0, dtype=torch.float64)
    answers["another dtype"] = [str(call(wrapper, q).dtype), len(counting.graphs)]
    answers["not what was planned"] = error_of(lambda: call(wrapper, torch.ones(5, 8)))
    answers["a fake leaves the object alone"] = wrapper._runs == 4

    wrapper = planned(1.0)
    lse = compiled(lambda w, q: w.run_return_lse(q, cache)[1], "aot_eager")
    answers["a partial method"] = torch.equal(lse(wrapper, q), torch.ones(4))
    answers["an alias"] = vars(Wrapper)["again"] is vars(Wrapper)["run"]
    extra = compiled(lambda w, q: w.run(q, (cache, cache), cache.sum(), 2, 0.5), "aot_eager")
    answers["more by position"] = torch.allclose(extra(wrapper, q), q + 1 + cache.sum() + 2.5)
    out = torch.zeros(4, 8)
    into = compiled(lambda w, q, out: w.run(q, cache, out=out), "inductor")
    answers["an output given"] = [into(wrapper, q, out) is out, torch.equal(out, q + 1)]
    forward = compiled(lambda w, q: w.forward(q, cache, shift=3.0), "aot_eager")
    answers["it may change its object"] = [torch.equal(forward(wrapper, q), q + 3), wrapper._shift]

    twice = compiled(lambda w, q: [w.into_its_own(q), w.into_its_own(q + 1)], "eager")
    answers["into memory of its own"] = [
        torch.equal(made, q + i) for i, made in enumerate(twice(wrapper, q))]
    del wrapper._buffer

    call = compiled(lambda wrapper, q: wrapper.run(q, cache), "eager")
    call(wrapper, q)
    copies = [copy.copy(wrapper), copy.deepcopy(wrapper), pickle.loads(pickle.dumps(wrapper))]
    for number, copied in enumerate(copies, 10):
        copied.plan(4, float(number))
    answers["copies"] = [torch.equal(call(copied, q), q + copied._shift) for copied in copies]
    answers["a pickle is plain"] = b"shim" not in pickle.dumps(wrapper)
    late.plan(4, 20.0)
    answers["one from before"] = torch.equal(call(late, q), q + 20)

    exported = torch.export.export(Layer(wrapper), (q, cache), strict=True).module()
    answers["exported"] = torch.equal(exported(q, cache), q + 3)
    exported = torch.export.export(Layer(planned(1.0)), (q, cache), strict=True).module()
    answers["whose object is gone"] = error_of(lambda: exported(q, cache))

    tracking.untrack(Wrapper)
    for name, value in stood.items():
        setattr(Wrapper, name, value)
    answers["put back"] = dict(vars(Wrapper)) == before
    print(json.dumps(answers))
"""


def test_an_object_with_a_plan_travels_as_a_handle(run_child: RunChild) -> None:
    answers = run_child(CHILD.replace("TOY", repr(TOY)), release="0.6.3").json
    assert answers["own"] == [True, 1, True, True]
    assert answers["shared"] == [True, 1, True, True]
    assert answers["another object"] is True
    assert answers["planned anew"] is True
    assert answers["for other sizes"] is True
    assert answers["in one graph"] == 1
    assert answers["another dtype"] == ["torch.float64", 2]
    kind, text = answers["not what was planned"]
    assert "planned for 4 rows" in text
    assert answers["a fake leaves the object alone"] is True
    assert answers["a partial method"] is True
    assert answers["an alias"] is True
    assert answers["more by position"] is True
    assert answers["an output given"] == [True, True]
    assert answers["it may change its object"] == [True, 3.0]
    assert answers["into memory of its own"] == [True, True]
    assert answers["copies"] == [True, True, True]
    assert answers["a pickle is plain"] is True
    assert answers["one from before"] is True
    assert answers["exported"] is True
    kind, text = answers["whose object is gone"]
    assert kind == "RuntimeError"
    assert "no longer exists" in text
    assert answers["put back"] is True
