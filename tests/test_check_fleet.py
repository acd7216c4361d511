"""``check --ray`` and ``--fleet``: what is asked of a node, compared and shown, and what cannot be.

Real clusters and ranks are in ``reliability/``.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import children
import pytest
from check_command import check
from conftest import RunChild
from releases import ROOT

from shim.cli import check_fleet, check_node
from shim.cli.check_fleet import Fleet, node
from shim.cli.check_node import Answer

DOCUMENT = ROOT / "docs" / "fleet.md"
RED = "\x1b[1;31m"

#: Runs the module by its file, as Ray does it in effect: nothing else of ours is there.
ASK = f"""
import json, runpy
print(json.dumps(runpy.run_path({check_node.__file__!r})["ask"]([])))
"""

# Where the tests run, the package is installed.
ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "shim":
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What ``check`` really says of two releases."""
    run = partial(children.run_child, scratch=tmp_path_factory.mktemp("reports"))
    return {release: check(run, release=release).report for release in ("0.6.3", "0.7.4")}


def answer(report: dict[str, Any] | None = None, error: str = "") -> Answer:
    text = json.dumps(report) if report else ""
    return {"host": "h", "text": text, "error": error}


def fleet(**answers: Answer) -> Fleet:
    return Fleet(tuple(node(name, name, each) for name, each in answers.items()), {})


