"""What matrix products and mixtures of experts ask of the engine, on functions of its own.

Upstream chooses among backends by a check around the function, which leaves its answer as an
attribute, and among tactics by an autotuner of the whole process; classes launch the kernels.
"""

from __future__ import annotations

from pathlib import Path

from conftest import RunChild

TESTS = Path(__file__).parent

TOY = """
import enum, functools
from typing import List, Optional, Tuple

import torch


def checked(function):
    def chosen(kwargs):
        wrapper.suitable_auto_backends = ["first", "second"]

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if not kwargs.pop("skip_check", False):
            chosen(kwargs)
        return function(*args, **kwargs)

    wrapper.is_backend_supported = lambda backend, cc=None: backend == "first"
    return wrapper


@checked
def product(a: torch.Tensor, b: torch.Tensor, backend: str = "auto") -> torch.Tensor:
    backends = product.suitable_auto_backends if backend == "auto" else [backend]
    out = a.new_empty(a.shape[0], b.shape[1])
    inputs = [a, b, out]
    runner, tactic = AutoTuner.get().choose_one(
        "product", [FastRunner(name) for name in backends], Config(), inputs)
    runner(inputs, tactic=tactic)
    return out


class Spec:
    input_idx, dim_idx = (0,), (-2,)


class Config:
    dynamic_tensor_specs = (Spec(),)


class AutoTuner:
    chosen = []

    @classmethod
    def get(cls):
        return cls()

    def choose_one(self, name, runners, config, inputs):
        AutoTuner.chosen.append(name)
        return runners[1], 7


class Kind(enum.Enum):
    FAST = 1


class Runner:
    made = {}

    def __init__(self, name):
        self.name = name

    def __call__(self, inputs, **options):
        return self.forward(inputs, **options)


class FastRunner(Runner):
    kind = Kind.FAST
    __slots__ = ("extra",)

    def __init__(self, name):
        super().__init__(name)
        self.extra = self.told(name)
        Runner.made[name] = self

    @classmethod
    @functools.lru_cache
    def told(cls, name):
        return cls.__name__ + name

    @property
    def kernel(self):
        return _get_compiled_product_kernel(self.name)

    def forward(self, inputs, tactic):
        assert self.kind is Kind.FAST and isinstance(self, Runner)
        assert isinstance(REAL, FastRunner) and not isinstance(Kind.FAST, FastRunner)
        a, b, out = inputs
        self.kernel(a, b, out, tactic)


REAL = FastRunner("real")


@functools.cache
def _get_compiled_product_kernel(name):
    def kernel(a, b, out, tactic):
        out.copy_(a @ b * (2 if name == "second" else 1) + tactic)
    return kernel


class Layout(enum.IntEnum):
    ROWS = 0
    COLUMNS = 1


def parts(x: torch.Tensor, finish: bool = True, sizes: Tuple[int, int, int] = (1, 2, 3),
          layout: int = Layout.COLUMNS, weights: Optional[List[torch.Tensor]] = None,
          output: Optional[torch.Tensor] = None) -> List[torch.Tensor]:
    assert sizes == (1, 2, 3) and type(layout) is Layout
    out = x * (2 + layout + len(weights or ()))
    return [out] if finish else [out, x + 1, x + 2]
"""

