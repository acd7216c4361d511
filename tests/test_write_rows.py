"""The script that makes a release a tested one: one number is typed, and the rows follow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import radar_wheels
import releases
import write_rows
from packaging.version import Version

from shim.patches import PATCHES, RELEASES, Patch, op_contracts
from shim.patches import releases as listed
from shim.patches.files import FILES
from shim.patches.ops import FAMILIES, OPS
from shim.sources import Sources

#: A declared op of a module that the small release has.
OP = "nvfp4_quantize"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, Path]:
    """Copies of the two files, which the script then writes; the numbers it may ask for: 99.0."""
    tree = tmp_path / "99.0"
    for name, data in radar_wheels.files("0.7.4").items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(data)

    def only_the_new_one(release: str) -> Path:
        assert release == "99.0"
        return tree

    rows, numbers, files = (tmp_path / f"{name}.json" for name in ("rows", "releases", "files"))
    monkeypatch.setattr(write_rows, "FUNCTIONS", tmp_path / "functions.json")
    rows.write_bytes(op_contracts.ROWS.read_bytes())
    files.write_bytes(FILES.read_bytes())
    monkeypatch.setattr(releases, "path", only_the_new_one)
    monkeypatch.setattr(write_rows, "ROWS", rows)
    monkeypatch.setattr(write_rows, "FILES", files)
    monkeypatch.setattr(write_rows, "FILE", numbers)
    return rows, numbers, files


def edit(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "99.0" / "flashinfer" / "quantization" / "fp4_quantization.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def declared() -> dict[str, dict[str, str]]:
    return {family: {op.name: op.path for op in ops} for family, ops in FAMILIES.items()}


def runs(rows: Path) -> list[tuple[str, str]]:
    return [(since, until) for since, until, *_ in json.loads(rows.read_text())[OP]]


def test_a_function_that_stayed_is_in_the_run_that_it_was_in(
    written: tuple[Path, Path, Path],
) -> None:
    rows, numbers, files = written
    *before, (since, until) = runs(rows)
    assert until == RELEASES[-1]
    write_rows.main(["99.0"])
    assert json.loads(numbers.read_text()) == [*RELEASES, "99.0"]
    assert runs(rows) == [*before, (since, "99.0")]
    module = "flashinfer.quantization.fp4_quantization"
    first, _, *state = json.loads(FILES.read_text())[module][-1]
    assert json.loads(files.read_text())[module][-1] == [first, "99.0", *state]
    assert json.loads((numbers.parent / "functions.json").read_text()) == declared()


def test_a_function_that_changed_begins_a_run_and_one_that_is_cured_ends_it(
    written: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    rows, *_ = written
    before = runs(rows)
    edit(tmp_path, f"\ndef {OP}(\n", f"\ndef {OP}(\n    kind,\n")
    write_rows.main(["99.0"])
    assert runs(rows) == [*before, ("99.0", "99.0")]
    assert json.loads(rows.read_text())[OP][-1][3].startswith("kind, ")

    rows.write_bytes(op_contracts.ROWS.read_bytes())
    edit(tmp_path, f"\ndef {OP}(\n", f"\n@torch.library.custom_op\ndef {OP}(\n")
    write_rows.main(["99.0"])
    assert runs(rows) == before


def test_a_function_whose_row_is_written_by_hand_is_compared_with_it_first(
    written: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    edit(tmp_path, "def fp4_quantize(", "def fp4_quantize(kind,")
    with pytest.raises(SystemExit) as stopped:
        write_rows.main(["99.0"])
    assert "fp4_quantize of 99.0 is (kind, input," in str(stopped.value)
    assert "end that row in shim/patches/fp4_quantize_contract.py" in str(stopped.value)
    assert not written[1].exists()


@pytest.mark.parametrize("patch", write_rows.BY_HAND, ids=lambda patch: patch.name)
def test_rows_that_are_written_by_hand_say_what_the_releases_have(patch: Patch) -> None:
    assert (releases.ROOT / "shim" / "patches" / f"{patch.rows}.py").is_file()
    for release in releases.RELEASES:
        sources = Sources(releases.path(release) / "flashinfer")
        write_rows.check_row(patch, release, sources)


def test_what_is_no_number_is_refused_before_anything_is_written(
    written: tuple[Path, Path, Path],
) -> None:
    with pytest.raises(SystemExit, match="expected the number of a release"):
        write_rows.main(["newest"])
    assert not written[1].exists()


def test_the_tests_take_the_newest_release_from_the_list() -> None:
    assert releases.RELEASES[-1] == RELEASES[-1]
    assert json.loads(listed.FILE.read_text()) == list(RELEASES)


def test_the_newest_release_has_a_row_that_is_written_by_hand() -> None:
    for patch in write_rows.BY_HAND:
        assert patch.contract.row_for(Version(RELEASES[-1])) is patch.contract.rows[-1]
    assert {patch.name for patch in PATCHES if not patch.rows} == OPS.keys()
