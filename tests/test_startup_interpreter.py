"""What the start of an interpreter costs and shows when our directory is on its PYTHONPATH."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import children
import pytest
import startup_trees as trees
from conftest import RunChild

TOO_OLD = ("2.7", "3.6", "3.7", "3.8", "3.9")

LIST_MODULES = "import sys; print('\\n'.join(sorted(sys.modules)))"
HAS_GATE = (
    "import sys; print('_flashinfer_shim_gate' in sys.modules, "
    "any(hasattr(finder, 'flashinfer_shim_gate') for finder in sys.meta_path))"
)
USE_TOY = "import flashinfer; print(flashinfer.answer())"


@pytest.mark.parametrize("version", trees.SUPPORTED)
def test_start_loads_our_two_modules_and_no_other(
    run_child: RunChild, tmp_path: Path, version: str
) -> None:
    python = children.python_or_skip(version)
    bare = run_child(None, python=python, args=["-c", LIST_MODULES], env=trees.path(tmp_path))
    ours = run_child(None, python=python, args=["-c", LIST_MODULES])

    # A distribution's Python may have a sitecustomize already.
    without, with_us = ({"sitecustomize", *child.stdout.split()} for child in (bare, ours))
    assert with_us - without == {"_flashinfer_shim_gate"}
    assert without - with_us == set()
    assert "sitecustomize" in ours.stdout.split()


@pytest.mark.parametrize("version", trees.SUPPORTED)
@pytest.mark.parametrize("code", ["pass", "print('out')", "import sys; sys.exit('wrong')", "1/0"])
def test_start_leaves_stdout_stderr_and_the_exit_status_as_they_are(
    run_child: RunChild, tmp_path: Path, version: str, code: str
) -> None:
    python = children.python_or_skip(version)
    bare = run_child(None, python=python, args=["-c", code], env=trees.path(tmp_path))
    ours = run_child(None, python=python, args=["-c", code])
    assert (ours.stdout, ours.stderr, ours.returncode) == (
        bare.stdout,
        bare.stderr,
        bare.returncode,
    )


@pytest.mark.parametrize("version", TOO_OLD)
def test_an_older_python_reads_our_file_and_nothing_happens(
    run_child: RunChild, tmp_path: Path, version: str
) -> None:
    python = children.python_or_skip(version)
    bare = run_child(None, python=python, args=["-c", LIST_MODULES], env=trees.path(tmp_path))
    ours = run_child(None, python=python, args=["-c", LIST_MODULES])
    assert (ours.stderr, ours.returncode) == ("", 0)
    assert set(ours.stdout.split()) - {"sitecustomize"} == set(bare.stdout.split()) - {
        "sitecustomize"
    }
    gate = run_child(None, python=python, args=["-c", HAS_GATE])
    assert gate.stdout.split("\n")[0] in ("False False", "(False, False)"), gate


@pytest.mark.parametrize("switch", ["-I", "-E", "-S"])
def test_switches_that_turn_site_or_pythonpath_off_turn_us_off(
    run_child: RunChild, switch: str
) -> None:
    assert run_child(None, args=["-c", HAS_GATE]).stdout == "True True\n"
    child = run_child(None, args=[switch, "-c", HAS_GATE])
    assert (child.stdout, child.stderr) == ("False False\n", "")


@pytest.mark.parametrize("layout", [trees.checkout, trees.wheel])
def test_the_package_is_found_in_a_checkout_and_in_a_wheel(
    run_child: RunChild, tmp_path: Path, layout: trees.Layout
) -> None:
    environment = trees.path(layout(tmp_path / "ours"), trees.toy_flashinfer(tmp_path / "lib"))
    assert run_child(None, args=["-c", USE_TOY], env=environment).stdout == "patched\n"


@pytest.mark.parametrize("layout", [trees.checkout, trees.wheel])
def test_an_uninstalled_package_is_silent_while_pythonpath_still_points_at_it(
    run_child: RunChild, tmp_path: Path, layout: trees.Layout
) -> None:
    ours = layout(tmp_path / "ours")
    shutil.rmtree(tmp_path / "ours")
    ours.mkdir(parents=True)
    environment = trees.path(ours, trees.toy_flashinfer(tmp_path / "lib"))
    for code in (HAS_GATE, USE_TOY):
        assert run_child(None, args=["-c", code], env=environment).stderr == ""

    shutil.copy(trees.SITECUSTOMIZE, ours)
    child = run_child(None, args=["-c", HAS_GATE], env=environment)
    assert (child.stdout, child.stderr) == ("False False\n", "")
    child = run_child(None, args=["-c", USE_TOY], env=environment)
    assert (child.stdout, child.stderr) == ("original\n", "")


def test_a_package_that_vanishes_after_start_is_silent(run_child: RunChild, tmp_path: Path) -> None:
    ours = trees.wheel(tmp_path / "ours")
    child = run_child(
        f"""
        import shutil, sys
        shutil.rmtree({str(tmp_path / "ours")!r})
        import flashinfer
        gate = sys.meta_path[0]
        print(flashinfer.answer(), gate.flashinfer_shim_gate, gate.fault)
        """,
        env=trees.path(ours, trees.toy_flashinfer(tmp_path / "lib")),
    )
    assert (child.stdout, child.stderr) == ("original True None\n", "")


WHOLE_HANDOVER = trees.GATE[1].read_text()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("this is no Python\n", "SyntaxError"),
        ("", "AttributeError"),
        (WHOLE_HANDOVER.partition("    def hand_over(")[0], "AttributeError"),
    ],
    ids=["no Python", "empty", "cut off between two methods"],
)
def test_a_damaged_package_leaves_flashinfer_as_it_is(
    run_child: RunChild, tmp_path: Path, text: str, fault: str
) -> None:
    ours = trees.checkout(tmp_path / "ours")
    (ours / "shim" / "handover.py").write_text(text)
    environment = trees.path(ours, trees.toy_flashinfer(tmp_path / "lib"))
    child = run_child(
        """
        import importlib.util, subprocess, sys
        importlib.util.find_spec("flashinfer")  # who only looks is told nothing
        print("looked", file=sys.stderr, flush=True)
        import flashinfer
        print(flashinfer.answer(), sys.meta_path[0].fault, flush=True)
        subprocess.run([sys.executable, "-c", "import flashinfer"], check=True)
        """,
        env=environment,
    )
    assert child.stdout.startswith("original "), child
    assert f"handover.py cannot be used: {fault}" in child.stdout
    looked, line = child.stderr.splitlines()
    assert looked == "looked"
    assert line.startswith("flashinfer-shim: FlashInfer is left as it is: ")
    assert line.endswith("; install flashinfer-shim again")

    child = run_child("import flashinfer", env={**environment, "FLASHINFER_SHIM": "require"})
    assert child.returncode == 1
    last = child.stderr.splitlines()[-1]
    assert last.startswith("ImportError: FLASHINFER_SHIM=require: FlashInfer is left as it"), child
    child = run_child("import flashinfer", env={**environment, "FLASHINFER_SHIM_LOG": "off"})
    assert (child.returncode, child.stderr) == (0, "")


@pytest.mark.parametrize("error", ["SystemExit(3)", "KeyboardInterrupt", "ValueError", "1 / 0"])
def test_no_error_of_our_own_start_reaches_the_interpreter(
    run_child: RunChild, tmp_path: Path, error: str
) -> None:
    ours = trees.wheel(tmp_path / "ours")
    (tmp_path / "ours" / "shim" / "gate.py").write_text(f"raise {error}\n")
    user = trees.write(tmp_path / "user", {"sitecustomize.py": "print('of the user')"})
    child = run_child(None, args=["-c", HAS_GATE], env=trees.path(ours, user))
    assert (child.stdout, child.stderr, child.returncode) == ("of the user\nFalse False\n", "", 0)


def test_start_works_with_stderr_closed(run_child: RunChild, tmp_path: Path) -> None:
    code = "import sys, flashinfer; print(sys.stderr is None, flashinfer.answer())"
    child = run_child(
        None,
        python="sh",
        args=["-c", f'"$0" -c "{code}" 2>&-', sys.executable],
        env=trees.path(trees.checkout(tmp_path / "ours"), trees.toy_flashinfer(tmp_path / "lib")),
    )
    assert child.stdout == "True patched\n", child


def test_a_relative_pythonpath_survives_a_change_of_directory(
    run_child: RunChild, tmp_path: Path
) -> None:
    trees.wheel(tmp_path / "ours")
    child = run_child(
        "import os; os.chdir('/'); import flashinfer; print(flashinfer.answer())",
        env=trees.path("ours/shim/startup", trees.toy_flashinfer(tmp_path / "lib")),
    )
    assert child.stdout == "patched\n", child


def test_our_file_run_as_a_script_runs_no_sitecustomize(
    run_child: RunChild, tmp_path: Path
) -> None:
    ours = trees.checkout(tmp_path / "ours")
    user = trees.write(tmp_path / "user", {"sitecustomize.py": "print('of the user')"})
    child = run_child(None, args=[ours / "sitecustomize.py"], env=trees.path(ours, user))
    assert (child.stdout, child.stderr) == ("of the user\n", "")
