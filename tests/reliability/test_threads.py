"""Threads that import, activate, deactivate and compile at once, and activation half way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from children import ROOT, deviating
from conftest import CopyRelease, RunChild

CHILD = Path(__file__).parent / "threads_child.py"


def test_sixty_four_threads_end_with_one_patch_each(
    run_child: RunChild, figure: Callable[[str], None]
) -> None:
    seen = run_child(None, args=[CHILD], release="0.6.3").json
    assert seen["errors"] == []
    assert seen["applied"] > 100
    assert seen["depths"] == seen["depths_again"] == [1]
    assert seen["not_put_back"] == seen["again"] == []
    done = seen["done"]
    assert done["import_all"] == 32 + 16
    assert done["compile_one"] == 16
    figure(f"threads: 64 at once, twice; {seen['applied']} patches, one each; {dict(done)}")


HALF_WAY = f"""
    import json, sys, threading
    sys.path += [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
    import torch
    from child_side import records

    def in_a_thread():
        import shim
        thread = threading.Thread(target=shim.activate)
        thread.start()
        thread.join()

    def at_once():
        import shim
        shim.activate()

    half_way = {{how}}
    import flashinfer
    first = records()
    import shim
    shim.activate()
    print(json.dumps([first, records()]))
"""


@pytest.mark.parametrize("how", ["in_a_thread", "at_once"])
def test_an_activation_while_a_module_is_half_imported_loses_none(
    how: str, run_child: RunChild, copy_release: CopyRelease
) -> None:
    ends_with_it = {
        "flashinfer/norm.py": lambda text: f"{text}\nimport __main__\n__main__.half_way()\n"
    }
    tree = copy_release("0.6.3", edit=ends_with_it)
    child = run_child(HALF_WAY.format(how=how), release=tree, shim=False)
    for records in child.json:
        assert deviating(records) == {}, child
        # Before it, in the middle of it, and behind it.
        for patch in ("fp4_quantize", "rmsnorm", "top_k"):
            assert records[patch]["verdict"] == "applied", records[patch]
    assert child.stderr == ""


OP_OF_A_MODULE_HALF_IMPORTED = """
    import faulthandler, json, sys, threading, time

    def half_way():
        from shim.opaque import later
        import torch

        names = []
        thread = threading.Thread(
            target=lambda: names.append(str(torch.ops.flashinfer_shim.trtllm_gen_routing))
        )
        thread.start()
        while not waits_for_the_package(sys._current_frames().get(thread.ident)):
            time.sleep(0.01)
        import flashinfer.concat_ops
        threads.append(thread)
        made.append(names)

    def waits_for_the_package(frame):
        waits = False
        while frame is not None:
            waits = waits or frame.f_code.co_name == "acquire"
            if frame.f_code.co_name == "import_module":
                return waits and frame.f_locals["name"] == "flashinfer.fused_moe"
            frame = frame.f_back

    faulthandler.dump_traceback_later(120, exit=True)
    threads, made = [], []
    import flashinfer
    threads[0].join()
    print(json.dumps(made[0]))
"""


@pytest.mark.long
def test_an_op_that_waits_for_a_module_does_not_keep_its_import_waiting(
    run_child: RunChild, copy_release: CopyRelease
) -> None:
    # The types of its arguments are the package's, which another thread is importing.
    ends_with_it = {
        "flashinfer/fused_moe/__init__.py": lambda text: (
            f"{text}\nimport __main__\n__main__.half_way()\n"
        )
    }
    tree = copy_release("0.7.4", edit=ends_with_it)
    child = run_child(OP_OF_A_MODULE_HALF_IMPORTED, release=tree)
    assert child.json == ["flashinfer_shim.trtllm_gen_routing"]
