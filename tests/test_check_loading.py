"""``check``: whether children of this environment load the shim, and if not why."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from check_command import Checked, by_hand, check, file, parse, pythonpath
from children import Child
from conftest import RunChild
from releases import ROOT, path

EXPORT = 'export PYTHONPATH="$(flashinfer-shim path)${PYTHONPATH:+:$PYTHONPATH}"'

CHAINS = """
import os, sys
from importlib.machinery import PathFinder, SourceFileLoader
behind = sys.path[sys.path.index(os.path.dirname(__file__)) + 1:]
spec = PathFinder.find_spec("sitecustomize", behind)
SourceFileLoader("sitecustomize", spec.origin).load_module()
"""


def loading(checked: Checked) -> Any:
    return checked.report["loading"]


def test_a_path_with_us_in_front_loads_us(run_child: RunChild) -> None:
    checked = check(run_child, release="0.6.3")
    assert loading(checked)["loads"] is True, checked
    assert str(ROOT) in loading(checked)["reason"]


def test_a_process_that_was_activated_otherwise_says_nothing_of_its_children(
    run_child: RunChild,
) -> None:
    code = f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        import shim
        from shim.cli import main
        shim.activate()
        sys.exit(main(["check", "--json"]))
        """
    checked = parse(run_child(code, shim=False, release="0.6.3"))
    assert checked.child.returncode == 1
    assert checked.report["activated_by"] == "activate()"
    assert loading(checked)["loads"] is False, checked
    assert loading(checked)["reason"].startswith("PYTHONPATH does not hold")


def test_a_path_without_us_does_not_and_the_remedy_is_named(run_child: RunChild) -> None:
    checked = parse(by_hand(run_child, release="0.6.3"))
    assert checked.child.returncode == 1
    assert loading(checked) == {
        "loads": False,
        "reason": f"PYTHONPATH does not hold {ROOT}",
        "action": EXPORT,
    }
    assert checked.verdicts["fp4_quantize"] == "pending"

    text = by_hand(run_child, release="0.6.3", arguments=["check"])
    assert "would apply" in text.stdout, text
    assert EXPORT in text.stdout


@pytest.mark.parametrize("flag", ["-E", "-I"])
def test_a_python_that_ignores_the_environment_is_named(flag: str, run_child: RunChild) -> None:
    child = by_hand(run_child, path("0.6.3"), args=[flag], shim=True)
    checked = parse(child)
    assert checked.child.returncode == 1
    assert loading(checked)["loads"] is False
    assert f"started with {flag}" in loading(checked)["reason"]


def test_a_python_without_site_is_named(run_child: RunChild) -> None:
    installed = Path(sysconfig.get_paths()["purelib"])
    checked = parse(by_hand(run_child, path("0.6.3"), installed, args=["-S"], shim=True))
    assert checked.child.returncode == 1
    assert "started with -S" in loading(checked)["reason"]


def test_a_python_without_our_requirements_is_status_2(run_child: RunChild) -> None:
    child = by_hand(run_child, path("0.6.3"), args=["-S"], shim=True)
    assert (child.returncode, child.stdout) == (2, ""), child
    assert "started with -S" in child.stderr
    assert "Traceback" not in child.stderr


def test_a_sitecustomize_in_front_that_does_not_chain_is_named(
    run_child: RunChild, tmp_path: Path
) -> None:
    theirs = file(tmp_path / "theirs" / "sitecustomize.py")
    checked = check(run_child, env=pythonpath(theirs.parent, ROOT, path("0.6.3")))
    assert checked.child.returncode == 1
    found = loading(checked)
    assert found["loads"] is False
    reason = f"{theirs} comes before ours and does not run the next sitecustomize.py"
    assert found["reason"] == reason
    # Such a command puts its file in front again, whatever PYTHONPATH was.
    first, _, where = found["action"].partition("; ")
    assert first == EXPORT
    assert where.endswith("opentelemetry-instrument flashinfer-shim run -- COMMAND")


def test_a_sitecustomize_in_front_that_chains_is_no_obstacle(
    run_child: RunChild, tmp_path: Path
) -> None:
    theirs = file(tmp_path / "theirs" / "sitecustomize.py", CHAINS)
    checked = check(run_child, env=pythonpath(theirs.parent, ROOT, path("0.6.3")))
    assert loading(checked)["loads"] is True, checked
    assert str(theirs) in loading(checked)["reason"]


def test_another_copy_of_the_shim_in_front_is_named(run_child: RunChild, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "shim", copy / "shim")
    shutil.copy(ROOT / "sitecustomize.py", copy)
    child: Child = by_hand(run_child, env=pythonpath(copy, ROOT, path("0.6.3")))
    checked = parse(child)
    assert checked.child.returncode == 1
    assert loading(checked)["loads"] is False
    assert str(copy / "shim") in loading(checked)["reason"]


def test_a_link_to_our_directory_is_our_directory(run_child: RunChild, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(ROOT)
    checked = parse(by_hand(run_child, env=pythonpath(tmp_path / "link", path("0.6.3"))))
    assert loading(checked)["loads"] is True, checked


def test_a_wheels_layout_is_recognised(run_child: RunChild, tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    shutil.copytree(ROOT / "shim", site / "shim")
    startup = site / "shim" / "startup"
    startup.mkdir()
    shutil.copy(ROOT / "sitecustomize.py", startup)
    checked = check(run_child, env=pythonpath(startup, site, path("0.6.3")))
    assert checked.child.returncode == 0, checked
    assert checked.report["shim"]["kind"] == "wheel"
    assert checked.report["shim"]["startup"] == str(startup)

    without = check(run_child, env=pythonpath(site, path("0.6.3")))
    assert loading(without)["reason"] == f"PYTHONPATH does not hold {startup}", without


def test_a_copy_with_a_damaged_file_is_named(run_child: RunChild, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "shim", tmp_path / "site" / "shim")
    shutil.copy(ROOT / "sitecustomize.py", tmp_path / "site")
    damaged = tmp_path / "site" / "shim" / "handover.py"
    damaged.write_text("def cut_off(")
    checked = check(run_child, env=pythonpath(tmp_path / "site", path("0.6.3")))
    assert checked.child.returncode == 1
    assert loading(checked)["loads"] is False, checked
    assert loading(checked)["reason"].startswith(f"{damaged} cannot be used: SyntaxError")
    assert loading(checked)["action"] == "install flashinfer-shim again"


def test_a_copy_without_its_sitecustomize_is_incomplete(
    run_child: RunChild, tmp_path: Path
) -> None:
    site = tmp_path / "site-packages"
    shutil.copytree(ROOT / "shim", site / "shim")
    checked = check(run_child, env=pythonpath(site, path("0.6.3")))
    assert checked.child.returncode == 1
    assert checked.report["shim"]["kind"] == "incomplete"
    assert loading(checked)["action"] == "install flashinfer-shim again"
    assert os.fspath(site) in loading(checked)["reason"]
