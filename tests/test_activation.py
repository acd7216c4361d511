"""activate(), deactivate(), status(): early, late, in threads, and references out of reach."""

from __future__ import annotations

import textwrap
from pathlib import Path

import releases
from conftest import RunChild

TESTS = Path(__file__).parent

LATE = f"""
    import functools, json, sys
    sys.path.append({str(TESTS)!r})
    sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "Gate"]  # as in a notebook
    from child_side import *
    pretend()
    import torch
    import flashinfer
    from flashinfer import fp4_quantize
    from flashinfer.jit import cpp_ext
    import shim
    originals = [fp4_quantize, cpp_ext.get_cuda_version]  # where no rebinding reaches
    hidden = functools.partial(fp4_quantize)

    def compiles(function):
        torch._dynamo.reset()
        with fake_cuda():
            x = torch.empty(32, 256, dtype=torch.bfloat16, device="cuda")
            run = torch.compile(lambda x: function(x, x), fullgraph=True, backend=Counting())
            return error_of(lambda: run(x)) is None
"""


def test_a_late_activation_rebinds_every_copy_and_redirects_hidden_references(
    run_child: RunChild,
) -> None:
    code = (
        LATE
        + """
    answers = dict(
        before=[compiles(fp4_quantize), compiles(hidden)],
        verdicts=[str(r.verdict) for r in shim.activate()],
        rebound=[fp4_quantize is not originals[0], flashinfer.fp4_quantize is fp4_quantize,
                 cpp_ext.get_cuda_version is not originals[1]],
        after=[compiles(fp4_quantize), compiles(hidden)],
        again=[r.verdict == "applied" for r in shim.activate()],
    )
    shim.deactivate()
    answers["back"] = [fp4_quantize is originals[0], flashinfer.fp4_quantize is originals[0],
                       cpp_ext.get_cuda_version is originals[1]]
    answers["off"] = [compiles(fp4_quantize), compiles(hidden)]
    answers["disabled"] = [str(r.verdict) for r in shim.status()]
    shim.deactivate()
    shim.activate()
    answers["on"] = [compiles(fp4_quantize), compiles(hidden), fp4_quantize is not originals[0]]
    print(json.dumps(answers))
    """
    )
    child = run_child(code, release="0.6.3")
    assert child.json == {
        "before": [False, False],
        "verdicts": ["applied", "applied"],
        "rebound": [True, True, True],
        "after": [True, True],
        "again": [True, True],
        "back": [True, True, True],
        "off": [False, False],
        "disabled": ["disabled", "disabled"],
        "on": [True, True, True],
    }


def test_an_early_activation_waits_for_the_import(run_child: RunChild) -> None:
    code = """
        import json, sys
        import shim
        before = [str(r.verdict) for r in shim.activate()]
        loaded = [m for m in ("torch", "flashinfer", "wrapt") if m in sys.modules]
        import flashinfer
        print(json.dumps([before, loaded, [str(r.verdict) for r in shim.status()]]))
    """
    env = {"PYTHONPATH": None}
    paths = [str(TESTS.parent), str(releases.path("0.6.3"))]
    child = run_child(f"import sys; sys.path[:0] = {paths}\n" + textwrap.dedent(code), env=env)
    assert child.json == [["pending", "pending"], [], ["applied", "applied"]]


def test_deactivated_before_the_import_nothing_is_patched(run_child: RunChild) -> None:
    code = """
        import json
        import shim
        shim.deactivate()
        import flashinfer
        print(json.dumps([hasattr(flashinfer.fp4_quantize, "__wrapped__"),
                          [str(r.verdict) for r in shim.status()]]))
    """
    assert run_child(code, release="0.6.3").json == [False, ["disabled", "disabled"]]


def test_status_says_that_flashinfer_was_not_imported(run_child: RunChild) -> None:
    code = """
        import json, sys
        import shim
        records = shim.status()
        print(json.dumps([[str(r.verdict), r.reason, r.target] for r in records]))
    """
    for verdict, reason, target in run_child(code, release="0.6.3").json:
        assert verdict == "pending"
        assert "not been imported" in reason
        assert target.startswith("flashinfer.")


def test_threads_that_import_and_activate_at_once_end_with_one_patch_each(
    run_child: RunChild,
) -> None:
    code = """
        import faulthandler, importlib, json, sys, threading
        faulthandler.dump_traceback_later(120, exit=True)
        import torch, shim
        start, errors = threading.Barrier(24), []
        def work(seed):
            start.wait()
            try:
                for _ in range(20):
                    (shim.activate, shim.status, lambda: None)[seed % 3]()
                importlib.import_module("flashinfer")
                (shim.activate, shim.status, lambda: None)[seed % 3]()
            except Exception as error:
                errors.append(repr(error))
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(24)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        import flashinfer
        from flashinfer.jit.cpp_ext import get_cuda_version
        depth = [hasattr(f, "__wrapped__") and f.__wrapped__.__code__.co_filename
                 if hasattr(f.__wrapped__, "__code__") else "cache"
                 for f in (flashinfer.fp4_quantize, get_cuda_version)]
        print(json.dumps([errors, depth, [str(r.verdict) for r in shim.status()]]))
    """
    errors, depth, verdicts = run_child(code, release="0.6.3").json
    assert errors == []
    assert depth[0].endswith("flashinfer/fp4_quantization.py")
    assert depth[1] == "cache"
    assert verdicts == ["applied", "applied"]


def test_a_fake_module_in_sys_modules_does_not_disturb_a_rebind(run_child: RunChild) -> None:
    code = (
        LATE
        + """
    class Lazy:
        def __getattr__(self, name):
            raise AssertionError("woken")
    sys.modules["lazy"] = Lazy()
    sys.modules["nothing"] = None
    print(json.dumps([str(r.verdict) for r in shim.activate()]))
    """
    )
    assert run_child(code, release="0.6.3").json == ["applied", "applied"]
