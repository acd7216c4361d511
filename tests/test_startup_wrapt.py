"""wrapt's own import hooks, which other tools in the process may use, beside the gate."""

from __future__ import annotations

from pathlib import Path

import pytest
import startup_trees as trees
from conftest import RunChild


@pytest.mark.parametrize("turn", ["ahead", "behind"])
def test_wrapts_post_import_hooks_work_beside_ours(
    run_child: RunChild, tmp_path: Path, turn: str
) -> None:
    child = run_child(
        f"""
        import sys, wrapt
        wrapt.register_post_import_hook(
            lambda module: print("hook", module.answer()), "flashinfer.ops"
        )
        if {turn!r} == "behind":
            wrapts, gate, *rest = sys.meta_path
            sys.meta_path[:] = [gate, wrapts, *rest]
        import flashinfer
        print(flashinfer.answer())
        """,
        env=trees.path(trees.wheel(tmp_path / "ours"), trees.toy_flashinfer(tmp_path / "lib")),
    )
    # Behind us wrapt's hook is called by the loader that we gate, hence before our patch.
    seen = "patched" if turn == "ahead" else "original"
    assert child.stdout == f"hook {seen}\npatched\n", child
