"""The usual call goes into Dynamo's graph at once: its guards, its arguments, and the way back.

The functions are toys; what is expected of them is what a function does that is an op by hand.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from conftest import RunChild

TESTS = Path(__file__).parent

TOY = """
import enum
from typing import Optional

import torch

CALLS = []


class Mode(enum.Enum):
    PLAIN = 1
    NEGATED = 2


def scale(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6,
          out: Optional[torch.Tensor] = None, *, rows: Optional[int] = None,
          negate: bool = False, mode: Mode = Mode.PLAIN) -> torch.Tensor:
    CALLS.append((eps, rows, negate, mode.name))
    if out is None:
        out = torch.empty_like(x)
    out.copy_((x * weight + eps) * (-1 if negate or mode is Mode.NEGATED else 1))
    return out


def other(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6,
          out: Optional[torch.Tensor] = None, *, rows: Optional[int] = None,
          negate: bool = False, mode: Mode = Mode.PLAIN) -> torch.Tensor:
    return torch.full_like(x, 7.0)
"""

CHILD = f"""
    import gc, json, sys, types, weakref
    sys.path.append({str(TESTS)!r})
    from child_side import error_of
    import torch

    if len(sys.argv) > 1:  # a torch whose Dynamo has other names
        sys.modules["shim.opaque.rule"] = None
    from shim.opaque.op import Op, build

    toy = sys.modules["flashinfer.toy"] = types.ModuleType("flashinfer.toy")
    exec(compile(TOY, "toy.py", "exec"), vars(toy))
    DECLARED = Op("scale", lambda make, m: {{}}, out=("out",))
    scale = build(DECLARED, toy.scale, release="1.0", preload=False)
    x, weight = torch.ones(4, 3), torch.nn.Parameter(torch.full((3,), 2.0))
    answers = {{}}

    def by_hand(x, weight, eps=1e-6):
        return x * weight + eps
    library = torch.library.Library("byhand", "FRAGMENT")
    library.define("scale(Tensor x, Tensor weight, float eps=1e-6) -> Tensor")
    library.impl("scale", by_hand, "CPU")
    torch.library.register_fake(
        "byhand::scale", lambda x, weight, eps=1e-6: x.new_empty(x.shape), lib=library)

    def compiled(function, *args, fullgraph=True, dynamic=None):
        # What the graphs hold, how many guards they have, and what comes out.
        graphs, guards = [], []
        def backend(graph, inputs):
            graphs.append([n for n in graph.graph.nodes if "scale" in str(n.target)])
            return graph.forward
        def count(entries):
            guards.append(len(entries))
            return [True] * len(entries)
        torch._dynamo.reset()
        made = torch.compile(function, fullgraph=fullgraph, backend=backend, dynamic=dynamic,
                             options=dict(guard_filter_fn=count))
        with torch.no_grad():
            result = made(*args)
        return graphs, guards, result

    def thrice(function):
        def model(x, weight):
            return [function(x, weight, 0.5) for _ in range(3)]
        return model

    graphs, ours, results = compiled(thrice(scale), x, weight)
    _, theirs, _ = compiled(thrice(torch.ops.byhand.scale), x, weight)
    answers["one node for a call"] = [len(graphs), len(graphs[0])]
    answers["guards"] = [ours[-1], theirs[-1]]
    answers["results"] = [float(result[0, 0]) for result in results]
    answers["it stands where the user called it"] = [
        "function(x, weight, 0.5)" in node.stack_trace and "dispatch.py" not in node.stack_trace
        for node in graphs[0]]

    def arriving(call, *args, **options):
        toy.CALLS.clear()
        (nodes,), _, result = compiled(call, *args, **options)
        return [*toy.CALLS, len(nodes[0].args), sorted(nodes[0].kwargs)]
    answers["what arrives"] = dict(
        plain=arriving(lambda x, w: scale(x, w), x, weight),
        named=arriving(lambda x, w: scale(weight=w, x=x), x, weight),
        keyword=arriving(lambda x, w: scale(x, w, negate=True, rows=3), x, weight),
        symbolic=arriving(lambda x, w: scale(x, w, rows=x.shape[0]) , x, weight, dynamic=True),
        judged=arriving(lambda x, w: scale(x, w, 1, negate=1, rows=2.0), x, weight),
        carried=arriving(lambda x, w: scale(x, w, mode=toy.Mode.NEGATED), x, weight),
        at_rest=arriving(lambda x, w: scale(x, w, mode=toy.Mode.PLAIN, out=None), x, weight),
    )
    out = torch.empty(4, 3)
    _, _, result = compiled(lambda x, w, out: scale(x, w, out=out), x, weight, out)
    answers["an output that is given"] = [result is out, round(float(out[0, 0]))]
    text = error_of(lambda: compiled(lambda x: scale(x, 3.0), x))[1]
    answers["a wrong argument"] = "scale()" in text and "'weight'" in text

    def broken(x, weight):
        a = scale(x, weight)
        torch._dynamo.graph_break()
        return a + scale(a, weight)
    graphs, _, result = compiled(broken, x, weight, fullgraph=False)
    answers["around a graph break"] = [len(graphs), round(float(result[0, 0]))]
    def within(x, weight):
        return torch.utils.checkpoint.checkpoint(
            lambda x: scale(x, weight), x, use_reentrant=False)
    answers["within a checkpoint"] = round(float(compiled(within, x, weight)[2][0, 0]))
    choices = {{scale: 5.0}}
    answers["the function as a key"] = float(
        compiled(lambda x, w: scale(x, w) * 0 + choices[scale], x, weight)[2][0, 0])
    program = torch.export.export(type("M", (torch.nn.Module,), dict(
        forward=lambda self, x, w: scale(x, w, 0.5)))(), (x, weight.detach()))
    answers["exported"] = float(program.module()(x, weight.detach())[0, 0])

    # A module that is executed again: graphs that are there call the new function.
    model = torch.compile(lambda x, w: scale(x, w), fullgraph=True, backend="eager")
    with torch.no_grad():
        before = float(model(x, weight)[0, 0])
        build(DECLARED, toy.other, release="1.0", preload=False)
        after = float(model(x, weight)[0, 0])
    answers["another function in its place"] = [round(before), after]
    # Whom nobody holds any more, neither Dynamo's table nor we hold.
    again = build(DECLARED, toy.scale, release="1.0", preload=False)
    compiled(lambda x, w: again(x, w), x, weight)
    gone = weakref.ref(again)
    del again
    torch._dynamo.reset()
    gc.collect()
    answers["a function that is gone"] = gone() is None
    answers["requires grad"] = torch.compile(
        lambda x, w: scale(x, w), fullgraph=True, backend="eager")(x, weight).requires_grad
    print(json.dumps(answers))
