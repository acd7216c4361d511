"""No kernel module is built or loaded inside a CUDA graph capture, and none is left for it.

The machine that runs this has no GPU, so a stream that captures and a context that is initialised
are pretended in the child; the op, the dispatcher and FlashInfer's own getter are the real ones.
"""

from __future__ import annotations

from pathlib import Path

from conftest import RunChild

TESTS = Path(__file__).parent

PRELUDE = f"""
    import functools, json, sys
    sys.path.append({str(TESTS)!r})
    from child_side import *
    pretend()
    import torch
    import flashinfer.fp4_quantization as module
    from shim.opaque.capture import Kernels
    from shim.opaque.launchers import Loaded
"""


TOY = """
import functools

import torch
from flashinfer.autotuner import AutoTuner, TuningConfig

LOADED = []

@functools.cache
def get_toy_module():
    LOADED.append("module")
    return lambda *args: None

@functools.lru_cache(maxsize=4)
def _get_compiled_toy_kernel(hidden, *, dtype):
    LOADED.append(hidden)
    return lambda *args: None

@functools.cache
def _get_compiled_special_kernel(kind):
    raise AssertionError("no call of the test wants it")

class Runner:
    def __call__(self, inputs, tactic=-1):
        _get_compiled_toy_kernel(inputs[0].shape[0], dtype=None)(inputs[0])

def scale(x: torch.Tensor, special: bool = False) -> torch.Tensor:
    get_toy_module()(x)
    _get_compiled_toy_kernel(x.shape[-1], dtype=x.dtype)(x)
    if special:
        _get_compiled_special_kernel("special")(x)
    return torch.empty_like(x)

def write(x: torch.Tensor) -> None:
    get_toy_module()(x)

def tune(x: torch.Tensor) -> torch.Tensor:
    runner, tactic = AutoTuner.get().choose_one("toy", [Runner()], TuningConfig(), [x])
    runner([x], tactic=tactic)
    return torch.empty_like(x)

class Wrapper:
    def plan(self, dtype):
        self._dtype = dtype

    def run(self, x: torch.Tensor) -> torch.Tensor:
        _get_compiled_toy_kernel(x.shape[-1], dtype=self._dtype)(x)
        return torch.empty_like(x)
"""

GUARD = (
    PRELUDE
    + """
    import types
    from shim.opaque import method, tracking
    from shim.opaque.op import Op, build

    toy = sys.modules["flashinfer.toy"] = types.ModuleType("flashinfer.toy")
    exec(compile(TOY, "toy.py", "exec"), vars(toy))
    class OnGpu(torch.Tensor):
        is_cuda = True
        __torch_function__ = torch._C._disabled_torch_function_impl
    on_gpu = lambda *size, dtype=torch.float32: torch.zeros(size, dtype=dtype).as_subclass(OnGpu)
    capturing = False
    torch.cuda.is_initialized = torch.cuda.is_current_stream_capturing = lambda: capturing
    for name, declared in dict(scale={}, write=dict(returns="()"), tune={}).items():
        declaration = Op(name, lambda make, m: {}, **declared)
        build(declaration, getattr(toy, name), release="1.0", preload=False)
    ops = torch.ops.flashinfer_shim
    one = lambda name: next(getattr(getattr(ops, name), o) for o in getattr(ops, name).overloads())
    scale, write, tune = map(one, ("scale", "write", "tune"))

    def captured(call):
        global capturing
        capturing, before = True, list(toy.LOADED)
        try:
            error = error_of(call)
        finally:
            capturing = False
        return error and error[1], toy.LOADED == before

    answers = {}
    x, wide, half = on_gpu(4, 8), on_gpu(4, 16), on_gpu(4, 8, dtype=torch.float16)
    answers["nothing is loaded"] = captured(lambda: scale(x))
    answers["whose fake nobody asked for"] = captured(lambda: write(x))
    answers["outside"] = error_of(lambda: scale(x))
    answers["loaded"] = captured(lambda: scale(x))
    answers["of another size"] = captured(lambda: scale(wide))
    answers["of another dtype"] = captured(lambda: scale(half))
    answers["of another kind"] = captured(lambda: scale(x, True))
    toy._get_compiled_toy_kernel(16, dtype=torch.float32)
    answers["by eager code"] = captured(lambda: scale(wide))
    toy.get_toy_module.cache_clear()
    answers["no longer"] = captured(lambda: scale(x))
    answers["on the CPU"] = captured(lambda: write(torch.zeros(4, 8)))
    answers["first runner"] = captured(lambda: tune(x))
    toy.AutoTuner.get().profiling_cache["some"] = "record"
    # It runs then, and whatever it wants it loads.
    answers["some runner"] = captured(lambda: tune(x))

    declaration = Op("Wrapper.run", lambda make, m: {}, state=("_dtype",))
    method.build(declaration, toy.Wrapper, toy.Wrapper.run, release="1.0", preload=False)
    run = one("Wrapper_run")
    wrapper, other = toy.Wrapper(), toy.Wrapper()
    for made, dtype in ((wrapper, torch.float32), (other, torch.int8)):
        made.plan(dtype)
        tracking.give_handle(made)
    handle = lambda made: getattr(made, tracking.HANDLE)
    answers["of a method"] = [
        captured(lambda: run(handle(made), "", x)) for made in (wrapper, other)]
    print(json.dumps(answers))
    """
)


