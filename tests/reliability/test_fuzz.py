"""Whatever a user may write, or find on disk: settings, versions, metadata, changed sources.

Archives and garbage in place of a source are with the radar's tests.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import releases
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from shim.cli.radar_drift import compare
from shim.contract import judge
from shim.ledger import Verdict
from shim.patches import FAMILIES, NAMES, PATCHES, RELEASES
from shim.settings import AUDIT, VARIABLES, read
from shim.settings import PATCHES as SELECTION
from shim.sources import Sources
from shim.upstream import Installed, installed

RELEASE = "0.6.3"
few = settings(deadline=None, max_examples=60)

WORDS = st.sampled_from(["auto", "require", "off", "all", "-", ",", "fp4_quantize", "norm", "\0"])
VALUES = st.lists(WORDS | st.text(max_size=9), max_size=6).map("".join)
VARIABLE_NAMES = [*(variable.name for variable in VARIABLES), SELECTION, AUDIT]


@few
@given(st.dictionaries(st.sampled_from(VARIABLE_NAMES), VALUES))
def test_any_environment_gives_settings_and_says_what_it_did_not_understand(
    environ: dict[str, str],
) -> None:
    found = read(environ, NAMES, FAMILIES)
    assert found.enabled <= set(NAMES)
    for variable in VARIABLES:
        text = environ.get(variable.name, "").strip().lower()
        told = any(line.startswith(f"{variable.name}=") for line in found.complaints)
        assert told is (text not in ("", *variable.spellings))


VERSION_WORDS = st.sampled_from(
    [RELEASE, "0.6.18", "v", "0", ".", "post1", "rc1", "dev", "+", "cu130", "!", " ", "\r", "\x85"]
)
VERSIONS = st.lists(VERSION_WORDS | st.text(max_size=4), max_size=6).map("".join)


def package(folder: Path, metadata: bytes, meta: str | None = None) -> Path:
    """A FlashInfer that has metadata, and nothing else but perhaps a version of its own."""
    (folder / "flashinfer").mkdir()
    if meta is not None:
        (folder / "flashinfer" / "_build_meta.py").write_text(meta, encoding="utf-8", newline="")
    (folder / "flashinfer_python-1.dist-info").mkdir()
    (folder / "flashinfer_python-1.dist-info" / "METADATA").write_bytes(metadata)
    return folder / "flashinfer"


def is_told_or_is_a_version(here: Installed) -> None:
    assert (here.version is None) is bool(here.problem)
    if here.release in RELEASES:
        assert here.version is not None
        assert here.version.public == here.release


@few
@given(VERSIONS, st.none() | VERSIONS)
def test_any_version_is_one_or_it_is_said_why_not(
    tmp_path_factory: pytest.TempPathFactory, stated: str, own: str | None
) -> None:
    metadata = f"Metadata-Version: 2.4\nName: flashinfer-python\nVersion: {stated}\n\nA text\n"
    meta = None if own is None else f'__version__ = "{own}"\n'
    folder = tmp_path_factory.mktemp("version")
    here = installed(package(folder, metadata.encode("utf-8", "replace"), meta), [])
    is_told_or_is_a_version(here)


PIECES = st.sampled_from(
    [b"Name: flashinfer-python\n", b"Version: 0.6.3\n", b"Version:", b"\n", b"\r\n", b"\xff", b":"]
)


@few
@given(st.lists(PIECES | st.binary(max_size=9), max_size=12).map(b"".join))
def test_any_bytes_may_be_metadata(
    tmp_path_factory: pytest.TempPathFactory, metadata: bytes
) -> None:
    is_told_or_is_a_version(installed(package(tmp_path_factory.mktemp("bytes"), metadata), []))


@functools.cache
def released(module: str) -> bytes:
    """The file of a module, as it was released."""
    path = releases.path(RELEASE).joinpath(*module.split(".")).with_suffix(".py")
    return path.read_bytes()


CHANGES = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 40),
        st.sampled_from([b"", b"\n", b")", b'"""', b"    ", b"\t", b"\xff", b"\0", b"def f(\n"])
        | st.binary(max_size=3),
    ),
    min_size=1,
    max_size=4,
)


@few
@given(st.sampled_from(["rmsnorm", "fp4_quantize", "silu_and_mul"]), CHANGES)
def test_a_changed_source_is_patched_only_where_its_function_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, name: str, changes: list[tuple[float, int, bytes]]
) -> None:
    (patch,) = (patch for patch in PATCHES if patch.name == name)
    row = patch.contract.row_for(Version(RELEASE))
    assert row is not None
    text = bytearray(released(row.module))
    for place, length, new in changes:
        start = int(place * len(text))
        text[start : start + length] = new
    tree = tmp_path_factory.mktemp("source") / "flashinfer"
    tree.mkdir()
    tree.joinpath(f"{row.module.rpartition('.')[2]}.py").write_bytes(text)
    here = Installed(tree, "flashinfer-python", RELEASE, None, Version(RELEASE), "")
    facts = Sources(tree).facts(row.module, patch.contract.function, patch.contract.companions)
    for policy in ("tested", "adapt"):
        word = judge(patch.contract, here, facts, releases=RELEASES, policy=policy)
        same = facts is not None and (facts.signature, facts.digest) == row[3:5]
        if policy == "tested" or same:
            assert (word.verdict is Verdict.PENDING) is same
    (drift,) = compare(here, RELEASE, {name})
    assert drift.moved is not None
