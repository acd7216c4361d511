"""``radar``: what became of each patch in a release that is not installed, and what follows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import releases
from children import Child
from conftest import CopyRelease, RunChild

from shim.cli import main, radar_drift
from shim.patches import NAMES, RELEASES
from shim.survey import survey
from shim.upstream import installed

DOCUMENT = releases.ROOT / "docs" / "radar.md"
TYPES = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "null": type(None),
    "list": list,
    "object": dict,
}

FP4 = "flashinfer/quantization/fp4_quantization.py"
ACTIVATION = "flashinfer/activation.py"
NORM = "flashinfer/norm/__init__.py"


def report(child: Child) -> dict[str, Any]:
    """Of ``radar --json``: nothing else is on stdout."""
    found: dict[str, Any] = json.loads(child.stdout)
    assert found["exit_status"] == child.returncode, child
    assert child.stderr == "", child
    return found


def patches(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {patch["patch"]: patch for patch in found["patches"]}


def told(patch: dict[str, Any]) -> dict[str, list[str]]:
    """By release, the texts of all changes but those of the body."""
    steps = {
        step["release"]: [c["text"] for c in step["changes"] if c["kind"] != "body"]
        for step in patch["steps"]
    }
    return {release: texts for release, texts in steps.items() if texts}


def test_each_change_on_the_way_is_told_with_the_release_that_it_came_in(
    run_child: RunChild,
) -> None:
    tree = releases.path("0.7.4")
    found = report(run_child(None, args=["-m", "shim", "radar", tree, "--json"], release="0.6.3"))
    assert (found["against"], found["release"], found["tested"]) == ("0.6.3", "0.7.4", True)
    assert found["exit_status"] == 1
    by_name = patches(found)
    assert by_name.keys() == set(NAMES)
    assert by_name["fp4_quantize"]["status"] == "signature moved"
    assert told(by_name["fp4_quantize"]) == {
        "0.6.7": ["now in flashinfer.quantization.fp4_quantization"],
        "0.6.8": ["parameter backend='cuda' added at the end"],
        "0.6.11": ["parameter is_global_scale_inversed=False added in front of enable_pdl"],
        "0.7.1": ["parameter nvfp4_4over6=_UNSET added at the end"],
        "0.7.4": [
            "parameter batch_invariant=False added, by keyword alone",
            "default of backend is 'auto', was 'cuda'",
        ],
    }
    statuses = {name: patch["status"] for name, patch in by_name.items()}
    expected = {
        "cuda_version": "unchanged",
        "rmsnorm": "body moved",
        "trtllm_batch_context_with_kv_cache": "signature moved",
        "BatchDecodeMlaWithPagedKVCacheWrapper.run": "gone",
        "cake_rmsnorm_sigmoid_gate": "new",
    }
    assert {name: statuses[name] for name in expected} == expected
    renamed = told(by_name["trtllm_batch_context_with_kv_cache"])["0.6.8"]
    assert "parameter kv_block_scales is now kv_cache_sf" in renamed
    # It is in the table: a process would take it as it is, and there is nothing to be done.
    assert {patch["under"]["tested"]["verdict"] for patch in by_name.values()} == {
        "pending",
        "not needed",
    }
    assert found["actions"] == []


def next_release(copy_release: CopyRelease) -> Path:
    """0.7.4 as a later release might be: it can be imported, and much in it moved."""

    def activation(text: str) -> str:
        start = text.index("def gelu_and_mul(")
        text = text[:start] + text[start:].replace("dtype=input.dtype", "dtype=torch.float32", 1)
        text = text.replace("def gelu_tanh_and_mul(", "def gelu_tanh_times(")
        upstreams_op = "triton_op = lambda function: function\n\n\n@triton_op\ndef silu_and_mul("
        decorated = "@flashinfer_api(trace=silu_and_mul_trace)\ndef silu_and_mul("
        return text.replace(decorated, upstreams_op) + "\ngelu_tanh_and_mul = gelu_tanh_times\n"

    def norm(text: str) -> str:
        old = "        out = torch.empty_like(input)\n    _rmsnorm_impl("
        new = "        out = torch.empty(input.shape, dtype=input.dtype, device=input.device)\n"
        return text.replace(old, f"{new}    _rmsnorm_impl(")

    def fp4(text: str) -> str:
        start = text.index("\ndef fp4_quantize(")
        parameter = '    scale_kind: str = "tensor",\n    enable_pdl'
        return text[:start] + text[start:].replace("    enable_pdl", parameter, 1)

    return copy_release(
        "0.7.4",
        metadata_version="99.0",
        edit={
            "flashinfer/_build_meta.py": lambda text: text.replace("0.7.4", "99.0"),
            ACTIVATION: activation,
            NORM: norm,
            FP4: fp4,
        },
    )


def test_a_new_release_is_judged_patch_by_patch_and_what_moved_is_run(
    copy_release: CopyRelease, run_child: RunChild
) -> None:
    tree = next_release(copy_release)
    args = ["-m", "shim", "radar", str(tree), "--run", "--json"]
    found = report(run_child(None, args=args, release="0.7.4"))
    assert (found["against"], found["release"], found["tested"]) == ("0.7.4", "99.0", False)
    by_name = patches(found)
    moved = {
        name: (patch["status"], patch["shadow"] and patch["shadow"]["verdict"])
        for name, patch in by_name.items()
        if patch["status"] not in ("unchanged", "absent")
    }
    assert moved == {
        "fp4_quantize": ("signature moved", "agrees"),
        "rmsnorm": ("body moved", "agrees"),
        "gelu_and_mul": ("body moved", "differs"),
        "silu_and_mul": ("fixed upstream", None),
        "gelu_tanh_and_mul": ("gone", None),
    }
    text = "parameter scale_kind='tensor' added in front of enable_pdl"
    assert told(by_name["fp4_quantize"]) == {"99.0": [text]}
    differs = by_name["gelu_and_mul"]["shadow"]["reason"]
    assert re.match(r"float32\[.*\] .* instead of bfloat16\[", differs), differs
    assert by_name["gelu_tanh_and_mul"]["successor"] == "gelu_tanh_times"

    for policy, expected in {
        "tested": {"refused": set(moved) - {"silu_and_mul"}, "not needed": {"silu_and_mul"}},
        "adapt": {
            "pending": {"rmsnorm", "gelu_and_mul"},
            "refused": {"fp4_quantize", "gelu_tanh_and_mul"},
            "not needed": {"silu_and_mul"},
        },
    }.items():
        # As a running process and `check` would judge them.
        _, findings = survey(tree / "flashinfer", [], policy)
        verdicts = {name: patch["under"][policy]["verdict"] for name, patch in by_name.items()}
        assert verdicts == {f.patch.name: str(f.judgement.verdict) for f in findings}
        for verdict, names in expected.items():
            assert {name for name in moved if verdicts[name] == verdict} == names

    actions = " ".join(found["actions"])
    assert "shim/patches/fp4_quantize_contract.py" in actions
    assert "make release RELEASE=99.0" in actions

    rows = re.findall(r"^\| `([^`]+)` \| (\S[^|]*) \|", DOCUMENT.read_text(), re.MULTILINE)
    documented = {key: kind for key, kind in rows if kind.split()[0] in TYPES}
    assert {key for key, _ in keys(found)} == documented.keys()
    for key, value in keys(found):
        words = documented[key].removesuffix(" of strings").split(" or ")
        assert any(isinstance(value, TYPES[word]) for word in words), (key, value)


def test_every_status_is_documented() -> None:
    statuses = DOCUMENT.read_text().partition("## --run")[0]
    rows = re.findall(r"^\| `([a-z ]+)` \|", statuses, re.MULTILINE)
    assert rows == sorted(radar_drift.STATUSES, key=rows.index)


def keys(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The keys of a JSON object as the document writes them, with their values."""
    for name, inner in value.items():
        key = f"{prefix}*" if prefix.endswith("under.") else f"{prefix}{name}"
        yield key, inner
        below = inner if isinstance(inner, list) else [inner]
        for each in below:
            if isinstance(each, dict):
                yield from keys(each, f"{key}[]." if isinstance(inner, list) else f"{key}.")


