"""The command `prove`, run as users run it, on real releases."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import CopyRelease, RunChild
from releases import ROOT

from shim.proof.examples import EXAMPLES, SIZES

PROVE = ("-m", "shim", "prove")


# `make demo` runs it on 0.6.3.
@pytest.mark.parametrize("release", ["0.6.18.post1", "0.7.4"])
def test_every_call_fails_without_us_and_passes_with_us(
    release: str, run_child: RunChild, tmp_path: Path
) -> None:
    child = run_child(None, args=[*PROVE, "--save", tmp_path / "proof.json"], release=release)
    assert child.returncode == 0, child
    proof = json.loads((tmp_path / "proof.json").read_text())
    assert proof["passed"] is True
    assert proof["environment"]["flashinfer"] == release
    assert {r["verdict"] for r in proof["environment"]["ledger"]} == {"applied"}
    assert [row["name"] for row in proof["rows"]] == [example.name for example in EXAMPLES]
    for row, example in zip(proof["rows"], EXAMPLES, strict=True):
        assert row["refused"], row
        assert "_thread.allocate_lock" in row["reason"]
        trace, *values = row["runs"]
        assert (trace["kind"], trace["compared"]) == ("trace", "shapes and strides")
        assert {run["kind"] for run in values} == {"values"}
        assert {run["compared"] for run in values} == {"bits"}
        assert {run["op_calls"] for run in values} == {example.op_calls * len(SIZES)}
        backends = ["eager", "aot_eager"]
        backends += [] if proof["environment"]["inductor"] else ["inductor"]
        assert [run["backend"] for run in values] == backends
        assert {(run["frames"], run["graphs"]) for run in row["runs"]} == {(3, 3)}
    assert f"FlashInfer {release}, torch " in child.stdout
    assert "cuda_version applied; fp4_quantize applied" in child.stdout
    assert f"{len(EXAMPLES)} of {len(EXAMPLES)} calls fail without us and pass" in child.stdout
    assert re.search(r"^flashinfer-shim prove: with us: fp4_quantize", child.stderr, re.MULTILINE)
    assert_documented(proof)


def assert_documented(proof: dict[str, Any]) -> None:
    documented = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "prove.md").read_text()))
    row = proof["rows"][0]
    for each in (proof, proof["environment"], row, row["runs"][0], *proof["environment"]["ledger"]):
        assert set(each) <= documented


def test_an_unknown_release_gives_rows_that_name_the_refusal_and_exit_status_1(
    run_child: RunChild, copy_release: CopyRelease
) -> None:
    tree = copy_release("0.6.3", metadata_version="0.7.5")
    child = run_child(None, args=[*PROVE, "--json", "cuda_version"], release=tree)
    assert child.returncode == 1, child
    (row,) = json.loads(child.stdout)["rows"]
    assert row["refused"]
    assert not row["passed"]
    assert row["problems"][0].startswith("patch cuda_version is refused: ")


def test_a_user_who_has_switched_us_off_is_told_so(run_child: RunChild) -> None:
    env = {"FLASHINFER_SHIM": "off"}
    child = run_child(None, args=[*PROVE, "cuda_version"], release="0.6.3", env=env)
    assert child.returncode == 1, child
    assert "patch cuda_version is disabled: FLASHINFER_SHIM=off" in child.stdout
    assert "0 of 1 calls fail without us and pass with us." in child.stdout


def test_without_flashinfer_every_row_says_so(run_child: RunChild) -> None:
    child = run_child(None, args=[*PROVE, "--json"])
    assert child.returncode == 1, child
    proof = json.loads(child.stdout)
    assert proof["environment"] is None
    missing = "status 1: ModuleNotFoundError: No module named 'flashinfer'"
    for row in proof["rows"]:
        assert [missing in problem for problem in row["problems"]] == [True, True]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["rmsnorm"], "'rmsnorm' is none of cuda_version, fp4_quantize"),
        (["--arch", "sm_120"], "'sm_120' is not of the form major.minor, as 12.0"),
        (["--save", "nowhere/proof.json"], "is not a file in a directory that exists"),
    ],
)
def test_wrong_usage_names_what_is_valid_and_exits_with_2(
    arguments: list[str], complaint: str, run_child: RunChild
) -> None:
    child = run_child(None, args=[*PROVE, *arguments])
    assert (child.returncode, child.stdout) == (2, ""), child
    assert complaint in child.stderr
