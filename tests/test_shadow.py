"""The shadow world: upstream's own Python, run for its outputs alone, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import RunChild

TESTS = Path(__file__).parent

PRELUDE = f"""
    import gc, itertools, json, sys
    sys.path.append({str(TESTS)!r})
    from child_side import *
    pretend()
    import torch
    import flashinfer
    from flashinfer import fp4_quantize
    from shim.opaque import shadow
    from torch._subclasses.fake_tensor import FakeTensor

    module = sys.modules[fp4_quantize.__module__]
    getter = module.get_fp4_quantization_module

    def described(call):
        try:
            return [
                (*row, t.storage_offset(), t.untyped_storage().nbytes())
                for t, row in ((t, describe([t])[0]) for t in call())
            ]
        except Exception as error:
            return [type(error).__name__, str(error)]
"""

OPINIONS = (
    PRELUDE
    + """
    differ = []
    layouts = ({}, dict(is_sf_8x4_layout=True), dict(is_sf_swizzled_layout=False))
    recipes = (dict(sf_vec_size=16), dict(sf_vec_size=32, sf_use_ue8m0=True), dict(sf_vec_size=8))
    sizes = ((1, 64), (7, 96), (128, 256), (129, 48), (0, 64), (3, 5, 64), (33, 40))
    with fake_cuda():
        scale = torch.empty(1, device="cuda")
        loads = set()
        for size, layout, recipe in itertools.product(sizes, layouts, recipes):
            for swap in (False, True):
                x = torch.empty(size, dtype=torch.bfloat16, device="cuda")
                x = x.transpose(-2, -1) if swap else x
                arguments = dict(input=x, global_scale=scale, **layout, **recipe)
                op = described(lambda: fp4_quantize(**arguments))
                own = described(lambda: shadow.run(fp4_quantize, arguments)[0])
                if op != own:
                    differ.append([size, swap, layout, recipe, op, own])
        x = torch.empty(16, 64, device="cuda")
        _, loaded = shadow.run(fp4_quantize, dict(input=x, global_scale=scale))
    kept = [
        f"{name}.{key}" for name, m in list(sys.modules.items()) if name.startswith("flashinfer")
        for key, value in list(vars(m).items())
        for held in (value, *(value.values() if isinstance(value, dict) else ()))
        if isinstance(held, FakeTensor) or type(held).__module__.startswith("shim.opaque")
    ]
    print(json.dumps([
        differ, kept, getter.cache_info().currsize,
        [[load.getter is getter, load.args] for load in loaded],
    ]))
"""
)


def test_the_shadow_agrees_with_the_written_fake_and_leaves_nothing_behind(
    run_child: RunChild, each_signature: str
) -> None:
    differ, kept, cached, loaded = run_child(OPINIONS, release=each_signature).json
    assert differ == []
    assert kept == []
    assert cached == 0
    assert loaded == [[True, ["120"]]]


TOY = """
import collections, functools, torch, tvm_ffi
from typing import Callable, Tuple
import shlex as unharmful
import somewhere_else
KEPT = {}
COUNT = 0

@functools.cache
def get_toy_module(kind):
    raise RuntimeError("the real module was loaded")

@functools.cache
def _get_compiled_toy_kernel(hidden):
    raise RuntimeError("the real kernel was compiled")

def helper(x):
    global COUNT
    COUNT += 1
    KEPT["workspace"] = torch.empty_like(x)
    return COUNT

def remembers(x):
    helper(x)
    return torch.empty_like(x), helper(x)

def compiled(x):
    _get_compiled_toy_kernel(x.shape[-1])(x)
    return torch.empty_like(x)

def with_a_class(x):
    class Runner:
        size: torch.Size = x.shape
        def forward(self):
            return torch.empty(self.size, device=x.device)
    return Runner().forward()

def importing(x):
    from flashinfer.toy import helper as other
    return other(x)