def test_the_way_back_to_an_older_release_is_told_too() -> None:
    package = releases.path("0.6.9") / "flashinfer"
    (fp4,) = radar_drift.compare(installed(package, []), "0.6.11.post3", {"fp4_quantize"})
    changes = {step.release: [change.text for change in step.changes] for step in fp4.steps}
    assert changes == {
        "0.6.10.post1": [
            "parameter is_global_scale_inversed=False removed",
            "its body is another",
        ],
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "expected a version, a wheel, a source archive or a directory"),
        (["a\0b"], "is none of them"),
        ([str(releases.ROOT / "docs")], "there is no FlashInfer in"),
        ([str(releases.ROOT / "README.md")], "cannot be read as one"),
        (["nowhere", "--against", "0.7.3"], f"expected one of the tested releases, {RELEASES[0]}"),
        (["nowhere", "--against", "soon"], "--against soon"),
        (["nowhere", "--only", "norms"], "'norms' is no patch"),
    ],
)
def test_what_cannot_be_read_is_told_on_stderr_alone(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["radar", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("flashinfer-shim radar: "), said.err
    assert words in said.err


@pytest.mark.parametrize("text", ["nan", "inf", "0", "-1", "1e9", "soon"])
def test_a_time_limit_that_is_none_is_wrong_usage(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["radar", "nowhere", f"--timeout={text}"])
    said = capsys.readouterr().err
    assert "argument --timeout: " in said
    assert "number of seconds" in said or "expected seconds, up to 86400" in said
