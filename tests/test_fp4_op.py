"""fp4_quantize as an op, on every release, and the fault that it cures shown without us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import releases
from conftest import RunChild

pytestmark = pytest.mark.early

TESTS = Path(__file__).parent

PRELUDE = f"""
    import inspect, json, sys
    sys.path.append({str(TESTS)!r})
    from child_side import *
    pretend()
    import torch
    from flashinfer import fp4_quantize
"""

SIZES = (32, 48, 1, 129, 200, 0, 7, 512)

COMPILES = (
    PRELUDE
    + f"""
    counting = Counting()
    compiled = torch.compile(
        lambda x, s: fp4_quantize(x, s), fullgraph=True, backend=counting, dynamic=True
    )
    with fake_cuda():
        scale = torch.empty(1, device="cuda")
        inputs = [torch.empty(m, 256, dtype=torch.bfloat16, device="cuda") for m in {SIZES}]
        error = error_of(lambda: compiled(inputs[0], scale))
        shapes = [] if error else [describe(compiled(x, scale)) for x in inputs]
    print(json.dumps(dict(error=error, ops=counting.ops(), shapes=shapes)))
"""
)


def test_it_fails_without_us_and_compiles_whole_with_us(
    run_child: RunChild, each_signature: str
) -> None:
    without = run_child(COMPILES, release=each_signature, shim=False).json
    assert without["error"] is not None
    assert without["error"][0] == "Unsupported"

    answer = run_child(COMPILES, release=each_signature).json
    assert answer["error"] is None
    # One graph for all sizes, one for a batch of 1 and one for an empty one.
    assert len(answer["ops"]) <= 3
    for ops in answer["ops"]:
        assert ops[0].startswith(
            f"flashinfer_shim.fp4_quantize.v{each_signature.replace('.', '_')}_"
        )
    for m, (x_q, sf) in zip(SIZES, answer["shapes"], strict=True):
        rows = -(-m // 128) * 128
        assert x_q == [[m, 128], [128, 1], "torch.uint8", "cuda"]
        assert sf == [[rows, 16], [16, 1], "torch.uint8", "cuda"]


# --- every way of tracing -----------------------------------------------------------------------

EVERYWHERE = (
    PRELUDE
    + """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    def call(x, s):
        return fp4_quantize(x, s)

    class Module(torch.nn.Module):
        def forward(self, x, s):
            return fp4_quantize(global_scale=s, input=x, enable_pdl=False)

    answers = {}
    with fake_cuda():
        x = torch.empty(33, 256, dtype=torch.bfloat16, device="cuda")
        s = torch.empty((), device="cuda")
        answers["a fake mode"] = describe(call(x, s))
        with torch.no_grad():
            answers["no_grad"] = describe(call(x, s))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            answers["autocast"] = describe(call(x, s))
    graph = make_fx(call, tracing_mode="fake")(torch.empty(33, 256), torch.empty(()))
    answers["make_fx"] = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
    graph = make_fx(call, tracing_mode="symbolic")(torch.empty(33, 256), torch.empty(()))
    answers["make_fx symbolic"] = [
        str(n.target) for n in graph.graph.nodes if "quantize" in str(n.target)
    ]
    for strict in (True, False):
        program = torch.export.export(
            Module(),
            (torch.empty(33, 256), torch.empty(())),
            dynamic_shapes={"x": {0: torch.export.Dim("m", min=2)}, "s": None},
            strict=strict,
        )
        answers[f"export {strict=}"] = [
            str(n.target) for n in program.graph.nodes if "quantize" in str(n.target)
        ]
    print(json.dumps(answers))
