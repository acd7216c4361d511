"""The matrix of versions: its declaration, what came of it, and what the shim makes of that."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import cells
import ops_cases
import pytest
import releases
import startup_trees
import test_wrappers
import write_compatibility
from check_command import check, pythonpath
from children import deviating
from conftest import RunChild
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from shim import matrix
from shim.ledger import Verdict
from shim.matrix import Cell, doubts, refusal
from shim.patches import RELEASES, USUAL
from shim.patches.ops import FAMILIES, OPS
from shim.survey import survey

TESTS = Path(__file__).parent

GOOD = Cell("0.6.3", "2.11.0", "3.12", "13.0", None, 100, (), "2026-11-30")
BAD = GOOD._replace(torch="2.13.0", failed=("test_one", "test_two"), passed=98)
OLD = GOOD._replace(flashinfer="0.5.0", torch="2.9.1", python="3.10")
TRIED = (OLD, OLD._replace(flashinfer="0.5.3"), GOOD, BAD)


# --- the declaration, and what came of it -------------------------------------------------------


def test_each_flashinfer_has_two_torches_and_each_torch_three_and_each_python_is_there() -> None:
    plan = [*cells.plan()]
    assert len(plan) == len(set(plan))
    by_release = {release: [t for r, t in plan if r == release] for release, _ in plan}
    assert min(map(len, by_release.values())) >= 2
    by_torch = {torch: [r for r, t in plan if t == torch] for torch in cells.TORCHES}
    for tried in by_torch.values():
        assert len(tried) >= 3
        assert {RELEASES[0], RELEASES[-1]} <= set(tried)
    assert {torch.python for _, torch in plan} == set(startup_trees.SUPPORTED)


def test_no_release_is_left_out_but_posts_before_the_last() -> None:
    chosen = set(cells.flashinfers())
    assert {Version(release).base_version for release in RELEASES} <= chosen
    left_out = set(RELEASES) - chosen
    assert left_out
    for release in map(Version, left_out):
        later = [v for v in map(Version, chosen) if v.base_version == release.base_version]
        assert max(later) > release
        assert release.is_postrelease


def test_the_core_has_an_op_of_each_family_and_a_wrapper() -> None:
    # Those of models are in the newest releases alone.
    families = [name for name, members in FAMILIES.items() if {op.name for op in members} & CORE]
    assert {*families, "models"} == set(FAMILIES)
    assert set(test_wrappers.CORE) <= OPS.keys()


CORE = set(ops_cases.CORE)


def test_what_came_of_it_is_of_the_matrix_and_of_tests_that_ran() -> None:
    known = matrix.tried()
    assert {(cell.torch, cell.python) for cell in known} <= {
        (torch.version, torch.python) for torch in cells.TORCHES
    }
    assert {cell.flashinfer for cell in known} <= set(RELEASES)
    for cell in known:
        assert cell.passed + len(cell.failed) >= 90, cell
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", cell.date)


def test_the_page_is_written_from_it() -> None:
    page = write_compatibility.PAGE.read_text()
    assert page == write_compatibility.written(page, matrix.tried())


def test_no_other_place_says_otherwise() -> None:
    pythons = sorted({cell.python for cell in matrix.tried()}, key=Version)
    project = (releases.ROOT / "pyproject.toml").read_text()
    wanted = re.search(r'requires-python = "(.+)"', project)
    assert wanted
    assert SpecifierSet(wanted[1]) == SpecifierSet(f">={pythons[0]}")
    assert re.findall(r"Python :: (3\.\d+)", project) == list(startup_trees.SUPPORTED)
    oldest = min(Version(cell.torch) for cell in matrix.tried())
    readme = (releases.ROOT / "README.md").read_text()
    assert f"with torch {oldest.major}.{oldest.minor} or newer" in readme
    assert f"({RELEASES[0]} to {RELEASES[-1]}, " in readme


def test_a_failed_test_shows_in_its_cell_and_by_name() -> None:
    told = "".join(write_compatibility.lines(TRIED))
    assert "| 0.6.3 | | 100 | 98, **2 failed** |\n" in told
    assert "- FlashInfer 0.6.3, torch 2.13.0: `test_one`, `test_two`\n" in told
    assert "| 2.9.1 | 3.10 | CUDA 13.0 | without a GPU | 2 | 2026-11-30 |\n" in told


def test_a_cell_that_is_tried_again_replaces_what_was_known(tmp_path: Path) -> None:
    file = tmp_path / "matrix.json"
    cells.keep([BAD, OLD], file)
    cells.keep([GOOD, BAD._replace(failed=(), passed=100)], file)
    assert matrix.read(file) == (OLD, GOOD, BAD._replace(failed=(), passed=100))


def test_a_pair_that_failed_is_tried_again_as_if_it_had_not(tmp_path: Path) -> None:
    file = tmp_path / "matrix.json"
    cells.keep(TRIED, file)
    for release, torch, left in (
        ("0.6.3", "2.11.0+cu130", TRIED),
        ("0.5.0", "2.13.0", TRIED),
        ("0.6.3", "2.13.1+cpu", TRIED[:-1]),
    ):
        seen: tuple[Cell, ...] = ()
        with suppress(RuntimeError), cells.as_if_new(release, torch, file):
            seen = matrix.read(file)
            raise RuntimeError("pytest ended")
        assert seen == left
        assert matrix.read(file) == TRIED


def test_a_failed_test_and_an_error_end_otherwise_and_other_cells_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = matrix.FILE.stat().st_mtime_ns
    into = ["--into", str(tmp_path / "new" / "cells.json")]
    tried = {"0.6.3": BAD, "0.5.0": OLD}
    monkeypatch.setattr(cells, "attempt", lambda release, only: tried[release])
    assert cells.main(["0.6.3", "0.5.0", *into]) == cells.FAILED not in (0, 1, 2)
    assert matrix.read(Path(into[1])) == (OLD, BAD)
    assert cells.main(["0.5.0", *into]) == 0
    assert matrix.FILE.stat().st_mtime_ns == before


@pytest.mark.parametrize("wrong", [["--take", "gone.json"], ["--torch", "9.9"], ["--only", "x"]])
def test_what_cannot_be_meant_is_an_error(wrong: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cells.main(wrong)


# --- what the shim makes of it ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "torch", "policy", "reason"),
    [
        ("0.6.3", "2.8.0", "adapt", "torch 2.8.0 is older than 2.9"),
        ("0.6.3", "2.9.0", "tested", None),
        ("0.6.3", "2.11.1+cu130", "tested", None),
        ("0.6.3", "2.13.1", "tested", "FlashInfer 0.6.3 with torch 2.13.0 failed 2 of 100 tests"),
        ("0.6.3", "2.13.1", "adapt", None),
        ("0.5.0", "2.13.0", "tested", None),
        ("0.6.3", "3.0.dev1", "tested", None),
        ("0.6.3", "built here", "tested", None),
        ("0.6.3", None, "tested", None),
        (None, "2.11.0", "tested", None),
    ],
)
def test_what_is_too_old_or_failed_is_refused_and_nothing_else(
    release: str | None, torch: str | None, policy: str, reason: str | None
) -> None:
    found = refusal(release, torch, policy, TRIED)
    assert (found and found[0]) == reason


def test_a_pair_that_failed_is_left_alone_until_it_passes_with_a_later_patch() -> None:
    assert refusal("0.6.3", "2.13.1", "tested", (*TRIED, GOOD._replace(torch="2.13.1"))) is None


@pytest.mark.parametrize(
    ("release", "torch", "python", "codes"),
    [
        ("0.6.3", "2.12.0", "3.11", []),  # between two that were tried
        ("0.6.3", "2.15.0", "3.12", ["untested_pair"]),
        ("0.6.3", "2.9.1", "3.12", ["untested_pair"]),
        ("0.5.2", "2.8.0", "3.12", ["untested_pair"]),
        ("0.5.2", "2.12.0", "3.12", []),  # neither was tried
        ("0.5.2", "2.9.0", "3.12", []),  # between two that were tried with it
        ("0.6.3", "2.11.0", "3.14", ["untested_python"]),
        ("0.6.3", None, "3.12", []),
    ],
)
def test_what_lies_outside_of_what_was_tried_is_a_doubt(
    release: str, torch: str | None, python: str, codes: list[str]
) -> None:
    assert [doubt.code for doubt in doubts(release, torch, python, TRIED)] == codes


def test_a_copy_that_knows_of_no_cell_refuses_and_doubts_nothing() -> None:
    assert refusal("0.6.3", "2.0", "tested", ()) is None
    assert doubts("0.6.3", "2.0", "3.9", ()) == ()


@pytest.mark.parametrize("text", ["", "[]", '{"cells": [{"failed": []}]}', '{"cells": 1}'])
def test_a_damaged_file_is_a_reason_and_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "matrix.json"
    file.write_text(text)
    monkeypatch.setattr(matrix, "tried", lambda: matrix.read(file))
    reason, action = refusal("0.6.3", "2.11.0", "tested") or ("", "")
    assert str(file) in reason
    assert "anew" in action
    assert doubts("0.6.3", "2.11.0", "3.12") == ()


def test_every_patch_of_a_pair_that_failed_stands_aside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(matrix, "tried", lambda: TRIED)
    metadata(tmp_path, "2.13.0")
    package = releases.path("0.6.3") / "flashinfer"
    for policy, verdict in (("tested", Verdict.REFUSED), ("adapt", Verdict.PENDING)):
        _, findings = survey(package, [str(tmp_path)], policy)
        there = {f.judgement.verdict for f in findings if f.facts is not None}
        assert there == {verdict}


def test_check_warns_of_a_torch_that_nobody_tried_and_it_is_patched_all_the_same(
    run_child: RunChild, tmp_path: Path
) -> None:
    release = matrix.tried()[-1].flashinfer
    new = metadata(tmp_path / "new", "2.99.0")
    (new / "torch").mkdir()
    (new / "torch" / "__init__.py").touch()
    (new / "torch" / "version.py").write_text("__version__ = '2.99.0'\n")
    checked = check(run_child, env=pythonpath(releases.ROOT, new, releases.path(release)))
    (warning,) = (w for w in checked.report["warnings"] if w["code"] == "untested_pair")
    assert "this torch is 2.99.0" in warning["text"]
    assert f"FlashInfer {release} was tried with torch " in warning["text"]
    assert "flashinfer-shim prove" in warning["action"]
    assert checked.child.returncode == 0
    assert {checked.verdicts[name] for name in USUAL} <= {"pending", "not needed"}

    # The metadata's word alone: what is imported is the torch that is here.
    stated = metadata(tmp_path / "stated", "2.99.0")
    child = run_child(
        f"""
        import json, sys
        sys.path.append({str(TESTS)!r})
        import flashinfer
        from child_side import records
        print(json.dumps(records()))
        """,
        env=pythonpath(releases.ROOT, stated, releases.path(release)),
    )
    assert deviating(child.json) == {}
    assert child.stderr == ""


def metadata(folder: Path, torch: str) -> Path:
    """A directory with nothing but the metadata of a torch."""
    info = folder / f"torch-{torch}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {torch}\n")
    return folder