def test_a_call_that_would_load_a_kernel_inside_a_capture_is_refused_and_no_other(
    run_child: RunChild,
) -> None:
    answers = run_child(GUARD.replace("TOY", repr(TOY)), release="0.6.3").json
    fine = [None, True]

    def wants(answer: list[object], kernel: str) -> bool:
        text, untouched = answer
        return untouched is True and f"wants one ({kernel})" in str(text)

    assert wants(answers["nothing is loaded"], "get_toy_module()")
    assert "call scale once with such arguments" in answers["nothing is loaded"][0]
    assert answers["outside"] is None
    assert wants(answers["whose fake nobody asked for"], "get_toy_module()")
    assert answers["loaded"] == fine
    assert wants(answers["of another size"], "_get_compiled_toy_kernel(16, dtype=torch.float32)")
    assert wants(answers["of another dtype"], "_get_compiled_toy_kernel(8, dtype=torch.float16)")
    assert wants(answers["of another kind"], "_get_compiled_special_kernel('special')")
    assert answers["by eager code"] == fine
    assert wants(answers["no longer"], "get_toy_module()")
    assert answers["on the CPU"] == [None, False]
    assert wants(answers["first runner"], "_get_compiled_toy_kernel(4, dtype=None)")
    assert answers["some runner"] == [None, False]
    planned, other = answers["of a method"]
    assert planned == fine
    assert wants(other, "_get_compiled_toy_kernel(8, dtype=torch.int8)")


FAKES = (
    PRELUDE
    + """
    asked = []
    def getter(architecture):
        asked.append([architecture, torch._C._len_torch_dispatch_stack()])
        raise RuntimeError("no compiler here")
    getter.cache_info = module.get_fp4_quantization_module.cache_info
    module.get_fp4_quantization_module = getter
    torch.cuda.is_initialized = lambda: INITIALISED
    with fake_cuda():
        x = torch.empty(32, 256, dtype=torch.bfloat16, device="cuda")
        run = torch.compile(
            lambda x: module.fp4_quantize(x, x), fullgraph=True, backend=Counting())
        error = error_of(lambda: run(x))
        torch._dynamo.reset()
        run(x)
    print(json.dumps([error, asked]))
"""
)


def test_the_compilers_question_for_the_fake_loads_the_module_once_on_a_gpu(
    run_child: RunChild,
) -> None:
    error, asked = run_child(FAKES.replace("INITIALISED", "True"), release="0.6.3").json
    # What goes wrong in it is left to the real call, which says it better.
    assert error is None
    # For the pretended sm_120, outside every fake mode.
    assert asked == [["120", 0]]


def test_nothing_is_loaded_without_a_gpu_or_when_switched_off(run_child: RunChild) -> None:
    error, asked = run_child(FAKES.replace("INITIALISED", "False"), release="0.6.3").json
    assert (error, asked) == (None, [])
    off = {"FLASHINFER_SHIM_PRELOAD": "0"}
    error, asked = run_child(FAKES.replace("INITIALISED", "True"), release="0.6.3", env=off).json
    assert (error, asked) == (None, [])