def test_nodes_that_are_alike_and_in_order_are_all_there_is_to_say(
    reports: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    both = fleet(a=answer(reports["0.6.3"]), b=answer(reports["0.6.3"]))
    assert (both.exit_status, both.skew) == (0, ())
    check_fleet.print_text(both)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "2 of 2 in order, and alike."
    assert [line[0] for line in lines if line.startswith(("a ", "b "))] == ["a", "b"]


def test_a_version_that_one_node_has_is_skew_and_so_are_the_verdicts_that_come_of_it(
    reports: dict[str, dict[str, Any]],
) -> None:
    mixed = fleet(
        a=answer(reports["0.6.3"]), b=answer(reports["0.7.4"]), c=answer(reports["0.6.3"])
    )
    assert mixed.exit_status == 1
    version, *verdicts = mixed.skew
    assert (version.of, version.found) == ("FlashInfer", {"0.6.3": ["a", "c"], "0.7.4": ["b"]})
    assert version.usual == "0.6.3"
    assert {skew.usual for skew in verdicts} == {"pending", "not needed"}
    different = {
        one["patch"]
        for one, other in zip(reports["0.6.3"]["patches"], reports["0.7.4"]["patches"], strict=True)
        if one["verdict"] != other["verdict"]
    }
    assert {patch for skew in verdicts for patch in skew.patches} == different


@pytest.mark.parametrize(
    ("heading", "path"),
    [
        ("Python", ("python", "version")),
        ("torch", ("torch", "version")),
        ("torch", ("torch",)),
        ("flashinfer-shim", ("shim", "version")),
    ],
)
def test_each_version_is_compared(
    reports: dict[str, dict[str, Any]], heading: str, path: tuple[str, ...]
) -> None:
    other = copy.deepcopy(reports["0.6.3"])
    place = other
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = None if path == ("torch",) else "9.9"
    mixed = fleet(a=answer(reports["0.6.3"]), b=answer(other))
    (skew,) = mixed.skew
    assert (skew.of, skew.usual, mixed.exit_status) == (heading, None, 1)
    assert skew.found["-" if path == ("torch",) else "9.9"] == ["b"]


def test_a_setting_of_one_node_is_seen_by_its_verdicts(
    reports: dict[str, dict[str, Any]], run_child: RunChild
) -> None:
    env = {"FLASHINFER_SHIM_PATCHES": "-norm"}
    without_norm = check(run_child, release="0.6.3", env=env).report
    assert without_norm["exit_status"] == 0
    mixed = fleet(a=answer(reports["0.6.3"]), b=answer(without_norm))
    assert mixed.exit_status == 1
    assert {word for skew in mixed.skew for word in skew.found} == {
        "pending",
        "not needed",
        "disabled",
    }
    assert all(skew.of.startswith("norm") for skew in mixed.skew)


def test_a_node_of_which_nothing_is_known_is_a_fault_and_no_skew(
    reports: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    newer = {**reports["0.6.3"], "schema": 2}
    three = fleet(a=answer(reports["0.6.3"]), b=answer(error="no driver"), c=answer(newer))
    assert (three.exit_status, three.skew) == (1, ())
    check_fleet.print_text(three)
    text = " ".join(capsys.readouterr().out.split())
    assert "b: no driver." in text
    assert "c: its flashinfer-shim 0.1.0 reports in schema 2, and this one reads 1" in text
    assert text.endswith("2 of 3 not in order: b, c.")


def test_what_is_wrong_on_several_nodes_is_said_once(
    run_child: RunChild, capsys: pytest.CaptureFixture[str]
) -> None:
    off = check(run_child, shim=True).report
    assert (off["exit_status"], off["flashinfer"]) == (1, None)
    check_fleet.print_text(fleet(a=answer(off), b=answer(off)))
    text = " ".join(capsys.readouterr().out.split())
    assert text.count("would stand aside") == 1
    assert "a, b: all" in text


def test_what_differs_from_most_is_red_and_without_rich_it_is_said_all_the_same(
    reports: dict[str, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("rich")
    mixed = fleet(
        a=answer(reports["0.6.3"]), b=answer(reports["0.7.4"]), c=answer(reports["0.6.3"])
    )
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    check_fleet.print_text(mixed)
    coloured = capsys.readouterr().out
    assert re.findall(re.escape(RED) + r"(\S+)", coloured) == ["0.7.4"]

    monkeypatch.setitem(sys.modules, "rich.box", None)
    check_fleet.print_text(mixed)
    plain = capsys.readouterr().out
    assert "\x1b" not in plain
    assert "FlashInfer: 0.6.3 on a, c; 0.7.4 on b." in plain


def test_the_document_names_every_key_of_the_json(reports: dict[str, dict[str, Any]]) -> None:
    mixed = fleet(a=answer(reports["0.6.3"]), b=answer(reports["0.7.4"]))
    found = json.loads(check_fleet.as_json(mixed))
    assert (found["schema"], found["exit_status"]) == (check_fleet.SCHEMA, 1)
    keys = set(found)
    for name in ("nodes", "skew"):
        keys |= {f"{name}[].{key}" for each in found[name] for key in each}
    rows = re.findall(r"^\| `([^`]+)` \| [a-z ]+ \|", DOCUMENT.read_text(), re.MULTILINE)
    assert keys == set(rows)


def test_a_node_without_us_says_so(run_child: RunChild) -> None:
    found = run_child(ABSENT + ASK, release="0.6.3", shim=False).json
    assert found["text"] == ""
    assert found["error"].endswith("cannot import shim: install flashinfer-shim there")


def test_a_node_is_asked_by_the_copy_that_is_loaded_there(
    run_child: RunChild, tmp_path: Path
) -> None:
    other = tmp_path / "shim"  # beside the script, and so in front of ours
    other.mkdir()
    (other / "__init__.py").write_text("")
    found = run_child(ASK, release="0.6.3").json
    assert found["error"] == ""
    assert json.loads(found["text"])["loading"]["loads"] is True


@pytest.mark.parametrize(
    ("cli", "error"),
    [
        ("raise OSError('no such disk')", "its check failed: OSError: no such disk"),
        ("def main(words): raise SystemExit(2)", "its check could not be asked"),
        (
            "import sys\ndef main(words): print('cannot read it', file=sys.stderr); return 2",
            "cannot read it",
        ),
        ("def main(words): return 2", "its check ended with status 2"),
    ],
)
def test_a_check_that_fails_on_a_node_is_reported(
    run_child: RunChild, tmp_path: Path, cli: str, error: str
) -> None:
    (tmp_path / "shim").mkdir()
    (tmp_path / "shim" / "__init__.py").write_text("")
    (tmp_path / "shim" / "cli.py").write_text(cli)
    assert run_child(ASK, shim=False).json["error"] == error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fleet"], "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set"),
        (["--ray"], "cannot import Ray"),
        (["--ray", "--toolchain"], "not allowed with argument"),
        (["--ray", "--timeout", "0"], "expected seconds"),
        (["--ray", ""], "expected an address"),
    ],
)
def test_what_cannot_be_asked_is_status_2_and_says_why(
    run_child: RunChild, arguments: list[str], said: str
) -> None:
    code = f"""
        import sys
        sys.modules["ray"] = None  # as if it were not installed
        from shim.cli import main
        sys.exit(main(["check", *{arguments!r}]))
        """
    child = run_child(code)
    assert (child.returncode, child.stdout) == (2, ""), child
    assert said in child.stderr
    assert "Traceback" not in child.stderr
