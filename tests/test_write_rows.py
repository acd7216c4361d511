"""The script that makes a release a tested one: one number is typed, and the rows follow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import radar_wheels
import releases
import write_rows
from packaging.version import Version

from shim.patches import PATCHES, RELEASES, op_contracts
from shim.patches import releases as listed

#: A declared op of a module that the small release has.
OP = "nvfp4_quantize"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Copies of the two files, which the script then writes; the numbers it may ask for: 99.0."""
    tree = tmp_path / "99.0"
    for name, data in radar_wheels.files("0.7.4").items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(data)

    def only_the_new_one(release: str) -> Path:
        assert release == "99.0"
        return tree

    rows, numbers = tmp_path / "rows.json", tmp_path / "releases.json"
    rows.write_bytes(op_contracts.ROWS.read_bytes())
    monkeypatch.setattr(releases, "path", only_the_new_one)
    monkeypatch.setattr(write_rows, "ROWS", rows)
    monkeypatch.setattr(write_rows, "FILE", numbers)
    return rows, numbers


def edit(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "99.0" / "flashinfer" / "quantization" / "fp4_quantization.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def runs(rows: Path) -> list[tuple[str, str]]:
    return [(run["since"], run["until"]) for run in json.loads(rows.read_text())[OP]]


def test_a_function_that_stayed_is_in_the_run_that_it_was_in(written: tuple[Path, Path]) -> None:
    rows, numbers = written
    *before, (since, until) = runs(rows)
    assert until == RELEASES[-1]
    write_rows.main(["99.0"])
    assert json.loads(numbers.read_text()) == [*RELEASES, "99.0"]
    assert runs(rows) == [*before, (since, "99.0")]


def test_a_function_that_changed_begins_a_run_and_one_that_is_cured_ends_it(
    written: tuple[Path, Path], tmp_path: Path
) -> None:
    rows, _ = written
    before = runs(rows)
    edit(tmp_path, f"\ndef {OP}(\n", f"\ndef {OP}(\n    kind,\n")
    write_rows.main(["99.0"])
    assert runs(rows) == [*before, ("99.0", "99.0")]
    assert json.loads(rows.read_text())[OP][-1]["signature"].startswith("kind, ")

    rows.write_bytes(op_contracts.ROWS.read_bytes())
    edit(tmp_path, f"\ndef {OP}(\n", f"\n@torch.library.custom_op\ndef {OP}(\n")
    write_rows.main(["99.0"])
    assert runs(rows) == before


def test_what_is_no_number_is_refused_before_anything_is_written(
    written: tuple[Path, Path],
) -> None:
    with pytest.raises(SystemExit, match="expected the number of a release"):
        write_rows.main(["newest"])
    assert not written[1].exists()


def test_the_tests_take_the_newest_release_from_the_list() -> None:
    assert releases.RELEASES[-1] == RELEASES[-1]
    assert json.loads(listed.FILE.read_text()) == list(RELEASES)


def test_rows_written_by_hand_reach_to_the_newest_release() -> None:
    by_hand = [p for p in PATCHES if p.name in ("cuda_version", "fp4_quantize")]
    assert [p.contract.rows[-1].until for p in by_hand] == [RELEASES[-1]] * 2
    assert Version(RELEASES[-1]) == max(map(Version, RELEASES))
