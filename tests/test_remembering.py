"""What a run in shadow came to is remembered, and for no call that could come to something else.

The functions are toys.
"""

from __future__ import annotations

from pathlib import Path

from conftest import RunChild

TESTS = Path(__file__).parent

TOY = """
import torch


def doubled(x: torch.Tensor, times: int = 1) -> torch.Tensor:
    out = torch.empty_like(x)
    out.copy_(2 * x * times)
    return out


def at_least(x: torch.Tensor) -> torch.Tensor:
    return x.new_zeros(16 if x.shape[0] < 16 else x.shape[0])


def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.new_zeros(1 if x is y else 2)


def first(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    size = number.item()
    torch._check(size >= 0)
    return x.new_zeros(size)


def into(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    state.add_(x)
    return state


class Workspace:
    size = 3


def sized(x: torch.Tensor, workspace: Workspace) -> torch.Tensor:
    return x.new_zeros(workspace.size)


def halves(x: torch.Tensor):
    whole = x.new_zeros(2, *x.shape)
    return whole[0], whole[1]
"""

CHILD = f"""
    import gc, json, sys, types, weakref
    sys.path.append({str(TESTS)!r})
    import torch
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from shim.opaque.op import Op, build
    from shim.opaque.remembering import remembering
    from shim.opaque import shadow

    toy = sys.modules["flashinfer.toy"] = types.ModuleType("flashinfer.toy")
    exec(compile(TOY, "toy.py", "exec"), vars(toy))
    made, run = [], shadow.run

    def counted(function, arguments):
        made.append(function)
        return run(function, arguments)

    shadow.run = counted

    def op(name, **declared):
        declaration = Op(name, lambda make, m: {{}}, **declared)
        return build(declaration, getattr(toy, name), release="1.0", preload=False)

    doubled, at_least, both = op("doubled"), op("at_least"), op("both")
    halves = op("halves", returns="(Tensor, Tensor)")
    torch._dynamo.config.capture_scalar_outputs = True
    answers = {{}}

    def runs(call):
        made.clear()
        result = call()
        return len(made), result

    def graphed(function, *args, **options):
        kept = []
        def backend(graph, inputs):
            kept.append(graph)
            return lambda *args: [node.meta["example_value"] for node in outputs(graph)]
        def outputs(graph):
            return [node for node in graph.graph.nodes if node.op == "output"][0].args[0]
        torch._dynamo.reset()
        return torch.compile(function, fullgraph=True, backend=backend, **options)(*args)

    x = torch.arange(12.0).reshape(4, 3)
    graphed(lambda x: doubled(x), x)
    answers["ten calls"] = runs(lambda: graphed(lambda x: [doubled(x) for _ in range(10)], x))[0]
    answers["other numbers"] = runs(
        lambda: graphed(lambda x: [doubled(x, n) for n in (1, 2, 2, 1)], x))[0]
    number, results = runs(lambda: graphed(lambda x, y: [doubled(x), doubled(y)], x, x.t()))
    answers["other strides"] = [number, *(list(each.stride()) for each in results)]

    # Two sizes that are one number now, and another one later.
    torch._dynamo.reset()
    pair = torch.compile(
        lambda x, y: (doubled(x), doubled(y), doubled(x)),
        fullgraph=True, dynamic=True, backend="aot_eager")
    answers["two symbols"] = [
        [list(each.shape) for each in pair(torch.ones(a), torch.ones(b))]
        for a, b in ((8, 8), (5, 7))]

    torch._dynamo.reset()
    threshold = torch.compile(
        lambda x: (at_least(x), at_least(x)), fullgraph=True, dynamic=True, backend="aot_eager")
    answers["a size that is asked for"] = [
        [each.shape[0] for each in threshold(torch.ones(m))] for m in (5, 40, 6, 41)]

    answers["one tensor or two"] = [
        each.shape[0] for each in graphed(lambda x: (both(x, x), both(x, x + 1), both(x, x)), x)]
    number, results = runs(lambda: graphed(lambda x: [*halves(x), *halves(x)], x))
    answers["two results in one memory"] = [number, *(list(each.shape) for each in results)]

    def traced():
        with FakeTensorMode() as mode:
            return make_fx(lambda x: doubled(x) + doubled(x))(torch.empty(4, 3))
    answers["another mode"] = [runs(traced)[0], runs(traced)[0]]

    m = torch.export.Dim("m", min=2, max=64)
    class Model(torch.nn.Module):
        def forward(self, x, y):
            return doubled(x), doubled(y), doubled(x)
    program = torch.export.export(Model(), (torch.ones(8), torch.ones(9)),
                                  dynamic_shapes=({{0: m}}, {{0: torch.export.Dim("n", min=2)}}))
    answers["exported"] = [
        list(each.shape) for each in program.module()(torch.ones(5), torch.ones(7))]

    # The function that remembers, by itself.
    def remembered(name):
        return remembering(lambda arguments: counted(getattr(toy, name), arguments))
    mode = FakeTensorMode()
    with mode:
        fake, number = torch.empty(4, 3), torch.tensor(5)
        known = remembered("doubled")
        answers["the same"] = runs(lambda: [known(dict(x=fake)) for _ in range(3)])[0]
        with torch.autocast("cpu"):
            answers["under autocast"] = runs(lambda: known(dict(x=fake)))[0]
        state = torch.empty(4, 3)
        written = remembered("into")
        answers["an argument"] = runs(lambda: [
            written(dict(x=fake, state=s))[0] is s for s in (state, torch.empty(4, 3), state)])
        workspace, sized = toy.Workspace(), remembered("sized")
        before = sized(dict(x=fake, workspace=workspace))[0].shape[0]
        workspace.size = 7
        answers["an object that changes"] = [
            before, sized(dict(x=fake, workspace=workspace))[0].shape[0]]
        numbered = remembered("first")
        answers["numbers that are known"] = [
            numbered(dict(x=fake, number=torch.tensor(n)))[0].shape[0] for n in (5, 6)]
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env):
        fake, numbers = torch.empty(4), [torch.empty((), dtype=torch.int64) for _ in range(2)]
        sizes = [numbered(dict(x=fake, number=n))[0].shape[0] for n in numbers]
        answers["numbers that nobody knows"] = sizes[0].node.expr != sizes[1].node.expr
    gone = weakref.ref(mode)
    del mode, fake, number, state, sizes
    gc.collect()
    answers["gone with its mode"] = gone() is None
    print(json.dumps(answers))
"""


def test_a_run_in_shadow_is_remembered_for_calls_that_look_alike(run_child: RunChild) -> None:
    answers = run_child(CHILD.replace("TOY", repr(TOY)), release="0.6.3").json
    assert answers["ten calls"] == 1
    assert answers["other numbers"] == 2
    assert answers["other strides"] == [2, [3, 1], [1, 3]]
    assert answers["two symbols"] == [[[8], [8], [8]], [[5], [7], [5]]]
    assert answers["a size that is asked for"] == [[16, 16], [40, 40], [16, 16], [41, 41]]
    assert answers["one tensor or two"] == [1, 2, 1]
    assert answers["two results in one memory"] == [2, *[[4, 3]] * 4]
    assert answers["another mode"] == [1, 1]
    assert answers["exported"] == [[5], [7], [5]]
    assert answers["the same"] == 1
    assert answers["under autocast"] == 1
    assert answers["an argument"] == [1, [True, True, True]]
    assert answers["an object that changes"] == [3, 7]
    assert answers["numbers that are known"] == [5, 6]
    assert answers["numbers that nobody knows"] is True
    assert answers["gone with its mode"] is True