def recursive(x, depth=2):
    return recursive(x, depth - 1) if depth else torch.empty_like(x)

def elsewhere(x):
    return somewhere_else.launch(x)

def _launches(x):
    return _get_compiled_toy_kernel("launched")(x)

DISPATCH = collections.OrderedDict(first=(_launches, [_launches]))
DISPATCH["itself"] = DISPATCH

def by_table(x):
    DISPATCH["seen"] = torch.empty_like(x)
    launch, more = DISPATCH["itself"]["first"]
    launch(x), more[0](x)
    return torch.empty_like(x)

VALUES = torch.arange(4.0)

def with_a_constant(x):
    return VALUES.to(x.device)[:2] * x[0, :2]

def by_number(x):
    rows, columns = map(int, x.shape)
    assert type(rows) is int and isinstance(rows, int) and int("7") == 7
    assert isinstance(float(rows), float) and float("7") == 7 and type(0.5) is float
    assert type(x) is type(x * 1) and isinstance(int, type) and issubclass(bool, int)
    blocks = max(1, min(rows // 2, 132)) * 0 + min([3, 4])
    return torch.empty(rows + int(2.5), columns + blocks, device=x.device)

ROWS = {4: 6}

def by_size(x):
    return torch.empty(ROWS[x.shape[0]], x.shape[1], device=x.device)

DEGREES = {8: 2}

def by_degree(x, degree):
    return torch.empty(x.shape[0], DEGREES[degree], device=x.device)

def greatest(x):
    return x.max(), x.max(dim=0), x[:, :0].abs().max()

def with_a_number(x):
    return torch.tensor([1.0, 2.0], device=x.device)

@functools.cache
def _get_compiled_pair_kernel(hidden) -> Tuple[Callable, int]:
    raise RuntimeError("the real kernel was compiled")

def tuned(x):
    kernel, rows = _get_compiled_pair_kernel(x.shape[-1])
    with tvm_ffi.use_torch_stream():
        kernel(x, (x.shape[0] + rows - 1) // rows)
    return torch.empty_like(x)

@functools.cache
def _load(program, target):
    raise RuntimeError("the real program was loaded")

class CakeProgram:
    args = ("x",)
    def entry(self, target):
        return _load(self, target).run

PROGRAMS = {"toy": CakeProgram()}

def baked(x):
    program = PROGRAMS["toy"]
    program.entry("sm_120a")(*[x for _ in program.args])
    return torch.empty_like(x)

class AutoTuner:
    pass

class Config:
    dynamic_tensor_specs = ()

class Runner:
    def __init__(self, use):
        self.use = use

    def __call__(self, inputs, tactic):
        return self.use(_get_compiled_toy_kernel("number")(inputs[0]))

def _run_tuned(x, use):
    runner, tactic = AutoTuner.get().choose_one("toy", [Runner(use)], Config(), [x])
    runner([x], tactic=tactic)
    return torch.empty_like(x)

def wants_a_number(x):
    return _run_tuned(x, range)

def is_wrong(x):
    return _run_tuned(x, lambda number: len(3))

def reading(x):
    return torch.empty_like(x) * x.sum().item()
"""

WORLD = (
    PRELUDE
    + """
    import types

    fake = types.ModuleType("flashinfer.toy")
    sys.modules["flashinfer.toy"] = fake
    source = SOURCE
    sys.modules["somewhere_else"] = stranger = types.ModuleType("somewhere_else")
    stranger.launch = lambda x: None
    stranger.launch.__module__ = "somewhere_else"
    exec(compile(source, "toy.py", "exec"), vars(fake))

    answers = {}
    real = torch.empty(4, 8)
    with fake_cuda():
        x = torch.empty(4, 8, device="cuda")
        run = lambda name: shadow.run(getattr(fake, name), dict(x=x))
        (out, count), _ = run("remembers")
        answers["state of a module"] = [count, fake.COUNT, fake.KEPT]
        out, loaded = run("compiled")
        answers["a compiled kernel"] = [
            list(out.shape), [l.getter is fake._get_compiled_toy_kernel for l in loaded]]
        answers["a class in a function"] = list(run("with_a_class")[0].shape)
        answers["an import in a function"] = [run("importing")[0], fake.COUNT]
        answers["recursion"] = list(run("recursive")[0].shape)
        out, loaded = run("by_table")
        answers["a table of functions"] = [
            list(out.shape), [l.args for l in loaded], sorted(fake.DISPATCH)]
        answers["a tensor of a module"] = describe([run("with_a_constant")[0]])
        answers["the greatest of nothing"] = error_of(lambda: run("greatest"))
        answers["a constant"] = describe([run("with_a_number")[0]])
        answers["a kernel with numbers"] = list(run("tuned")[0].shape)
        out, loaded = run("baked")
        answers["a program"] = [
            list(out.shape), [[l.getter is fake._load, l.args[1]] for l in loaded]]
        mode = torch._subclasses.fake_tensor.FakeTensorMode(
            shape_env=torch.fx.experimental.symbolic_shapes.ShapeEnv())
        with mode:
            symbolic = mode.from_tensor(real)
            out, _ = shadow.run(fake.by_number, dict(x=symbolic))
            free = len(mode.shape_env.guards)
            wide, _ = shadow.run(fake.by_degree, dict(x=symbolic, degree=symbolic.shape[1]))
            numbers = [mode.shape_env.replace(n.node.expr).is_number for n in symbolic.shape]
            tied, _ = shadow.run(fake.by_size, dict(x=symbolic))
        answers["numbers of symbolic sizes"] = [describe([out])[0][0], free]
        answers["a table by a number"] = [describe([wide])[0][0], numbers]
        answers["a table by size"] = [describe([tied])[0][0], len(mode.shape_env.guards) > 0]
        with torch._subclasses.fake_tensor.FakeTensorMode():
            x = torch.empty(4, 8, device="cuda")
            answers["a number from a tensor"] = error_of(lambda: run("reading"))
        answers["an unknown launcher"] = error_of(lambda: run("elsewhere"))
        answers["a runner that wants a number"] = list(run("wants_a_number")[0].shape)
        answers["a runner that is wrong"] = error_of(lambda: run("is_wrong"))
    print(json.dumps(answers))
"""
)


def test_upstream_state_is_neither_seen_changed_nor_kept(run_child: RunChild) -> None:
    answers = run_child(WORLD.replace("SOURCE", repr(TOY)), release="0.6.3").json
    assert answers["state of a module"] == [2, 0, {}]
    assert answers["a compiled kernel"] == [[4, 8], [True]]
    assert answers["a class in a function"] == [4, 8]
    assert answers["an import in a function"] == [1, 0]
    assert answers["recursion"] == [4, 8]
    assert answers["a table of functions"] == [
        [4, 8],
        [["launched"], ["launched"]],
        ["first", "itself"],
    ]
    assert answers["a tensor of a module"] == [[[2], [1], "torch.float32", "cuda"]]
    assert answers["a kernel with numbers"] == [4, 8]
    assert answers["a program"] == [[4, 8], [[True, "sm_120a"]]]
    kind, text = answers["a number from a tensor"]
    assert kind == "RuntimeError"
    assert "reading reads a number from a tensor" in text
    kind, text = answers["the greatest of nothing"]
    assert kind == "RuntimeError"
    assert text == "max() of a tensor without elements"
    assert answers["a constant"] == [[[2], [1], "torch.float32", "cuda"]]
    assert answers["a table by a number"] == [[4, 2], [False, True]]
    assert answers["a table by size"] == [[6, 8], True]
    assert answers["numbers of symbolic sizes"] == [[6, 11], 0]
    assert answers["a runner that wants a number"] == [4, 8]
    assert answers["a runner that is wrong"] == ["TypeError", "object of type 'int' has no len()"]
    kind, text = answers["an unknown launcher"]
    assert kind == "UnknownLauncher"
    assert "somewhere_else" in text


LOGGED = """
import torch
from flashinfer.api_logging import flashinfer_api

def gen_numbers(out, x):
    out.copy_(2 * x)

@flashinfer_api
def within(out: torch.Tensor, x: torch.Tensor) -> None:
    gen_numbers(out, x)

@flashinfer_api
def double(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    within(out, x)
    return out

class ToyWrapper:
    @flashinfer_api
    def run(self, x: torch.Tensor) -> torch.Tensor:
        return double(x)
"""

LOGGING = f"""
    import json, os, sys, types
    from pathlib import Path
    sys.path.append({str(TESTS)!r})
    from child_side import pretend
    pretend()
    import torch
    import flashinfer
    from shim.opaque import method, tracking
    from shim.opaque.op import Op, build

    toy = sys.modules["flashinfer.toy"] = types.ModuleType("flashinfer.toy")
    exec(compile(LOGGED, "toy.py", "exec"), vars(toy))
    declare = lambda name: Op(name, lambda make, m: {{}})
    double = build(declare("double"), toy.double, release="1.0", preload=False)
    run = method.build(
        declare("ToyWrapper.run"), toy.ToyWrapper, toy.ToyWrapper.run, release="1.0", preload=False)
    wrapper, x = toy.ToyWrapper(), torch.ones(3, 4)
    tracking.give_handle(wrapper)

    def told():
        log = Path(os.environ["FLASHINFER_LOGDEST"])
        dumps = Path(os.environ["FLASHINFER_DUMP_DIR"])
        calls = log.read_text().count("FlashInfer API Call: ") if log.exists() else 0
        return calls, len(list(dumps.glob("*/"))) if dumps.exists() else 0

    before = told()
    answers = []
    for call in (double, lambda x: run(wrapper, x)):
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        for size in (3, 5):
            assert torch.equal(compiled(torch.ones(size)), torch.full((size,), 2.0))
            answers.append([new - old for new, old in zip(told(), before, strict=True)])
            before = told()
    print(json.dumps(answers))
"""


@pytest.mark.parametrize("release", ["0.6.3", "0.7.4"])
def test_upstreams_log_holds_the_real_calls_and_no_shadow(
    run_child: RunChild, tmp_path: Path, release: str
) -> None:
    env = {
        "FLASHINFER_LOGLEVEL": "10",
        "FLASHINFER_LOGDEST": str(tmp_path / "log"),
        "FLASHINFER_DUMP_DIR": str(tmp_path / "dumps"),
        "TMPDIR": str(tmp_path),
    }
    code = LOGGING.replace("LOGGED", repr(LOGGED))
    answers = run_child(code, release=release, env=env).json
    # The function and the one within, each once for a real call; a method has one more.
    assert answers == [[2, 2], [2, 2], [3, 3], [3, 3]]


SYMBOLIC_KEYS = """
    import torch
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from shim.opaque.shadow import _Set, _Table

    environment = ShapeEnv()
    one, other = environment.create_unbacked_symint(), environment.create_unbacked_symint()
    table, members = _Table(), _Set()
    table[one + 1, "x"] = 1
    members.add(one)
    found = [
        table[one + 1, "x"], table.get((other + 1, "x")), (one, "x") in table,
        one in members, other in members,
    ]
    table[3, "x"] = 2
    try:
        table[one + 1, "x"]
    except TypeError as fault:
        print([*found, "SymInt" in str(fault)])
"""


def test_a_symbolic_key_is_found_by_its_expression_and_ties_no_graph(run_child: RunChild) -> None:
    child = run_child(SYMBOLIC_KEYS)
    assert child.stdout.strip().endswith("[1, None, False, True, False, True]"), child
