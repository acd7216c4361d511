"""``audit``: what processes note, what they leave behind, and the report on it."""

from __future__ import annotations

import json
import logging
import re
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import children
import pytest
from conftest import RunChild
from releases import ROOT
from test_check_deep import keys
from torch._logging import _internal

from shim import audit
from shim.audit import breaks, guards, recorder
from shim.audit.recorder import Recorder
from shim.audit.stack import EAGER, Origin

SCRIPT = Path(__file__).with_name("audit_child.py")
DOCUMENT = ROOT / "docs" / "audit.md"
AUDIT = ("-m", "shim", "audit")


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the script's processes left."""
    directory = tmp_path_factory.mktemp("notes")
    child = children.run_child(
        None,
        scratch=tmp_path_factory.mktemp("scratch"),
        release="0.6.3",
        args=[SCRIPT],
        env={"FLASHINFER_SHIM_AUDIT": str(directory), "FLASHINFER_SHIM_REFERENCE": "1"},
    )
    assert (child.returncode, child.stdout) == (0, "Unsupported\n"), child
    # What Dynamo has to say about graph breaks is shown where the user asked for it, else not.
    assert "raph break" not in child.stderr, child
    return directory


@pytest.fixture(scope="module")
def report(notes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    scratch = tmp_path_factory.mktemp("report")
    child = children.run_child(None, scratch=scratch, args=[*AUDIT, "--json", "--read", notes])
    assert (child.returncode, child.stderr) == (0, ""), child
    found: dict[str, Any] = json.loads(child.stdout)
    return found


def lines(function: str) -> str:
    """A pattern for a place in a function of the script."""
    return rf"{re.escape(str(SCRIPT))}:\d+ in {function}"


def test_each_kind_of_call_is_told_by_its_kind_its_place_and_its_number(
    report: dict[str, Any],
) -> None:
    (function,) = report["functions"]
    assert function["patch"] == "fp4_quantize"
    found = [(call["how"], call["by"], call["times"]) for call in function["calls"]]
    assert found == [
        ("eager", "", 1),
        ("traced", f"{SCRIPT} in called_directly", 2),
        ("op", "framework::quantize", 3),
        ("disabled", "switched_off", 3),
        ("alone", "", 2),
        ("traced", "", 1),
        ("traced", f"{SCRIPT} in refused", 1),
        ("eager", "", 2),
    ]
    assert function["compilations"] == 4
    places = ["called_directly"] * 2 + ["own", "switched_off", "given_up", "main", "refused"]
    for call, place in zip(function["calls"], [*places, "in_a_process_of_its_own"], strict=True):
        assert re.fullmatch(lines(place), call["where"])


def test_what_is_in_no_graph_is_a_finding_with_the_reason_and_what_to_do(
    report: dict[str, Any],
) -> None:
    by_kind = {finding["kind"]: finding for finding in report["findings"]}
    assert by_kind.keys() == {"op", "disabled", "alone", "guard", "failure"}
    assert "from inside framework::quantize" in by_kind["op"]["text"]
    assert by_kind["disabled"]["action"] == "take torch.compiler.disable away from switched_off"
    assert "Skipping the function" in by_kind["alone"]["text"]
    assert by_kind["guard"]["functions"] == ["rmsnorm"]
    assert "__main__:guarded" in by_kind["guard"]["text"]
    failures = [finding for finding in report["findings"] if finding["kind"] == "failure"]
    assert any("takes a whole number as argument 'sf_vec_size'" in f["text"] for f in failures)


def test_each_process_has_its_own_file_and_one_that_was_cut_off_says_so(
    report: dict[str, Any], notes: Path
) -> None:
    first, fork, cut_off = report["processes"]
    assert [process["ended"] for process in (first, fork, cut_off)] == [True, True, False]
    assert {fork["parent"], cut_off["parent"]} == {first["pid"]}
    assert [process["calls"] for process in (fork, cut_off)] == [1, 1]
    assert first["activated_by"] == "sitecustomize"
    own = json.loads(next(notes.glob(f"{first['pid']}-*.json")).read_text())
    assert [guard["function"] for guard in own["guards"]] == ["__main__:guarded"]


def test_the_document_names_every_key_and_no_other(report: dict[str, Any]) -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (\S[^|]*) \|", DOCUMENT.read_text(), re.MULTILINE)
    kinds = ("string", "integer", "boolean", "list", "object")
    documented = {key for key, kind in rows if kind.split()[0] in kinds}
    assert set(keys(report)) == documented


@pytest.mark.parametrize("rich", [True, False])
def test_a_person_reads_a_table_and_the_findings(
    rich: bool, notes: Path, run_child: RunChild
) -> None:
    code = f"""
        import sys
        if not {rich}:
            sys.modules["rich"] = None
        from shim.cli import main
        sys.exit(main(["audit", "--read", {str(notes)!r}]))
        """
    child = run_child(code)
    assert child.returncode == 0, child
    rows = [line.split() for line in child.stdout.splitlines()]
    assert ["fp4_quantize", "4", "3", "3", "5"] in rows, child
    prose = " ".join(child.stdout.split())
    assert "no: killed," in prose
    assert "Next: take torch.compiler.disable away from switched_off." in prose


def test_a_command_is_run_and_its_report_goes_where_it_should(
    run_child: RunChild, tmp_path: Path
) -> None:
    code = "import os, sys; print('said', 'shim' in sys.modules); sys.exit(7)"
    command = ["--", sys.executable, "-c", code]
    plain = run_child(None, args=[*AUDIT, *command])
    assert plain.returncode == 7, plain
    said, *report = plain.stdout.splitlines()
    assert said == "said False"
    nobody = "No process has imported FlashInfer with flashinfer-shim loaded"
    assert f"{nobody}, or FLASHINFER_SHIM is off." in report, plain
    idle = [*AUDIT, "--", sys.executable, "-c", "import flashinfer"]
    found = run_child(None, args=idle, release="0.6.3").stdout.strip().splitlines()
    assert found[-1] == "None of FlashInfer's functions that we patch was called.", found
    as_json = run_child(None, args=[*AUDIT, "--json", *command])
    assert (as_json.returncode, as_json.stderr) == (7, "said False\n"), as_json
    assert json.loads(as_json.stdout)["exit_status"] == 7
    file = tmp_path / "audit.json"
    silent = run_child(None, args=[*AUDIT, "--output", file, *command])
    assert (silent.returncode, silent.stdout) == (7, "said False\n"), silent
    assert json.loads(file.read_text())["command"] == command[1:]


def test_wrong_usage_is_told_in_one_line(run_child: RunChild, tmp_path: Path) -> None:
    for arguments, status, said in (
        ([], 2, "expected either a command behind -- or --read DIRECTORY"),
        (["--read", str(tmp_path), "--", "true"], 2, "expected either a command"),
        (["--read", "nowhere"], 2, "'nowhere' is not a directory that exists"),
        (["--output", "no/where", "--", "true"], 2, "does not exist: make it first"),
        (["--", "no-such-program"], 127, "cannot find the program 'no-such-program'"),
    ):
        child = run_child(None, args=[*AUDIT, *arguments])
        assert (child.returncode, child.stdout) == (status, ""), child
        assert said in child.stderr
        assert child.stderr.count("\n") == 1


def test_nothing_is_put_in_a_process_that_is_not_asked_or_has_no_such_directory(
    run_child: RunChild,
) -> None:
    code = """
        import inspect, json, sys
        from flashinfer import rmsnorm
        from shim.opaque import dispatch
        # As tracebacks, debuggers and coverage look for it: by file and line.
        source = inspect.getsource(rmsnorm.__code__).split("\\n")
        print(json.dumps([
            "shim.audit" in sys.modules,
            rmsnorm.__code__.co_filename == dispatch.__file__,
            source[0].strip(),
            source[-2].strip(),
        ]))
        """
    child = run_child(code, release="0.6.3", env={"FLASHINFER_SHIM_AUDIT": "no/where"})
    template = ["def replacement({parameters}):", "return _untraced({parameters})"]
    assert child.json == [False, True, *template], child
    (line,) = child.stderr.splitlines()
    assert "FLASHINFER_SHIM_AUDIT='no/where' is not a directory that exists: make it" in line


def test_a_file_that_cannot_be_written_is_one_line_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_FLASHINFER_SHIM_SAID", "")
    recorder = Recorder(tmp_path / "gone", lambda: ())
    for where in ("one", "two"):
        recorder.call("rmsnorm", Origin(EAGER, "", where), "")
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert "set FLASHINFER_SHIM_AUDIT to a directory that can be written" in line


def test_a_file_that_is_no_audit_is_named_and_the_rest_is_read(
    notes: Path, tmp_path: Path, run_child: RunChild
) -> None:
    for file in notes.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "half.json").write_text('{"schema": 1, "ca')
    child = run_child(None, args=[*AUDIT, "--json", "--read", tmp_path])
    report = json.loads(child.stdout)
    assert report["unreadable"] == [str(tmp_path / "half.json")], child
    assert len(report["processes"]) == 3