"""


def _check(answers: dict[str, object]) -> None:
    assert answers["one node for a call"] == [1, 3]
    assert answers["results"] == [2.5, 2.5, 2.5]
    plain = [1e-6, None, False, "PLAIN"]
    arriving = answers["what arrives"]
    assert isinstance(arriving, dict)
    told = {name: call[0] for name, call in arriving.items()}
    assert told == {
        "plain": plain,
        "named": plain,
        "keyword": [1e-6, 3, True, "PLAIN"],
        "symbolic": [1e-6, 4, False, "PLAIN"],
        "judged": [1.0, 2, True, "PLAIN"],
        "carried": [1e-6, None, False, "NEGATED"],
        "at_rest": plain,
    }
    assert answers["an output that is given"] == [True, 2]
    assert answers["a wrong argument"] is True
    assert answers["around a graph break"] == [2, 6]
    assert answers["within a checkpoint"] == 2
    assert answers["the function as a key"] == 5.0
    assert answers["exported"] == 2.5
    assert answers["another function in its place"] == [2, 7.0]
    assert answers["a function that is gone"] is True
    assert answers["requires grad"] is False


def test_the_usual_call_goes_into_the_graph_at_once(run_child: RunChild) -> None:
    answers = run_child(CHILD.replace("TOY", repr(TOY)), release="0.6.3").json
    _check(answers)
    ours, by_hand = answers["guards"]
    assert ours == by_hand
    assert answers["it stands where the user called it"] == [True] * 3
    arriving = answers["what arrives"]
    # Tensors alone: what stands at its default need not go through the dispatcher.
    assert arriving["plain"][1:] == arriving["named"][1:] == [2, []]
    assert arriving["keyword"][1:] == [2, ["negate", "rows"]]


def test_calls_are_followed_where_dynamo_cannot_be_told(
    run_child: RunChild, tmp_path: Path
) -> None:
    script = tmp_path / "untold.py"
    script.write_text(textwrap.dedent(CHILD.replace("TOY", repr(TOY))))
    answers = run_child(None, args=[script, "untold"], release="0.6.3").json
    _check(answers)
    ours, by_hand = answers["guards"]
    assert ours > by_hand


def test_at_the_interpreters_end_functions_leave_the_table_without_a_word(
    run_child: RunChild,
) -> None:
    child = run_child(
        """
        import torch  # rule is imported while Dynamo traces
        import torch._dynamo
        from shim.opaque import rule

        def function(): ...

        table = {}
        table[rule._Key(function, table)] = None
        for name in vars(rule):
            vars(rule)[name] = None  # as the interpreter does to modules
        del function
        print(len(table))
        """
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, "0\n", ""), child