"""
)


@pytest.mark.core
def test_everybody_who_traces_gets_the_op(run_child: RunChild, each_signature: str) -> None:
    answers = run_child(EVERYWHERE, release=each_signature).json
    quantized = [
        [[33, 128], [128, 1], "torch.uint8", "cuda"],
        [[128, 16], [16, 1], "torch.uint8", "cuda"],
    ]
    op = f"flashinfer_shim.fp4_quantize.v{each_signature.replace('.', '_')}_"
    for way in ("a fake mode", "no_grad", "autocast"):
        assert answers[way] == quantized, way
    assert answers["make_fx"][0].startswith(op)
    for way in ("make_fx symbolic", "export strict=True", "export strict=False"):
        (target,) = answers[way]
        assert target.startswith(op), way


# --- values, by the reference kernel ------------------------------------------------------------

VALUES = (
    PRELUDE
    + """
    def quantize(x, s):
        return fp4_quantize(x, s)

    def doubled(x, s):
        return fp4_quantize(x * 2, s)

    def recipes(x, s):
        linear = fp4_quantize(x, s, 16, False, False)
        small = fp4_quantize(x, s, is_sf_8x4_layout=True)
        mx = fp4_quantize(x, None, 32, True)
        return (*linear, *small, *mx)

    def same(a, b):
        return all(
            torch.equal(p, q) and p.stride() == q.stride() for p, q in zip(a, b, strict=True)
        )

    def inputs():
        torch.manual_seed(0)
        for m in (33, 1, 0, 129):
            yield f"{m} rows", torch.randn(m, 256, dtype=torch.bfloat16)
        yield "column-major", torch.randn(256, 64, dtype=torch.bfloat16).t()
        yield "3-D", torch.randn(3, 5, 64, dtype=torch.float16)
        yield "3-D column-major", torch.randn(3, 64, 128, dtype=torch.float16).transpose(1, 2)

    scale = torch.tensor(2.5)
    wrong = []
    ways = [("eager", quantize), ("eager", recipes), ("aot_eager", doubled), ("inductor", doubled),
            ("inductor", recipes)]
    for backend, function in ways:
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=True, backend=backend)
        for name, x in inputs():
            if not same(function(x, scale), compiled(x, scale)):
                wrong.append([backend, function.__name__, name])
    # The strides (1, 1) of a transposed column count as column-major; Inductor must keep them.
    row = torch.randn(64, 1, dtype=torch.bfloat16).t()
    fails = [error_of(lambda: torch.compile(quantize, backend=b)(row, scale))
             for b in ("eager", "inductor")]
    column = torch.randn(64, 1, dtype=torch.bfloat16)
    torch._dynamo.reset()
    compiled = torch.compile(quantize, fullgraph=True, backend="inductor")
    wrong += [] if same(quantize(column, scale), compiled(column, scale)) else ["(M, 1)"]
    wanting = torch.randn(32, 256, requires_grad=True).to(torch.bfloat16)
    torch._dynamo.reset()
    outputs = torch.compile(quantize, fullgraph=True, backend="aot_eager")(wanting, scale)
    if any(t.requires_grad for t in (*outputs, *quantize(wanting, scale))):
        wrong.append("quantized tensors want no gradient")
    print(json.dumps([wrong, [f is not None for f in fails]]))
