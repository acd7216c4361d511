"""activate(), deactivate(), status(): early, late, in threads, and references out of reach."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import releases
from children import deviating
from conftest import RunChild

from shim.patches import NAMES

TESTS = Path(__file__).parent
PARTIAL = "single_prefill_with_kv_cache_return_lse"

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


@pytest.mark.core
def test_a_late_activation_rebinds_every_copy_and_redirects_hidden_references(
    run_child: RunChild,
) -> None:
    code = (
        LATE
        + """
    before = [compiles(fp4_quantize), compiles(hidden)]
    said = list({(r.verdict, r.reason, r.action) for r in shim.status()})
    first = shim.activate()
    answers = dict(
        before=before,
        said=said,
        records=records(),
        rebound=[fp4_quantize is not originals[0], flashinfer.fp4_quantize is fp4_quantize,
                 cpp_ext.get_cuda_version is not originals[1]],
        after=[compiles(fp4_quantize), compiles(hidden)],
        again=shim.activate() == first,
    )
    shim.deactivate()
    answers["back"] = [fp4_quantize is originals[0], flashinfer.fp4_quantize is originals[0],
                       cpp_ext.get_cuda_version is originals[1]]
    answers["off"] = [compiles(fp4_quantize), compiles(hidden)]
    answers["disabled"] = list({str(r.verdict) for r in shim.status()})
    shim.deactivate()
    shim.activate()
    answers["on"] = [compiles(fp4_quantize), compiles(hidden), fp4_quantize is not originals[0]]
    print(json.dumps(answers))
    """
    )
    answers = run_child(code, release=releases.asked("0.6.3")[0]).json
    assert deviating(answers.pop("records")) == {}
    assert answers == {
        "before": [False, False],
        "said": [
            ["pending", "FlashInfer was imported without us in this process", "call activate()"]
        ],
        "rebound": [True, True, True],
        "after": [True, True],
        "again": True,
        "back": [True, True, True],
        "off": [False, False],
        "disabled": ["disabled"],
        "on": [True, True, True],
    }


def test_a_late_activation_makes_ops_of_every_family(run_child: RunChild) -> None:
    code = (
        LATE
        + """
    from flashinfer import rmsnorm, silu_and_mul
    hidden = [functools.partial(rmsnorm), functools.partial(silu_and_mul)]
    shim.activate()

    def ops(function, *shapes):
        torch._dynamo.reset()
        counting = Counting()
        with fake_cuda():
            tensors = [torch.empty(shape, dtype=torch.bfloat16, device="cuda") for shape in shapes]
            torch.compile(lambda *t: function(*t), fullgraph=True, backend=counting)(*tensors)
        return [name.rpartition(".")[0] for graph in counting.ops() for name in graph]

    print(json.dumps([
        ops(rmsnorm, (32, 256), (256,)), ops(hidden[0], (32, 256), (256,)),
        ops(silu_and_mul, (32, 512)), ops(hidden[1], (32, 512)),
    ]))
    """
    )
    norm, gated = ["flashinfer_shim.rmsnorm"], ["flashinfer_shim.silu_and_mul"]
    assert run_child(code, release="0.6.3").json == [norm, norm, gated, gated]


def test_a_partial_of_a_function_is_an_op_too(run_child: RunChild) -> None:
    code = f"""
        import json, sys
        sys.path.append({str(TESTS)!r})
        from child_side import *
        pretend()
        import flashinfer, shim, torch
        from flashinfer import prefill

        ours, partial = [prefill.single_prefill_with_kv_cache], flashinfer.{PARTIAL}

        def ops():
            torch._dynamo.reset()
            counting = Counting()
            with fake_cuda():
                q = torch.empty(33, 2, 128, dtype=torch.bfloat16, device="cuda")
                found = torch.compile(partial, fullgraph=True, backend=counting)(q, q, q)
            return [len(found), counting.ops()[0][0].rpartition(".")[0]]

        answers = [partial is prefill.{PARTIAL}, partial.func is ours[0], partial.keywords, ops()]
        shim.deactivate()
        back = partial.func is prefill.single_prefill_with_kv_cache is not ours[0]
        print(json.dumps([*answers, partial is flashinfer.{PARTIAL}, back]))
    """
    found = run_child(code, release="0.6.3").json
    op = "flashinfer_shim.single_prefill_with_kv_cache"
    assert found == [True, True, {"return_lse": True}, [2, op], True, True]


def test_an_early_activation_waits_for_the_import(run_child: RunChild) -> None:
    code = """
        import json
        import shim
        before = list({str(r.verdict) for r in shim.activate()})
        loaded = [m for m in ("torch", "flashinfer", "wrapt") if m in sys.modules]
        import flashinfer
        sys.path.append(TESTS)
        from child_side import records
        print(json.dumps([before, loaded, records()]))
    """.replace("TESTS", repr(str(TESTS)))
    env = {"PYTHONPATH": None}
    paths = [str(TESTS.parent), str(releases.path("0.6.3"))]
    child = run_child(f"import sys; sys.path[:0] = {paths}\n" + textwrap.dedent(code), env=env)
    before, loaded, records = child.json
    assert (before, loaded) == (["pending"], [])
    assert deviating(records) == {}


def test_deactivated_before_the_import_nothing_is_patched(run_child: RunChild) -> None:
    code = """
        import json
        import shim
        shim.deactivate()
        import flashinfer
        print(json.dumps([hasattr(flashinfer.fp4_quantize, "__wrapped__"),
                          list({str(r.verdict) for r in shim.status()})]))
    """
    assert run_child(code, release="0.6.3").json == [False, ["disabled"]]


def test_status_says_that_flashinfer_was_not_imported(run_child: RunChild) -> None:
    code = """
        import json, sys
        import shim
        records = shim.status()
        print(json.dumps([[str(r.verdict), r.reason, r.target] for r in records]))
    """
    records = run_child(code, release="0.6.3").json
    assert len(records) == len(NAMES)
    for verdict, reason, target in records:
        assert verdict == "pending"
        assert "not been imported" in reason
        assert target.startswith("flashinfer.")


def test_threads_that_import_and_activate_at_once_end_with_one_patch_each(
    run_child: RunChild,
) -> None:
    code = f"""
        import faulthandler, importlib, json, sys, threading
        sys.path.append({str(TESTS)!r})
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
        from child_side import records
        from flashinfer.jit.cpp_ext import get_cuda_version
        depth = [hasattr(f, "__wrapped__") and f.__wrapped__.__code__.co_filename
                 if hasattr(f.__wrapped__, "__code__") else "cache"
                 for f in (flashinfer.fp4_quantize, get_cuda_version)]
        print(json.dumps([errors, depth, records()]))
    """
    errors, depth, records = run_child(code, release="0.6.3").json
    assert errors == []
    assert depth[0].endswith("flashinfer/fp4_quantization.py")
    assert depth[1] == "cache"
    assert deviating(records) == {}


def test_a_fake_module_in_sys_modules_does_not_disturb_a_rebind(run_child: RunChild) -> None:
    code = (
        LATE
        + """
    class Lazy:
        def __getattr__(self, name):
            raise AssertionError("woken")
    sys.modules["lazy"] = Lazy()
    sys.modules["nothing"] = None
    shim.activate()
    print(json.dumps(records()))
    """
    )
    assert deviating(run_child(code, release="0.6.3").json) == {}
