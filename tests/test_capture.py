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


def test_a_first_call_inside_a_capture_is_refused_before_the_stream_is_touched(
    run_child: RunChild,
) -> None:
    code = (
        PRELUDE
        + """
    class OnGpu(torch.Tensor):
        is_cuda = True
    tensor = torch.zeros(1).as_subclass(OnGpu)
    capturing = True
    torch.cuda.is_current_stream_capturing = lambda: capturing
    getter = functools.cache(lambda architecture: "module")
    kernels = Kernels("fp4_quantize", preload=True)
    kernels.will_load([Loaded(getter, ("120",), ())])
    before = lambda tensor: error_of(lambda: kernels.before_run({"input": tensor}))
    refused, cpu = before(tensor), before(torch.zeros(1))
    capturing = False
    outside = before(tensor)
    capturing = True
    getter("120")
    warm = before(tensor)
    getter.cache_clear()
    kernels.after_run({"input": torch.zeros(1)})
    still = before(tensor)
    kernels.after_run({"input": tensor})
    ran = before(tensor)
    print(json.dumps([refused, cpu, outside, warm, still == refused, ran]))
    """
    )
    refused, cpu, outside, warm, still_refused, ran = run_child(code, release="0.6.3").json
    assert refused is not None
    assert "inside a CUDA graph capture" in refused[1]
    assert "call fp4_quantize once on any small tensor before capturing" in refused[1]
    assert (cpu, outside, warm, ran) == (None, None, None, None)
    assert still_refused


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