"""
)


# `make demo` compares bits and strides on 0.6.3.
@pytest.mark.parametrize("release", [*["0.6.3"] * releases.IS_WHOLE, "0.7.4"])
def test_compiled_and_eager_give_the_same_bits_and_strides(
    run_child: RunChild, release: str
) -> None:
    wrong, fails = run_child(
        VALUES, release=release, env={"FLASHINFER_SHIM_REFERENCE": "1"}, timeout=600
    ).json
    assert wrong == []
    assert fails == [True, True]


def test_without_asking_for_the_reference_a_cpu_tensor_fails_as_upstream_does(
    run_child: RunChild,
) -> None:
    code = (
        PRELUDE
        + """
    print(json.dumps(error_of(lambda: fp4_quantize(torch.zeros(16, 64), torch.ones(1)))))
    """
    )
    # Both stop where the kernel is to be built, with no compiler for the pretended device.
    env = {"PATH": "/nonexistent", "CUDA_HOME": "/nonexistent"}
    without = run_child(code, release="0.6.3", shim=False, env=env).json
    assert without is not None
    assert run_child(code, release="0.6.3", env=env).json == without


# --- the call ------------------------------------------------------------------------------------

ERRORS = (
    PRELUDE
    + """
    def cases():
        x = torch.empty(32, 256, dtype=torch.bfloat16, device="cuda")
        s = torch.empty(1, device="cuda")
        yield "1-D", lambda: fp4_quantize(x[0] if False else torch.empty(256, device="cuda"), s)
        yield "K % vec", lambda: fp4_quantize(torch.empty(4, 40, device="cuda"), s)
        yield "vec", lambda: fp4_quantize(x, s, 8)
        positional = [p for p in inspect.signature(fp4_quantize).parameters.values()
                      if p.kind is not p.KEYWORD_ONLY]
        given = [x, s, *(p.default for p in positional[2:])]
        yield "too many", lambda: fp4_quantize(*given, False)
        yield "unknown", lambda: fp4_quantize(x, s, colour="red")
        yield "missing", lambda: fp4_quantize()
        yield "twice", lambda: fp4_quantize(x, s, input=x)
    with fake_cuda():
        print(json.dumps({name: error_of(call) for name, call in cases()}))
"""
)


def test_wrong_calls_fail_as_in_eager_upstream(run_child: RunChild, each_signature: str) -> None:
    errors = run_child(ERRORS, release=each_signature).json
    assert errors["1-D"][0] == "IndexError"
    assert errors["K % vec"] == ["AssertionError", ""]
    assert errors["vec"] == ["NotImplementedError", "sf_vec_size can only be 16 or 32"]
    for call in ("too many", "unknown", "missing", "twice"):
        assert errors[call] is not None, call


RECIPES = (
    PRELUDE
    + """
    from flashinfer.quantization import NVFP44Over6Config
    given = NVFP44Over6Config(e4m3_max=256, err_mode="MSE")
    calls = {
        "omitted": lambda x, s: fp4_quantize(x, s),
        "none": lambda x, s: fp4_quantize(x, s, nvfp4_4over6=None),
        "built outside": lambda x, s: fp4_quantize(x, s, nvfp4_4over6=given),
        "built inside": lambda x, s: fp4_quantize(
            x, s, nvfp4_4over6=NVFP44Over6Config(e4m3_max=448)),
        "by position": lambda x, s: fp4_quantize(
            x, s, 16, False, True, False, False, None, "cuda", given),
        "wrong": lambda x, s: fp4_quantize(x, s, nvfp4_4over6=3),
    }
    answers = {}
    with fake_cuda():
        x = torch.empty(32, 256, dtype=torch.bfloat16, device="cuda")
        s = torch.empty(1, device="cuda")
        for name, call in calls.items():
            counting = Counting()
            error = error_of(lambda: torch.compile(call, fullgraph=True, backend=counting)(x, s))
            texts = [
                [a for a in (*n.args, *n.kwargs.values()) if isinstance(a, str)]
                for g in counting.graphs for n in g.graph.nodes if "quantize" in str(n.target)
            ]
            answers[name] = error or texts[0]
    # What comes out of the op is what went in.
    from shim.opaque.carry import carrier_for
    carrier = carrier_for(inspect.signature(fp4_quantize, eval_str=True).parameters["nvfp4_4over6"])
    answers["round trips"] = [
        carrier.decode(*carrier.encode(value)) == value
        for value in (None, given, NVFP44Over6Config())
    ]
    print(json.dumps(answers))
