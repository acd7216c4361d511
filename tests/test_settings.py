"""Settings: each spelling, each wrong value, and that nothing here raises."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim import patches
from shim.settings import PATCHES, VARIABLES, read

KNOWN = ("cuda_version", "fp4_quantize")


def test_an_empty_environment_gives_the_documented_defaults() -> None:
    settings = read({}, KNOWN)
    assert (settings.mode, settings.policy, settings.cuda_version) == ("auto", "tested", "torch")
    assert (settings.log, settings.preload, settings.reference) == ("warn", True, False)
    assert settings.enabled == set(KNOWN)
    assert settings.complaints == ()


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("auto", "auto"),
        ("1", "auto"),
        ("true", "auto"),
        ("ON", "auto"),
        (" require ", "require"),
        ("0", "off"),
        ("False", "off"),
        ("off", "off"),
        ("", "auto"),
    ],
)
def test_the_mode_has_these_spellings(text: str, mode: str) -> None:
    settings = read({"FLASHINFER_SHIM": text}, KNOWN)
    assert settings.mode == mode
    assert settings.complaints == ()


def test_a_directory_for_the_audit_must_exist_and_stays_the_same_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "audit").mkdir()
    monkeypatch.chdir(tmp_path)
    found = read({"FLASHINFER_SHIM_AUDIT": "audit"}, KNOWN)
    assert (found.audit, found.complaints) == (str(tmp_path / "audit"), ())
    for text in ("", " "):
        assert read({"FLASHINFER_SHIM_AUDIT": text}, KNOWN) == read({}, KNOWN)
    missing = read({"FLASHINFER_SHIM_AUDIT": "elsewhere"}, KNOWN)
    assert missing.audit == ""
    (complaint,) = missing.complaints
    assert "FLASHINFER_SHIM_AUDIT='elsewhere' is not a directory that exists" in complaint


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda v: v.name)
def test_a_wrong_value_leaves_the_default_and_names_the_valid_ones(variable: object) -> None:
    name = variable.name  # type: ignore[attr-defined]
    settings = read({name: "sideways"}, KNOWN)
    assert settings == read({}, KNOWN)._replace(complaints=settings.complaints)
    (complaint,) = settings.complaints
    assert f"{name}='sideways'" in complaint
    assert variable.choices in complaint  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "enabled"),
    [
        ("all", {"cuda_version", "fp4_quantize"}),
        ("fp4_quantize", {"fp4_quantize"}),
        ("-fp4_quantize", {"cuda_version"}),
        ("all,-cuda_version", {"fp4_quantize"}),
        ("cuda_version fp4_quantize", {"cuda_version", "fp4_quantize"}),
        ("-all", set()),
        ("fp4_quantize -fp4_quantize", set()),
    ],
)
def test_patches_are_chosen_by_name_and_left_out_with_a_dash(text: str, enabled: set[str]) -> None:
    settings = read({PATCHES: text}, KNOWN)
    assert settings.enabled == enabled
    assert settings.complaints == ()


FAMILIES = {"toolchain": ("cuda_version",), "quantization": ("fp4_quantize", "mxfp8_quantize")}
MEMBERS = tuple(name for names in FAMILIES.values() for name in names)


@pytest.mark.parametrize(
    ("text", "enabled"),
    [
        ("quantization", {"fp4_quantize", "mxfp8_quantize"}),
        ("-quantization", {"cuda_version"}),
        ("quantization,-fp4_quantize", {"mxfp8_quantize"}),
        ("-fp4_quantize quantization", {"mxfp8_quantize"}),
        ("toolchain mxfp8_quantize", {"cuda_version", "mxfp8_quantize"}),
        ("toolchain,quantization", set(MEMBERS)),
        ("all,-toolchain,-quantization", set()),
        ("- quantization", {"cuda_version"}),
        ("all, -  fp4_quantize", {"cuda_version", "mxfp8_quantize"}),
        ("quantization -fp4_quantize", {"mxfp8_quantize"}),
        ("ALL", set(MEMBERS)),
        ("Quantization,-FP4_quantize", {"mxfp8_quantize"}),
    ],
)
def test_a_family_stands_for_all_of_its_patches(text: str, enabled: set[str]) -> None:
    settings = read({PATCHES: text}, MEMBERS, FAMILIES)
    assert settings.enabled == enabled
    assert settings.complaints == ()


def test_a_complaint_lists_the_families_and_not_every_patch() -> None:
    settings = read({PATCHES: "norms"}, MEMBERS, FAMILIES)
    assert settings.enabled == set(MEMBERS)
    (complaint,) = settings.complaints
    assert "names norms, which no patch is called" in complaint
    assert "all, toolchain, quantization and the names" in complaint
    assert "mxfp8_quantize" not in complaint


@pytest.mark.parametrize(
    ("text", "named", "enabled", "in_force"),
    [
        ("--quantization", "--quantization", set(MEMBERS), "all patches are in force"),
        ("-", "-", set(MEMBERS), "all patches are in force"),
        ("-all,norms", "norms", set(), "the rest is in force"),
        ("+toolchain,toolchain", "+toolchain", {"cuda_version"}, "the rest is in force"),
        ("toolchain;norm", "toolchain;norm", set(MEMBERS), "all patches are in force"),
    ],
)
def test_nonsense_is_named_with_what_is_expected_and_what_is_in_force(
    text: str, named: str, enabled: set[str], in_force: str
) -> None:
    settings = read({PATCHES: text}, MEMBERS, FAMILIES)
    assert settings.enabled == enabled
    (complaint,) = settings.complaints
    assert f"{PATCHES}={text!r} names {named}, which no patch is called" in complaint
    assert "all, toolchain, quantization and the names" in complaint
    assert "with one - in front to leave it out" in complaint
    assert f"correct or remove it, {in_force}" in complaint


def test_names_differ_in_more_than_upper_and_lower_case() -> None:
    names = ("all", *patches.FAMILIES, *patches.NAMES)
    assert len({name.lower() for name in names}) == len(names)


def test_no_family_has_the_name_of_a_patch() -> None:
    assert not set(patches.FAMILIES).intersection(patches.NAMES)
    assert "all" not in {*patches.FAMILIES, *patches.NAMES}


def test_an_unknown_patch_is_complained_of_and_the_rest_of_the_list_is_used() -> None:
    settings = read({PATCHES: "fp4_quantize,fp5_quantize"}, KNOWN)
    assert settings.enabled == {"fp4_quantize"}
    (complaint,) = settings.complaints
    assert "fp5_quantize" in complaint
    assert "cuda_version, fp4_quantize" in complaint


@given(st.dictionaries(st.sampled_from([v.name for v in VARIABLES] + [PATCHES]), st.text()))
def test_no_text_whatever_makes_reading_raise(environ: dict[str, str]) -> None:
    settings = read(environ, KNOWN)
    assert settings.enabled <= set(KNOWN)
    assert settings.mode in ("auto", "require", "off")
