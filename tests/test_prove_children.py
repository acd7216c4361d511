"""The children of `prove`: their environment, and what becomes of one that does not survive."""

from __future__ import annotations

import os
from pathlib import Path

import children
import pytest
from releases import ROOT

from shim.proof.children import Answers, Side, ask, environment
from shim.proof.examples import WRITTEN

FEW = WRITTEN[:3]  # the first asks for the CUDA version, the others quantize


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Of a user who has a package called flashinfer that says what the test lets it say."""
    (tmp_path / "site" / "flashinfer").mkdir(parents=True)
    return children.environment(tmp_path, release=tmp_path / "site", shim=False)


def ask_a_flashinfer(source: str, environ: dict[str, str], time_limit: float = 300) -> Answers:
    package = Path(environ["PYTHONPATH"]) / "flashinfer"
    (package / "__init__.py").write_text(source)
    said: list[str] = []
    answers = ask("with", FEW, arch=None, tell=said.append, time_limit=time_limit, environ=environ)
    assert said[0] == "with us: importing FlashInfer"
    return answers


def test_the_side_with_us_has_our_directory_in_front_once() -> None:
    theirs = os.pathsep.join(["/a", str(ROOT), "relative", "/b"])
    env = environment("with", {"PYTHONPATH": theirs, "FLASHINFER_SHIM": "require"})
    assert env["PYTHONPATH"] == os.pathsep.join([str(ROOT), "/a", "relative", "/b"])
    assert env["FLASHINFER_SHIM"] == "require"


def test_the_side_without_us_has_all_of_the_users_path_but_our_directory() -> None:
    theirs = os.pathsep.join(["/a", str(ROOT), "relative", "/b"])
    env = environment("without", {"PYTHONPATH": theirs, "OTHER": "kept"})
    assert env["PYTHONPATH"] == os.pathsep.join(["/a", "relative", "/b"])
    assert (env["FLASHINFER_SHIM"], env["OTHER"]) == ("off", "kept")


@pytest.mark.parametrize("theirs", [{}, {"PYTHONPATH": ""}, {"PYTHONPATH": str(ROOT)}])
def test_an_empty_path_is_no_path(theirs: dict[str, str]) -> None:
    assert "PYTHONPATH" not in environment("without", theirs)
    assert environment("with", theirs)["PYTHONPATH"] == str(ROOT)


@pytest.mark.parametrize("side", ["without", "with"])
def test_the_environment_of_the_caller_is_left_alone(side: Side) -> None:
    theirs = {"PYTHONPATH": f"/a{os.pathsep}{ROOT}"}
    environment(side, theirs)
    assert theirs == {"PYTHONPATH": f"/a{os.pathsep}{ROOT}"}


def test_a_child_that_dies_while_importing_fails_every_row_with_its_last_words(
    environ: dict[str, str],
) -> None:
    source = "import os, sys\nprint('last words', file=sys.stderr, flush=True)\nos._exit(7)\n"
    answers = ask_a_flashinfer(source, environ)
    assert answers.results == {}
    fault = "the child ended with status 7: last words"
    assert answers.faults == {example.name: fault for example in FEW}


def test_a_child_that_dies_over_one_example_leaves_the_others_to_the_next_child(
    environ: dict[str, str],
) -> None:
    # Only fp4_quantize kills: the example that asks for the CUDA version just fails to import.
    package = Path(environ["PYTHONPATH"]) / "flashinfer"
    (package / "fp4_quantization.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    answers = ask_a_flashinfer("", environ)
    assert set(answers.faults) == {example.name for example in FEW}
    first, *others = (answers.faults[example.name] for example in FEW)
    assert "No module named 'flashinfer.jit'" in first
    assert {other.partition(":")[0] for other in others} == {"the child ended with status -9"}


def test_a_child_that_falls_silent_is_ended_with_all_that_it_started(
    environ: dict[str, str], tmp_path: Path
) -> None:
    mark = tmp_path / "grandchild"
    os.mkfifo(mark)
    source = (
        "import subprocess, sys, time\n"
        f"held = open({str(mark)!r}, 'w')\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1e6)'],"
        " stdout=held, stdin=subprocess.DEVNULL)\n"
        "time.sleep(1e6)\n"
    )
    reader = os.open(mark, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    answers = ask_a_flashinfer(source, environ, time_limit=10)
    fault = "no answer within 10 s; the child was ended"
    assert answers.faults == {example.name: fault for example in FEW}
    # The end of the pipe: nobody who held its other side lives.
    assert os.read(reader, 1) == b""
    os.close(reader)