def test_a_fault_of_ours_does_not_reach_the_call_that_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_FLASHINFER_SHIM_SAID", "")
    monkeypatch.setattr(recorder, "_recorder", Recorder(tmp_path, lambda: 1 / 0))  # type: ignore[arg-type, return-value]
    watched = audit.watch("rmsnorm", lambda x: x)
    assert watched(3) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "the audit has missed something: ZeroDivisionError" in line
    assert "unset FLASHINFER_SHIM_AUDIT" in line


def test_a_module_that_is_to_be_imported_lazily_is_not_woken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise ImportError(f"woken by {name}")

    holder = ModuleType("holder")
    holder.lazy = Lazy("lazy")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "holder", holder)
    monkeypatch.setitem(sys.modules, "lazy", holder.lazy)
    assert not guards._uses_flashinfer(holder)
    assert not guards._is_running(holder.lazy)


def test_a_graph_break_that_the_user_asked_to_see_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted: list[breaks.Break] = []
    make = partial(breaks._Listener, noted.append)
    logger = "torch._dynamo.symbolic_convert.__graph_breaks"
    text = "Graph break in user code at a.py:3\nGraph Break Reason: why"
    record = logging.LogRecord(logger, logging.DEBUG, "", 0, text, (), None)
    assert [make(shown=shown).filter(record) for shown in (True, False)] == [True, False]
    assert [found.reason for found in noted] == ["why", "why"]
    monkeypatch.setattr(_internal, "log_state", _internal.LogState())
    _internal.log_state.enable_artifact("graph_breaks")  # as set_logs does
    assert make(shown=False).filter(record)
