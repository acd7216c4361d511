"""The command `prove`, run as users run it, on real releases."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import CopyRelease, RunChild
from releases import IS_WHOLE, ROOT

from shim.patches import FAMILIES, NAMES
from shim.proof.examples import SIZES, choose

pytestmark = pytest.mark.early

PROVE = ("-m", "shim", "prove")


# `make demo` runs it on 0.6.3.
@pytest.mark.parametrize("release", [*["0.6.18.post1"] * IS_WHOLE, "0.7.4"])
def test_every_call_fails_without_us_and_passes_with_us(
    release: str, run_child: RunChild, tmp_path: Path
) -> None:
    child = run_child(None, args=[*PROVE, "--save", tmp_path / "proof.json"], release=release)
    assert child.returncode == 0, child
    proof = json.loads((tmp_path / "proof.json").read_text())
    examples = choose()
    assert proof["passed"] is True
    assert proof["environment"]["flashinfer"] == release
    verdicts = {record["patch"]: record["verdict"] for record in proof["environment"]["ledger"]}
    assert verdicts.keys() == set(NAMES)
    assert {verdicts[example.patch] for example in examples} == {"applied"}
    assert [row["name"] for row in proof["rows"]] == [example.name for example in examples]
    for row, example in zip(proof["rows"], examples, strict=True):
        assert row["refused"], row
        assert row["reason"].startswith("Dynamo ")
        assert row["skipped"] == ""
        trace, *values = row["runs"]
        assert (trace["kind"], trace["compared"]) == ("trace", "shapes and strides")
        assert {(run["frames"], run["graphs"], run["note"]) for run in row["runs"]} == {(3, 3, "")}
        if not example.on_cpu:
            assert values == []
            continue
        assert "_thread.allocate_lock" in row["reason"]
        assert {run["kind"] for run in values} == {"values"}
        assert {run["compared"] for run in values} == {"bits"}
        assert {run["op_calls"] for run in values} == {example.op_calls * len(SIZES)}
        backends = ["eager", "aot_eager"]
        backends += [] if proof["environment"]["inductor"] else ["inductor"]
        assert [run["backend"] for run in values] == backends
    assert f"FlashInfer {release}, torch " in child.stdout
    assert re.search(r"^Ledger with us: \d+ patches applied; ", child.stdout, re.MULTILINE)
    assert f"{len(examples)} of {len(examples)} calls fail without us and pass" in child.stdout
    assert re.search(r"^flashinfer-shim prove: with us: fp4_quantize", child.stderr, re.MULTILINE)
    assert_documented(proof)


def test_ops_and_families_are_asked_for_by_name_and_what_cannot_be_tried_says_why(
    run_child: RunChild, tmp_path: Path
) -> None:
    names = ["activation", "append_paged_kv_cache", "rmsnorm_quant", "mxfp8_quantize"]
    child = run_child(
        None,
        args=[*PROVE, *names, "--arch", "9.0", "--save", tmp_path / "proof.json"],
        release="0.5.0",
    )
    assert child.returncode == 0, child
    rows = {row["name"]: row for row in json.loads((tmp_path / "proof.json").read_text())["rows"]}
    assert rows.keys() == {*FAMILIES["activation"], *names[1:]}
    assert all(row["passed"] for row in rows.values())
    assert {name: row["skipped"] for name, row in rows.items() if row["skipped"]} == {
        "rmsnorm_quant": "FlashInfer 0.5.0 has no such function",
        "mxfp8_quantize": "needs compute capability 10.0",
    }
    assert not rows["mxfp8_quantize"]["runs"]
    for name in ("silu_and_mul", "append_paged_kv_cache"):
        assert rows[name]["refused"]
        assert [run["frames"] for run in rows[name]["runs"]] == [3]
    assert "Not tried, needs compute capability 10.0: mxfp8_quantize.\n" in child.stdout
    tried = len(rows) - 2
    assert child.stdout.endswith(f"\n{tried} of {tried} calls fail without us and pass with us.\n")


def test_a_module_that_flashinfer_does_not_import_by_itself_is_tried_or_says_what_it_lacks(
    run_child: RunChild,
) -> None:
    child = run_child(None, args=[*PROVE, "rmsnorm_fp4quant", "--json"], release="0.6.3")
    (row,) = json.loads(child.stdout)["rows"]
    assert row["passed"], child
    assert row["skipped"] == "needs cutlass (pip install nvidia-cutlass-dsl)" or row["refused"]
    assert child.returncode == (1 if row["skipped"] else 0), child


def assert_documented(proof: dict[str, Any]) -> None:
    documented = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "prove.md").read_text()))
    row = proof["rows"][0]
    for each in (proof, proof["environment"], row, row["runs"][0], *proof["environment"]["ledger"]):
        assert set(each) <= documented


def test_an_unknown_release_gives_rows_that_name_the_refusal_and_exit_status_1(
    run_child: RunChild, copy_release: CopyRelease
) -> None:
    tree = copy_release("0.6.3", metadata_version="99.0")
    child = run_child(None, args=[*PROVE, "--json", "cuda_version"], release=tree)
    assert child.returncode == 1, child
    (row,) = json.loads(child.stdout)["rows"]
    assert row["refused"]
    assert not row["passed"]
    assert row["problems"][0].startswith("patch cuda_version is refused: ")


def test_a_user_who_has_switched_us_off_is_told_so(run_child: RunChild) -> None:
    env = {"FLASHINFER_SHIM": "off"}
    names = ["cuda_version", "rmsnorm"]
    child = run_child(None, args=[*PROVE, *names], release="0.6.3", env=env)
    assert child.returncode == 1, child
    told = " ".join(child.stdout.split())  # without its line breaks
    for name in names:
        assert f"patch {name} is disabled: FLASHINFER_SHIM=off" in told
    # Nor is it FlashInfer's own function that is tried in its place.
    assert "Not tried" not in told
    assert "0 of 2 calls fail without us and pass with us." in child.stdout


def test_without_flashinfer_one_line_says_so(run_child: RunChild) -> None:
    child = run_child(None, args=[*PROVE, "--json"])
    assert (child.returncode, child.stdout) == (1, ""), child
    assert child.stderr == (
        "flashinfer-shim prove: FlashInfer is not installed in this environment: "
        "pip install flashinfer-python\n"
    )


def test_a_flashinfer_that_cannot_be_imported_is_told_of_once(
    run_child: RunChild, copy_release: CopyRelease
) -> None:
    tree = copy_release("0.6.3", edit={"flashinfer/__init__.py": lambda _: "import nonsuch\n"})
    child = run_child(None, args=[*PROVE], release=tree)
    assert child.returncode == 1, child
    told = " ".join(child.stdout.split())
    assert told.count("every call: ") == told.count("No module named 'nonsuch'") == 2
    assert "python -c 'import flashinfer' shows the whole error" in told


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["rmsnorms"], "none of the families toolchain, quantization, norm"),
        (["--arch", "sm_120"], "'sm_120' is not of the form major.minor, as 12.0"),
        (["--all", "rmsnorm"], "--all is given, and names; give one of them"),
        (["--save", "nowhere/proof.json"], "is not a file in a directory that exists"),
    ],
)
def test_wrong_usage_names_what_is_valid_and_exits_with_2(
    arguments: list[str], complaint: str, run_child: RunChild
) -> None:
    child = run_child(None, args=[*PROVE, *arguments])
    assert (child.returncode, child.stdout) == (2, ""), child
    assert complaint in child.stderr


def test_what_no_gpu_plans_another_release_has_or_flashinfer_refuses_is_not_tried(
    run_child: RunChild,
) -> None:
    names = ["BatchDecodeWithPagedKVCacheWrapper.run", "mhc_post", "bmm_bf16"]
    child = run_child(None, args=[*PROVE, *names], release="0.6.3")
    said = " ".join(child.stdout.split())
    assert child.returncode == 1, child
    assert (
        "Not tried, a method of an object that FlashInfer plans on a GPU, and none is used here: "
        "BatchDecodeWithPagedKVCacheWrapper.run. "
    ) in said, child
    assert "Not tried, FlashInfer 0.6.3 has no such function: mhc_post. " in said, child
    assert said.endswith("No call could be tried here, so nothing is proved."), child
    assert "FlashInfer itself refuses the call here (BackendSupportedError: " in said, child


METHOD = f"""
    import dataclasses, json, sys
    sys.path.append({str(ROOT / "tests")!r})
    import flashinfer
    import wrappers_child  # kernels that do nothing
    wrappers_child.install()
    from packaging.version import Version
    from shim.proof.child import find
    from shim.proof.compiling import Call, Run, run_sizes
    from shim.proof.examples import EXAMPLES

    example = EXAMPLES["BatchDecodeWithPagedKVCacheWrapper.run"]
    call = Call(example, find(example, Version(flashinfer.__version__)), "cpu")
    print(json.dumps(dataclasses.asdict(run_sizes(call, Run("kernels", "eager"), "cpu"))))
"""


def test_a_method_is_proved_where_its_object_can_be_planned(run_child: RunChild) -> None:
    run = run_child(METHOD, release="0.7.4").json
    assert run["fault"] == ""
    assert run["op_calls"] == len(SIZES) - 1
    assert run["frames"] == run["graphs"] <= 3
