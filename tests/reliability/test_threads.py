"""Threads that import, activate, deactivate and compile at once, and activation half way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from conftest import RunChild

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
