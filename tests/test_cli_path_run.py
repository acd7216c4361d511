"""``flashinfer-shim path`` and ``run``, and what the command line has in common."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import children
import pytest
import releases
import startup_trees as trees
from conftest import RunChild

import shim
from shim.cli.run import put_first

HERE = str(releases.ROOT)
SHOW_PATH = "import json, os; print(json.dumps(os.environ['PYTHONPATH'].split(os.pathsep)))"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """site-packages with the package as a wheel installs it."""
    site_packages = tmp_path / "site packages"
    shutil.copytree(releases.ROOT / "shim", site_packages / "shim")
    startup = site_packages / "shim" / "startup"
    startup.mkdir()
    shutil.copy(trees.SITECUSTOMIZE, startup)
    return site_packages


@pytest.mark.parametrize("version", trees.SUPPORTED)
def test_path_in_a_checkout_prints_its_root(run_child: RunChild, version: str) -> None:
    python = children.python_or_skip(version)
    child = run_child(None, python=python, args=["-m", "shim", "path"])
    assert (child.stdout, child.stderr, child.returncode) == (HERE + "\n", "", 0)


def test_path_in_a_wheel_prints_the_folder_that_holds_nothing_else(
    run_child: RunChild, installed: Path
) -> None:
    # site-packages may have a sitecustomize.py of somebody else.
    (installed / "sitecustomize.py").write_text("")
    child = run_child(None, args=["-m", "shim", "path"], env=trees.path(installed))
    assert child.stdout == f"{installed}/shim/startup\n", child


def test_path_in_an_editable_install_prints_the_checkouts_root(
    run_child: RunChild, tmp_path: Path
) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "shim").symlink_to(releases.ROOT / "shim")
    child = run_child(None, args=["-m", "shim", "path"], env=trees.path(tmp_path / "linked"))
    assert child.stdout == HERE + "\n", child


@pytest.mark.parametrize("command", [["path"], ["run", "--", "true"]])
def test_an_installation_without_the_startup_file_is_told_how_to_be_repaired(
    run_child: RunChild, installed: Path, command: list[str]
) -> None:
    shutil.rmtree(installed / "shim" / "startup")
    (installed / "sitecustomize.py").write_text("# somebody else's")
    child = run_child(None, args=["-m", "shim", *command], env=trees.path(installed))
    assert (child.stdout, child.returncode) == ("", 1)
    assert f"{installed}/shim/startup" in child.stderr
    assert "install flashinfer-shim again" in child.stderr


def test_path_imports_no_other_command(run_child: RunChild) -> None:
    code = """
        import sys
        from shim.cli import main
        main(["path"])
        heavy = {"asyncio", "importlib.metadata", "packaging", "rich", "torch", "wrapt"}
        print(sorted(heavy & set(sys.modules)))
        print(sorted(name for name in sys.modules if name.startswith("shim.")))
        """
    child = run_child(code, args=["-S"])
    assert child.stdout.splitlines()[1:] == [
        "[]",
        "['shim.cli', 'shim.cli.path', 'shim.location']",
    ], child


def test_run_puts_our_directory_first_and_keeps_the_users(
    run_child: RunChild, installed: Path, tmp_path: Path
) -> None:
    child = run_child(
        None,
        args=["-m", "shim", "run", "--", sys.executable, "-c", SHOW_PATH],
        env=trees.path(installed, "", tmp_path, "relative/entry"),
    )
    startup = f"{installed}/shim/startup"
    assert child.json == [startup, str(installed), "", str(tmp_path), "relative/entry"], child


def test_run_twice_names_our_directory_once(run_child: RunChild, tmp_path: Path) -> None:
    again = [sys.executable, "-m", "shim", "run", "--"]
    child = run_child(
        None,
        args=[*again[1:], *again, *again, sys.executable, "-c", SHOW_PATH],
        env=trees.path(HERE, tmp_path),
    )
    assert child.json == [HERE, str(tmp_path)], child


def test_what_run_starts_is_patched(run_child: RunChild, tmp_path: Path) -> None:
    checkout = trees.checkout(tmp_path / "checkout")
    for name in ("cli", "location.py", "__main__.py", "__init__.py"):
        source, copy = releases.ROOT / "shim" / name, checkout / "shim" / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy)
    code = "import flashinfer; print(flashinfer.answer())"
    child = run_child(
        None,
        args=["-m", "shim", "run", sys.executable, "-c", code],
        env=trees.path(trees.toy_flashinfer(tmp_path / "lib"))
        | {"PYTHONPATH": f"{tmp_path / 'lib'}{os.pathsep}{checkout}"},
    )
    assert (child.stdout, child.stderr) == ("patched\n", "")


@pytest.mark.parametrize("version", trees.SUPPORTED)
@pytest.mark.parametrize("dashes", [["--"], []])
def test_run_hands_every_argument_on(run_child: RunChild, version: str, dashes: list[str]) -> None:
    python = children.python_or_skip(version)
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    arguments = ["--", "-x", "--help", "", "a b", "--version", "--", "check"]
    child = run_child(
        None,
        python=python,
        args=["-m", "shim", "run", *dashes, str(python), "-c", code, *arguments],
    )
    assert child.json == arguments, child


def test_run_becomes_the_command_itself(run_child: RunChild) -> None:
    child = run_child(
        f"""
        import os, subprocess, sys
        shim = [{sys.executable!r}, "-m", "shim", "run", "--", "sh", "-c"]
        process = subprocess.Popen([*shim, "echo $$; exit 7"], stdout=subprocess.PIPE, text=True)
        print(process.communicate()[0].strip() == str(process.pid), process.returncode)
        """
    )
    assert child.stdout == "True 7\n", child


def test_run_leaves_a_pipeline_to_end_as_usual(run_child: RunChild) -> None:
    child = run_child(None, args=["-m", "shim", "run", "sh", "-c", "yes | head -n 1"])
    assert (child.stdout, child.stderr) == ("y\n", "")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["no-such-program-anywhere"], 127, "cannot find the program 'no-such-program-anywhere'"),
        (["./missing/program"], 127, "cannot find the program './missing/program'"),
        (["./child.txt"], 126, "cannot execute './child.txt' (Permission denied)"),
        ([], 2, "no command given"),
    ],
)
@pytest.mark.parametrize("dashes", [["--"], []])
def test_run_says_why_it_cannot_start_a_command(
    run_child: RunChild,
    tmp_path: Path,
    words: list[str],
    status: int,
    said: str,
    dashes: list[str],
) -> None:
    (tmp_path / "child.txt").write_text("")
    child = run_child(None, args=["-m", "shim", "run", *dashes, *words])
    assert (child.stdout, child.returncode) == ("", status)
    assert child.stderr.startswith(f"flashinfer-shim run: {said}"), child
    assert child.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ["/ours"]),
        ("/a", ["/ours", "/a"]),
        ("/a:/b", ["/ours", "/a", "/b"]),
        (":/a", ["/ours", "", "/a"]),
        ("/a:", ["/ours", "/a", ""]),
        ("/a::/b", ["/ours", "/a", "", "/b"]),
        ("/ours", ["/ours"]),
        ("/ours:/a", ["/ours", "/a"]),
        ("/a:/ours/:/b:/ours", ["/ours", "/a", "/b"]),
        (".:ours", ["/ours", ".", "ours"]),
        ("/a:/a", ["/ours", "/a", "/a"]),
    ],
)
def test_put_first_drops_and_adds_nothing_of_the_users(before: str, after: list[str]) -> None:
    result = put_first("/ours", before.replace(":", os.pathsep))
    assert result.split(os.pathsep) == after
    assert put_first("/ours", result) == result


@pytest.mark.parametrize("version", trees.SUPPORTED)
def test_version_and_help_need_no_command(run_child: RunChild, version: str) -> None:
    python = children.python_or_skip(version)
    child = run_child(None, python=python, args=["-m", "shim", "--version"])
    assert (child.stdout, child.returncode) == (f"flashinfer-shim {shim.__version__}\n", 0)
    child = run_child(None, python=python, args=["-m", "shim", "--help"])
    for command in ("check", "prove", "run", "path"):
        assert f"    {command}" in child.stdout
    assert child.returncode == 0
    child = run_child(None, python=python, args=["-m", "shim", "run", "--help"])
    assert "flashinfer-shim run [-h] -- COMMAND" in child.stdout, child


@pytest.mark.parametrize("words", [[], ["pfad"], ["--nonsense"], ["path", "more"]])
def test_wrong_usage_is_told_on_stderr_with_status_2(run_child: RunChild, words: list[str]) -> None:
    child = run_child(None, args=["-m", "shim", *words])
    assert (child.stdout, child.returncode) == ("", 2)
    assert child.stderr.startswith("usage: flashinfer-shim"), child


def test_the_console_script_and_python_dash_m_are_one(run_child: RunChild) -> None:
    code = "from shim.cli import main; raise SystemExit(main())"
    script = run_child(None, args=["-c", code, "path"])
    assert script.stdout == run_child(None, args=["-m", "shim", "path"]).stdout
    assert json.dumps(script.stdout) == json.dumps(HERE + "\n")


def test_a_reader_that_goes_away_is_no_error_of_ours() -> None:
    command = f"{sys.executable} -m shim path | true; echo ${{PIPESTATUS[0]}}"
    for _ in range(3):
        asked = subprocess.run(
            ["bash", "-c", command], cwd=HERE, capture_output=True, text=True, check=True
        )
        assert asked.stdout.strip() in ("0", "141")
        assert asked.stderr == ""


def test_a_full_disk_behind_stdout_is_one_line_and_status_2() -> None:
    with open("/dev/full", "w") as full:
        asked = subprocess.run(
            [sys.executable, "-m", "shim", "path"],
            cwd=HERE,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert asked.returncode == 2
    assert asked.stderr == "flashinfer-shim: stdout cannot be written: No space left on device\n"
