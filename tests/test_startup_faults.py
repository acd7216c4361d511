"""Errors of our package: FlashInfer's import succeeds, unless a refusal is meant to stop it."""

from __future__ import annotations

from pathlib import Path

import pytest
import startup_trees as trees
from conftest import RunChild

IN_THE_HOOK = """
import sys

class Refusal(ImportError):
    flashinfer_shim_refusal = True

def engage(gate):
    sys.turns = getattr(sys, "turns", 0) + 1
    raise {error}
"""
IN_A_CALLBACK = """
import sys

class Refusal(ImportError):
    flashinfer_shim_refusal = True

def engage(gate):
    gate.after["flashinfer.ops"] = patch

def patch(module):
    sys.turns = getattr(sys, "turns", 0) + 1
    raise {error}
"""
BROKEN = ["ValueError('ours')", "SyntaxError('ours')", "ImportError('ours')"]

IMPORT_TWICE = """
import sys
for _ in range(2):
    try:
        import flashinfer
    except ImportError as error:
        print("stopped by", error)
    else:
        print(flashinfer.answer())
    print("flashinfer" in sys.modules)
    for name in ("flashinfer", "flashinfer.ops"):
        sys.modules.pop(name, None)
print(sys.turns)
"""


@pytest.fixture(params=trees.SUPPORTED)
def run_child(request: pytest.FixtureRequest, tmp_path: Path) -> RunChild:
    """Each test runs on every interpreter: the import system differs between them."""
    return trees.on_python(request.param, tmp_path)


def _environment(tmp_path: Path, hook: str) -> dict[str, str | None]:
    ours = trees.wheel(tmp_path / "ours", hook)
    return trees.path(ours, trees.toy_flashinfer(tmp_path / "lib"))


@pytest.mark.parametrize("hook", [IN_THE_HOOK, IN_A_CALLBACK])
@pytest.mark.parametrize("error", BROKEN)
def test_an_error_is_kept_and_tried_again_at_the_next_import(
    run_child: RunChild, tmp_path: Path, hook: str, error: str
) -> None:
    environment = _environment(tmp_path, hook.format(error=error))
    child = run_child(IMPORT_TWICE, env=environment)
    assert child.stdout == "original\nTrue\noriginal\nTrue\n2\n", child
    (line,) = child.stderr.splitlines()  # once, though it happened twice
    assert line.startswith("flashinfer-shim: FlashInfer is left as it is"), line
    assert "ours" in line

    quiet = {**environment, "FLASHINFER_SHIM_LOG": "off"}
    child = run_child("import sys, flashinfer; print(sys.meta_path[0].fault)", env=quiet)
    assert child.stdout.startswith("Traceback"), child
    assert f"raise {error}" in child.stdout
    assert child.stderr == ""


@pytest.mark.parametrize("hook", [IN_THE_HOOK, IN_A_CALLBACK])
def test_an_error_stops_the_import_where_the_shim_is_required(
    run_child: RunChild, tmp_path: Path, hook: str
) -> None:
    environment = _environment(tmp_path, hook.format(error="ValueError('ours')"))
    child = run_child("import flashinfer", env={**environment, "FLASHINFER_SHIM": "require"})
    assert child.returncode == 1
    last = child.stderr.splitlines()[-1]
    assert last.startswith("ImportError: FLASHINFER_SHIM=require"), child
    assert "ValueError: ours" in last


def test_a_process_tree_is_told_of_an_error_once(run_child: RunChild, tmp_path: Path) -> None:
    environment = _environment(tmp_path, IN_THE_HOOK.format(error="ValueError('ours')"))
    child = run_child(
        """
        import subprocess, sys, flashinfer
        subprocess.run([sys.executable, "-c", "import flashinfer"], check=True)
        """,
        env=environment,
    )
    assert (child.returncode, len(child.stderr.splitlines())) == (0, 1), child


@pytest.mark.parametrize("hook", [IN_THE_HOOK, IN_A_CALLBACK])
def test_a_refusal_stops_the_import_every_time(
    run_child: RunChild, tmp_path: Path, hook: str
) -> None:
    environment = _environment(tmp_path, hook.format(error="Refusal('require')"))
    child = run_child(IMPORT_TWICE, env=environment)
    assert child.stdout == "stopped by require\nFalse\n" * 2 + "2\n", child


def test_a_package_that_cannot_be_imported_is_a_kept_error(
    run_child: RunChild, tmp_path: Path
) -> None:
    environment = _environment(tmp_path, "import a_requirement_that_is_missing\n")
    child = run_child(
        "import sys, flashinfer; print(flashinfer.answer()); print(sys.meta_path[0].fault)",
        env=environment,
    )
    assert child.stdout.startswith("original\nTraceback"), child
    assert "No module named 'a_requirement_that_is_missing'" in child.stdout
    (line,) = child.stderr.splitlines()
    assert "No module named 'a_requirement_that_is_missing'" in line
    assert "install flashinfer-shim again with what it needs" in line


def test_a_kept_error_is_forgotten_when_a_later_import_goes_well(
    run_child: RunChild, tmp_path: Path
) -> None:
    hook = "import sys\ndef engage(gate):\n    if not hasattr(sys, 'well'): raise ValueError\n"
    child = run_child(
        """
        import importlib, sys, flashinfer
        gate = sys.meta_path[0]
        print(gate.fault is None)
        sys.well = True
        importlib.reload(flashinfer)
        print(gate.fault is None)
        """,
        env=_environment(tmp_path, hook),
    )
    assert child.stdout == "False\nTrue\n", child


def test_an_interrupt_in_the_hook_is_the_users(run_child: RunChild, tmp_path: Path) -> None:
    environment = _environment(tmp_path, "def engage(gate):\n    raise KeyboardInterrupt\n")
    child = run_child(
        """
        try:
            import flashinfer
        except KeyboardInterrupt:
            print("interrupted")
        """,
        env=environment,
    )
    assert child.stdout == "interrupted\n", child