"""
)


def test_a_4over6_recipe_travels_as_text_and_two_recipes_never_share_a_call(
    run_child: RunChild,
) -> None:
    answers: dict[str, Any] = run_child(RECIPES, release="0.7.4").json
    given = "e4m3_max=256;err_mode=MSE;err_use_fast_math=False"
    # What is left out stands at its default there, and need not travel.
    assert answers["omitted"] == []
    assert answers["none"] == ["auto", "None"]
    assert answers["built outside"] == ["auto", given]
    assert answers["by position"] == ["cuda", given]
    assert answers["built inside"] == [
        "auto",
        "e4m3_max=448;err_mode=MAE;err_use_fast_math=False",
    ]
    assert "nvfp4_4over6" in answers["wrong"][1]
    assert "3" in answers["wrong"][1]
    assert answers["round trips"] == [True, True, True]


IDENTITY = (
    PRELUDE
    + """
    import copy, pickle, types
    import flashinfer
    from shim.opaque.identity import original_of
    f = fp4_quantize
    original = original_of(f)
    print(json.dumps(dict(
        function=type(f) is types.FunctionType,
        name=(f.__name__, f.__qualname__, f.__module__) ==
             (original.__name__, original.__qualname__, original.__module__),
        doc=f.__doc__ == original.__doc__ and bool(f.__doc__),
        signature=str(inspect.signature(f)) == str(inspect.signature(original)),
        unwrapped=str(inspect.signature(f, follow_wrapped=False)) ==
                  str(inspect.signature(original, follow_wrapped=False)),
        source=inspect.getsource(f) == inspect.getsource(original),
        pickle=pickle.loads(pickle.dumps(f)) is f,
        deepcopy=copy.deepcopy(f) is f,
        attributes=all(vars(f)[k] is v for k, v in vars(original).items() if k != "__wrapped__"),
        everywhere=sys.modules[f.__module__].fp4_quantize is f is flashinfer.fp4_quantize,
    )))
"""
)


def test_the_function_looks_like_the_original(run_child: RunChild, each_signature: str) -> None:
    answers = run_child(IDENTITY, release=each_signature).json
    assert answers == dict.fromkeys(answers, True)


def test_upstreams_own_op_stays_as_it_is(run_child: RunChild) -> None:
    code = """
        import json, flashinfer, torch
        try:
            schema = str(torch.ops.flashinfer.fp4_quantize.default._schema)
        except AttributeError:
            schema = None
        print(json.dumps(schema))
    """
    without = run_child(code, release="0.6.13", shim=False).json
    assert run_child(code, release="0.6.13").json == without


ONE_CACHE = (
    PRELUDE
    + """
    def doubled(x, s):
        return fp4_quantize(x * 2, s, enable_pdl=False)

    x, s = torch.randn(33, 32, dtype=torch.bfloat16), torch.tensor(2.5)
    compiled = torch.compile(doubled, fullgraph=True, backend="inductor")(x, s)
    same = [torch.equal(a, b) for a, b in zip(doubled(x, s), compiled, strict=True)]
    print(json.dumps([same, [list(t.shape) for t in compiled]]))
"""
)


@pytest.mark.core
@pytest.mark.parametrize("release", releases.asked("0.6.18.post1"))
def test_inductor_compiles_it_with_what_stands_before_it(run_child: RunChild, release: str) -> None:
    env = {"FLASHINFER_SHIM_REFERENCE": "1"}
    same, (x_q, _) = run_child(ONE_CACHE, release=release, env=env).json
    assert same == [True, True]
    assert x_q == [33, 16]


def test_a_graph_that_inductor_kept_from_one_release_is_not_served_to_another(
    run_child: RunChild, tmp_path: Path
) -> None:
    # The same code, so the same cache key but for the op's name; other parameters in other
    # places (0.6.11), and other shapes (0.6.8): the columns of scales that 0.6.3 has not.
    env = {"FLASHINFER_SHIM_REFERENCE": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    shapes = []
    for release in ("0.6.3", "0.6.13", "0.6.3"):
        same, shape = run_child(ONE_CACHE, release=release, env=env).json
        assert same == [True, True], release
        shapes.append(shape)
    assert shapes[0] == shapes[2] == [[33, 16], [256, 2]]
    assert shapes[1] == [[33, 16], [128, 4]]
