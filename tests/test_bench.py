"""What docs/performance.md says is what was saved; a figure over its limit is told."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


def checked(checkout: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(checkout / "bench" / "page.py"), "--check"]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_tables_of_the_docs_are_those_of_the_saved_runs() -> None:
    done = checked(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_table_that_is_not_of_the_saved_runs_is_told(tmp_path: Path) -> None:
    for part in ("bench", "docs"):
        shutil.copytree(ROOT / part, tmp_path / part)
    run = tmp_path / "bench" / "results" / "stack-gated.json"
    saved: dict[str, Any] = json.loads(run.read_text(encoding="utf-8"))
    saved["microseconds"]["1"]["ours, CUDA graph"]["median"] *= 2
    run.write_text(json.dumps(saved), encoding="utf-8")
    done = checked(tmp_path)
    assert done.returncode == 1
    assert "docs/performance.md" in done.stdout
    assert "docs/decoder.md" not in done.stdout


@pytest.fixture
def goals(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import goals

    return goals


def eager(nanoseconds: float) -> dict[str, Any]:
    return {"eager": {"rmsnorm": {"added by us": {"median": nanoseconds}}}}


def graph(ours: float) -> dict[str, Any]:
    sides = {"ours": {"median": ours}, "registered by hand": {"median": 10.0}}
    return {"calls": {"call in a graph": sides}}


@pytest.mark.parametrize(
    ("what", "saved", "limit"),
    [
        ("eager call of rmsnorm, kernel stubbed", {}, 400),
        ("eager call of rmsnorm, kernel stubbed", eager(100), 400),
        ("eager call of rmsnorm, kernel stubbed", eager(500), 1000),
        ("call in a graph", {}, 1.25),
        ("call in a graph", graph(9), 1.25),
        ("call in a graph", graph(12), 1.4),
        ("file stats, files, processes and module loads of a compiled call", {}, 0),
    ],
)
def test_a_limit_is_twice_what_is_allowed(
    goals: Any, what: str, saved: dict[str, Any], limit: float
) -> None:
    goal = next(goal for goal in goals.GOALS if goal.what.startswith(what))
    assert goal.limit(saved) == pytest.approx(limit)


def test_a_figure_over_its_limit_is_found(goals: Any) -> None:
    import run

    assert run.judge(graph(12), saved=graph(10)) == []
    assert [goal.what for goal in run.judge(graph(13), saved=graph(10))] == ["call in a graph"]
