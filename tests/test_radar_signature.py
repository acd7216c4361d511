"""What distinguishes two signatures or sources, and that no text is too odd to be compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from shim.cli.radar_drift import STATUSES, compare
from shim.cli.radar_report import Opinion, Report, as_json
from shim.cli.radar_running import gravest
from shim.cli.radar_signature import signature_changes
from shim.cli.radar_source import Source
from shim.definitions import Ambiguous, Definitions
from shim.patches import NAMES, RELEASES
from shim.sources import Sources
from shim.upstream import installed


def texts(old: str, new: str) -> list[str]:
    return [change.text for change in signature_changes(old, new)]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a, b=1", "a, b=1", []),
        ("a", "a, b=1", ["parameter b=1 added at the end"]),
        ("a, c=1", "a, b=1, c=1", ["parameter b=1 added in front of c"]),
        ("a", "a, *, b=1", ["parameter b=1 added, by keyword alone"]),
        ("a", "a, **k", ["parameter **k added, for the other keyword arguments"]),
        ("a, *r", "a", ["parameter *r removed"]),
        ("a, b=1", "a", ["parameter b=1 removed"]),
        ("a, old_x, c", "a, x_cache, c", ["parameter old_x is now x_cache"]),
        (
            "a, block_table=1",
            "block_tables=1, a=0",
            [
                "parameter block_table is now block_tables",
                "parameter a may be left out, its default is 0",
                "their order is block_tables, a, was a, block_tables",
            ],
        ),
        ("a, b=1", "a, b=2", ["default of b is 2, was 1"]),
        ("a, b=1", "a, b", ["parameter b has to be given, its default was 1"]),
        ("a, b", "a, b=1", ["parameter b may be left out, its default is 1"]),
        ("a, b", "a, *, b", ["parameter b is passed by keyword, was by position or keyword"]),
        ("a, b, c", "a, c, b", ["their order is a, c, b, was a, b, c"]),
        (
            "q, context_lens, block_table",
            "q, block_tables, seq_lens",
            [
                "parameter block_table is now block_tables",
                "parameter context_lens is now seq_lens",
                "their order is q, block_tables, seq_lens, was q, seq_lens, block_tables",
            ],
        ),
        ("a, b=1", "a, (", ["its signature is (a, (), was (a, b=1)"]),
    ],
)
def test_the_changes_of_a_signature(old: str, new: str, expected: list[str]) -> None:
    assert texts(old, new) == expected


NAME = st.sampled_from("abcdefg")
DEFAULT = st.sampled_from(["", "=1", "=None", "='x'"])
PARTS = st.lists(
    st.one_of(st.builds(str.__add__, NAME, DEFAULT), st.sampled_from(["*", "/", "*r", "**k", "("])),
    max_size=6,
).map(", ".join)


@settings(deadline=None, max_examples=150)
@given(st.one_of(PARTS, st.text()), st.one_of(PARTS, st.text()))
def test_any_two_texts_can_be_compared_and_equal_ones_do_not_differ(old: str, new: str) -> None:
    assert signature_changes(old, old) == ()
    forth, back = signature_changes(old, new), signature_changes(new, old)
    assert bool(forth) == bool(back)
    if not any(change.kind == "renamed" for change in (*forth, *back)):
        added = {change.parameter for change in forth if change.kind == "added"}
        assert added == {change.parameter for change in back if change.kind == "removed"}


def test_of_several_definitions_the_exported_one_counts_and_otherwise_none(tmp_path: Path) -> None:
    package = tmp_path / "flashinfer"
    (package / "triton").mkdir(parents=True)
    (package / "data").mkdir()
    (package / "__init__.py").write_text("from .one import both, plain as other\n")
    for name in ("one", "two", "three_backend", "triton/four", "data/five"):
        (package / f"{name}.py").write_text("def both(): ...\n\n\ndef plain(): ...\n")
    (package / "circle").symlink_to(package)
    definitions = Definitions(package)
    assert definitions.module("both") == "flashinfer.one"
    assert definitions.module("plain", "flashinfer.tw*") == "flashinfer.two"
    assert definitions.module("absent") is None
    with pytest.raises(Ambiguous) as ambiguous:
        definitions.module("plain")
    assert ambiguous.value.modules == ("flashinfer.one", "flashinfer.two")


GARBAGE = [
    b"",
    b"\xff\xfe\x00",
    b"# coding: nonsense\ndef fp4_quantize(x): ...\n",
    b"# coding: rot13\ndef fp4_quantize(x): ...\n",
    b"# coding: idna\ndef fp4_quantize(x): ...\n",
    b"def fp4_quantize(\n",
    b"def fp4_quantize(x, x): ...\n",
    b"def fp4_quantize(a=\0): ...\n",
    b"def fp4_quantize(a=" + b"-" * 50_000 + b"1): ...\n",
    b"def fp4_quantize(a=" + b"+".join([b"1"] * 20_000) + b"): ...\n",
    b"def fp4_quantize(a=" + b"(" * 300 + b")" * 300 + b"): ...\n",
    b"class fp4_quantize: pass\n",
    b"async def fp4_quantize(*, a, **k): return lambda: 0\n",
    b"@torch.library.custom_op()\ndef fp4_quantize(a, /): ...\r\n",
]
PIECES = st.lists(
    st.one_of(
        st.sampled_from([b"def fp4_quantize(", b"):\n    return 1\n", b"\n\n", b"a=", b"@", b"("]),
        st.binary(max_size=20),
    ),
    max_size=8,
).map(b"".join)


def write_garbage(folder: Path, text: bytes) -> Path:
    """A package in which everything that is read is that text."""
    package = folder / "flashinfer"
    for name in ("__init__", "quantization/__init__", "quantization/fp4_quantization"):
        (package / f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (package / f"{name}.py").write_bytes(text)
    (package / "_build_meta.py").write_bytes(text)
    return package


@pytest.mark.parametrize("text", GARBAGE, ids=lambda text: str(text[:40]))
def test_a_source_of_garbage_has_a_status(text: bytes, tmp_path: Path) -> None:
    package = write_garbage(tmp_path, text)
    wanted = {"fp4_quantize", "rmsnorm"}
    for drift in compare(installed(package, []), RELEASES[-1], wanted):
        assert drift.status in STATUSES
        assert drift.moved


@settings(deadline=None, max_examples=60)
@given(PIECES)
def test_no_text_is_too_odd_to_be_looked_into(
    tmp_path_factory: pytest.TempPathFactory, text: bytes
) -> None:
    package = write_garbage(tmp_path_factory.mktemp("odd"), text)
    definitions, sources = Definitions(package), Sources(package)
    for path in ("fp4_quantize", "fp4_quantize.run"):
        try:
            module = definitions.module(path)
        except Ambiguous as error:
            module = error.modules[-1]
        if module:
            facts = sources.facts(module, path)
            assert facts is None or facts.module == module
    assert installed(package, []).problem


def test_every_patch_of_an_empty_package_is_gone_or_was_never_there(tmp_path: Path) -> None:
    package = write_garbage(tmp_path, b"")
    here = installed(package, [])._replace(version=Version("99.0"))
    drifts = compare(here, RELEASES[-1], NAMES)
    assert [drift.patch.name for drift in drifts] == list(NAMES)
    assert {drift.status for drift in drifts} == {"gone", "absent"}
    actions = json.loads(as_json(Report(Source(here, "x"), RELEASES[-1], drifts, None)))["actions"]
    ended = "jit_load (gone): end its rows with the release before, in shim/patches/jit_contract.py"
    assert ended in actions


def test_examples_that_were_not_run_are_counted_beside_those_that_agree() -> None:
    agrees, not_run = Opinion("agrees"), Opinion("not run", "no cuDNN")
    counted = Opinion("agrees", "1 of 3 examples were not run (no cuDNN)")
    assert gravest([not_run, agrees, agrees]) == counted
    assert gravest([not_run, not_run]) == not_run
    assert gravest([agrees, Opinion("differs", "x"), not_run]) == Opinion("differs", "x")
    assert gravest([]).verdict == "not run"