BACKENDS = f"""
    import inspect, json, pickle, sys, types
    sys.path.append({str(TESTS)!r})
    from child_side import error_of, fake_cuda
    import torch
    from shim.opaque import capture, identity, shadow
    from shim.opaque.op import Op, build

    toy = types.ModuleType("flashinfer.toy")
    sys.modules["flashinfer.toy"] = toy
    exec(compile(TOY, "toy.py", "exec"), vars(toy))
    originals = dict(vars(toy))

    def op(name, **declared):
        declaration = Op(name, lambda make, m: {{}}, **declared)
        built = build(declaration, originals[name], release="1.0", preload=False)
        setattr(toy, name, built)
        return built

    def compiled(function, *args, **kwargs):
        torch._dynamo.reset()
        return torch.compile(function, fullgraph=True, backend="eager")(*args, **kwargs)

    answers = {{}}
    product = op("product")
    a, b = torch.eye(3, 4), torch.ones(4, 2)
    expected = (a @ b * 2 + 7).tolist()
    answers["eager"] = product(a, b).tolist() == expected
    answers["attributes"] = [
        product.is_backend_supported("first"), product.suitable_auto_backends,
        vars(product) is vars(originals["product"])]
    answers["signatures"] = [
        str(inspect.signature(product)) == str(inspect.signature(originals["product"])),
        str(inspect.signature(product, follow_wrapped=False)).startswith("(*args, **kwargs)"),
        identity.original_of(product) is originals["product"],
        identity.original_of(originals["product"]) is None]
    answers["pickled"] = pickle.loads(pickle.dumps(product)) is product
    del product.suitable_auto_backends
    toy.AutoTuner.chosen.clear()
    with fake_cuda():
        fake = torch.empty(5, 4, device="cuda"), torch.empty(4, 2, device="cuda")
        out, loaded = shadow.run(originals["product"], dict(a=fake[0], b=fake[1]))
        flat = dict(a=torch.empty(4, device="cuda"), b=fake[1], backend="first")
        answers["no such dimension"] = error_of(
            lambda: shadow.run(originals["product"], flat))[0]
    answers["in shadow"] = [
        list(out.shape), [l.args for l in loaded], list(toy.AutoTuner.chosen),
        list(toy.Runner.made), hasattr(product, "suitable_auto_backends")]
    answers["compiled"] = compiled(lambda a, b: product(a, b), a, b).tolist() == expected
    answers["unchecked"] = compiled(
        lambda a, b: product(a, b, skip_check=True), a, b).tolist() == expected

    parts = op("parts", returns="(Tensor, Tensor, Tensor)", out=("output",),
               results=lambda given: [1] if given.get("finish", True) else [3],
               annotations=dict(weights="Tensors | None"))
    x, own = torch.ones(2), torch.zeros(2)
    answers["a list of one"] = [
        type(r).__name__ + str(len(r)) for r in (parts(x), compiled(lambda x: parts(x), x))]
    answers["a list of three"] = [
        r.tolist() for r in compiled(lambda x: parts(x, finish=False, weights=[x, x]), x)]
    (given,) = compiled(lambda x, out: parts(x, output=out), x, own)
    answers["an output that is ignored"] = [given is own, own.tolist()]
    answers["a number for a member"] = error_of(lambda: compiled(lambda x: parts(x, layout=0), x))
    answers["a member"] = compiled(lambda x: parts(x, layout=toy.Layout.ROWS), x)[0].tolist()

    import flashinfer.autotuner
    tuner = flashinfer.autotuner.AutoTuner.get()
    seen = []
    def run(fail):
        seen.append(tuner.is_tuning_mode)
        if fail:
            raise ValueError
    with flashinfer.autotuner.autotune(True):
        capture.untuned(run, dict(fail=False))
        error_of(lambda: capture.untuned(run, dict(fail=True)))
        seen.append(tuner.is_tuning_mode)
    answers["in a capture"] = seen
    print(json.dumps(answers))
"""


def test_backends_are_checked_tuned_and_run_as_upstream_does(run_child: RunChild) -> None:
    answers = run_child(BACKENDS.replace("TOY", repr(TOY)), release="0.6.3").json
    assert answers["eager"] is True
    assert answers["attributes"] == [True, ["first", "second"], True]
    assert answers["signatures"] == [True, True, True, True]
    assert answers["pickled"] is True
    assert answers["no such dimension"] == "IndexError"
    # The first runner stands for all, and the real tuner, class and function know nothing of it.
    assert answers["in shadow"] == [[5, 2], [["first"]], [], ["real", "first", "second"], False]
    assert answers["compiled"] is True
    assert answers["unchecked"] is True
    assert answers["a list of one"] == ["list1", "list1"]
    assert answers["a list of three"] == [[5.0, 5.0], [2.0, 2.0], [3.0, 3.0]]
    assert answers["an output that is ignored"] == [True, [3.0, 3.0]]
    assert "AssertionError" in " ".join(answers["a number for a member"])
    assert answers["a member"] == [2.0, 2.0]
    assert answers["in a capture"] == [False, False, True]
