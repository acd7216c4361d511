"""Judging: every released source is recognised, everything else is refused for the right reason."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from textwrap import indent

import pytest
import releases
from packaging.version import Version

from shim.contract import Contract, Judgement, judge
from shim.ledger import Verdict
from shim.patches import PATCHES, RELEASES, Patch
from shim.patches.files import released
from shim.sources import FunctionFacts, Sources, function_facts
from shim.survey import judge_all, survey
from shim.upstream import Installed, installed

HERE = Path("/nowhere/flashinfer")
FP4 = next(patch.contract for patch in PATCHES if patch.name == "fp4_quantize")
CUDA = next(patch.contract for patch in PATCHES if patch.name == "cuda_version")
JIT = [patch.contract for patch in PATCHES if patch.switch == "jit"]


def the_installed(version: str) -> Installed:
    return Installed(HERE, "flashinfer-python", version, version, Version(version), "")


def the_facts(contract: Contract, version: str) -> FunctionFacts:
    row = contract.row_for(Version(version))
    assert row is not None
    names = {"get_fp4_quantization_module", "check_output"}
    return FunctionFacts(
        row.module,
        contract.function,
        HERE / "x.py",
        row.signature,
        row.digest,
        row.source,
        names=frozenset(names),
        first_line=1,
        last_line=2,
    )


def judged(
    version: str, facts: FunctionFacts | None, policy: str = "tested", contract: Contract = FP4
) -> Judgement:
    return judge(contract, the_installed(version), facts, releases=RELEASES, policy=policy)


def test_every_real_release_is_recognised_by_its_code(each_release: str) -> None:
    here, findings = survey(releases.path(each_release) / "flashinfer", [], "tested")
    assert here.release == each_release
    assert here.problem == ""
    for finding in findings:
        contract, judgement = finding.patch.contract, finding.judgement
        if finding.facts is not None:
            assert judgement.verdict is Verdict.PENDING, (finding.patch.name, judgement)
            assert judgement.row is not None
        else:
            assert judgement.verdict is Verdict.NOT_NEEDED, (finding.patch.name, judgement)
            assert judgement.reason == f"release {each_release} has no such function"
            assert not defined_anywhere(each_release, contract), finding.patch.name


def test_a_known_file_is_told_as_its_functions_are_one_by_one(each_release: str) -> None:
    package = releases.path(each_release) / "flashinfer"
    _, findings = survey(package, [], "tested")
    sources = Sources(package)
    for finding in findings:
        row, facts = finding.judgement.row, finding.facts
        if facts is None or row is None:
            continue
        assert facts.last_line == 0, (
            f"{finding.target} was looked for, its file is not in files.json"
        )
        contract = finding.patch.contract
        alone = sources.facts(row.module, contract.function, contract.companions)
        assert alone is not None
        assert (facts.module, facts.name, facts.path) == (alone.module, alone.name, alone.path)
        assert facts.signature in ("", alone.signature)
        assert facts.digest == alone.digest
        assert facts.source in ("", alone.source)


def test_the_files_of_a_release_hold_the_functions_that_its_rows_say(each_release: str) -> None:
    """Where all files are the released ones no row is read, so the two tables have to agree."""
    told = {name: module for module, _, names in released(each_release) for name in names}
    rows = {patch.name: patch.contract.row_for(Version(each_release)) for patch in PATCHES}
    assert told == {name: row.module for name, row in rows.items() if row is not None}


def test_a_verdict_that_follows_from_the_files_is_the_contracts(each_release: str) -> None:
    package = releases.path(each_release) / "flashinfer"
    for finding in judge_all(installed(package, []), "tested"):
        assert finding.verdict is finding.judgement.verdict, finding.patch.name
        assert finding.facts is None or finding.module == finding.facts.module


def defined_anywhere(release: str, contract: Contract) -> list[str]:
    """The modules of the contract that define its function in that release."""
    package = releases.path(release) / "flashinfer"
    return [
        module
        for module in contract.modules(None)
        if function_facts(package, module, contract.function) is not None
    ]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda p: p.name)
def test_the_rows_are_of_listed_releases_in_order_and_do_not_overlap(patch: Patch) -> None:
    rows = patch.contract.rows
    assert rows
    bounds = [RELEASES.index(bound) for row in rows for bound in (row.since, row.until)]
    assert bounds == sorted(bounds)
    for release in RELEASES:
        assert sum(row.covers(Version(release)) for row in rows) <= 1, release


@pytest.mark.parametrize("contract", [CUDA, FP4, *JIT], ids=lambda c: c.function)
def test_a_function_of_every_release_has_a_row_for_every_release(contract: Contract) -> None:
    for release in RELEASES:
        assert contract.row_for(Version(release)) is not None, release


def test_the_releases_are_listed_in_order() -> None:
    assert list(RELEASES) == sorted(RELEASES, key=Version)


def test_a_local_build_of_a_tested_release_counts_as_that_release() -> None:
    facts = the_facts(FP4, "0.6.7.post3")
    assert judged("0.6.7.post3+nv26.04", facts).verdict is Verdict.PENDING


@pytest.mark.parametrize("version", ["99.0", "0.7.0.dev20260922", "0.6.12rc1+rtp.260523", "1.0"])
def test_an_unlisted_release_is_refused_however_well_its_code_fits(version: str) -> None:
    judgement = judged(version, the_facts(FP4, "0.7.4"))
    assert judgement.verdict is Verdict.REFUSED
    assert Version(version).public in judgement.reason
    assert f"{RELEASES[0]} to {RELEASES[-1]}" in judgement.expected
    assert "FLASHINFER_SHIM_POLICY=adapt" in judgement.action


def test_adapt_takes_an_unlisted_release_whose_signature_fits_by_the_newest_row() -> None:
    facts = dataclasses.replace(the_facts(FP4, "0.7.4"), digest="0" * 12)
    judgement = judged("99.0", facts, "adapt")
    assert judgement.verdict is Verdict.PENDING
    assert judgement.row is FP4.rows[-1]
    assert "adapt" in judgement.reason


def test_adapt_refuses_a_signature_that_no_release_had() -> None:
    facts = dataclasses.replace(the_facts(FP4, "0.7.4"), signature="input, scale")
    assert judged("99.0", facts, "adapt").verdict is Verdict.REFUSED


def test_adapt_refuses_a_body_in_which_the_fault_is_not_seen() -> None:
    facts = dataclasses.replace(the_facts(FP4, "0.7.4"), names=frozenset({"launch"}))
    assert judged("99.0", facts, "adapt").verdict is Verdict.REFUSED


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"signature": "input"}, "signature"), ({"digest": "0" * 12}, "body")],
)
def test_changed_code_of_a_tested_release_is_refused(change: dict[str, str], reason: str) -> None:
    facts = dataclasses.replace(the_facts(FP4, "0.6.3"), **change)  # type: ignore[arg-type]
    judgement = judged("0.6.3", facts)
    assert judgement.verdict is Verdict.REFUSED
    assert reason in judgement.reason
    assert "flashinfer-python==0.6.3" in judgement.action


def test_adapt_takes_a_changed_body_but_not_a_changed_signature() -> None:
    facts = the_facts(FP4, "0.6.3")
    body = dataclasses.replace(facts, digest="0" * 12)
    assert judged("0.6.3", body, "adapt").verdict is Verdict.PENDING
    signature = dataclasses.replace(facts, signature="input")
    assert judged("0.6.3", signature, "adapt").verdict is Verdict.REFUSED


def test_a_function_that_is_gone_is_refused() -> None:
    assert judged("0.6.3", None).verdict is Verdict.REFUSED
    assert judged("99.0", None, "adapt").verdict is Verdict.REFUSED


@pytest.mark.parametrize(
    ("contract", "decorators", "names"),
    [
        (FP4, ("torch.library.custom_op",), {"get_fp4_quantization_module"}),
        (FP4, (), {"torch", "ops", "flashinfer", "fp4_quantize"}),
        (CUDA, (), {"torch", "version", "cuda", "Version"}),
        (CUDA, ("torch.compiler.assume_constant_result",), {"check_output"}),
    ],
)
def test_what_upstream_has_cured_is_not_needed(
    contract: Contract, decorators: tuple[str, ...], names: set[str]
) -> None:
    facts = dataclasses.replace(
        the_facts(contract, "0.7.4"), decorators=decorators, names=frozenset(names)
    )
    assert judged("99.0", facts, contract=contract).verdict is Verdict.NOT_NEEDED


def test_a_problem_with_the_metadata_is_refused_with_its_words() -> None:
    here = the_installed("0.6.3")._replace(version=None, problem="two releases")
    judgement = judge(FP4, here, the_facts(FP4, "0.6.3"), releases=RELEASES, policy="adapt")
    assert judgement.verdict is Verdict.REFUSED
    assert judgement.reason == "two releases"


def test_a_torch_that_is_too_old_is_refused_with_its_number(tmp_path: Path) -> None:
    info = tmp_path / "torch-2.5.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.5.1+cu124\n")
    package = releases.path("0.6.3") / "flashinfer"
    _, findings = survey(package, [str(tmp_path)], "tested")
    there = [finding for finding in findings if finding.facts is not None]
    assert len(there) >= 20
    for finding in there:
        assert finding.judgement.verdict is Verdict.REFUSED
        assert finding.judgement.reason == "torch 2.5.1+cu124 is older than 2.9"
        assert "2.9 or newer" in finding.judgement.action


# --- what is read from files --------------------------------------------------------------------


def make_package(root: Path, build_meta: str | None, dists: dict[str, str | None]) -> Path:
    package = root / "flashinfer"
    package.mkdir()
    if build_meta is not None:
        (package / "_build_meta.py").write_text(f'__version__ = "{build_meta}"\n')
    for name, version in dists.items():
        info = root / f"{name.replace('-', '_')}-{version or '0'}.dist-info"
        info.mkdir()
        if version is not None:
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )
    return package


@pytest.mark.parametrize(
    ("build_meta", "dists", "release"),
    [
        ("0.6.3", {"flashinfer-python": "0.6.3"}, "0.6.3"),
        (None, {"flashinfer": "0.5.0"}, "0.5.0"),
        ("0.6.7.post3", {"flashinfer-python": "0.6.7.post3+nv26.04"}, "0.6.7.post3"),
        ("0.6.9", {"flashinfer-python": "v0.6.9"}, "0.6.9"),
        ("0.6.3", {"flashinfer-python": None}, "0.6.3"),
        ("0.6.3", {}, "0.6.3"),
    ],
)
def test_the_release_is_read(
    tmp_path: Path, build_meta: str | None, dists: dict[str, str | None], release: str
) -> None:
    found = installed(make_package(tmp_path, build_meta, dists), [])
    assert (found.release, found.problem) == (release, "")


@pytest.mark.parametrize(
    ("build_meta", "dists", "word"),
    [
        ("0.6.3", {"flashinfer-python": "0.7.4"}, "contradicts"),
        (None, {"flashinfer-python": "0.7.4", "flashinfer": "0.5.0"}, "contradicts"),
        (None, {"flashinfer-python": "zero"}, "not a version"),
        (None, {}, "no metadata"),
        (None, {"flashinfer-python": None}, "no metadata"),
        ("0.0.0+unknown", {"flashinfer-python": "0.6.3"}, "contradicts"),
    ],
)
def test_what_cannot_be_verified_is_said(
    tmp_path: Path, build_meta: str | None, dists: dict[str, str | None], word: str
) -> None:
    found = installed(make_package(tmp_path, build_meta, dists), [])
    assert found.version is None
    assert word in found.problem


def test_metadata_beside_the_package_wins_over_metadata_elsewhere(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    make_package(elsewhere, None, {"flashinfer-python": "0.7.4"})
    here = tmp_path / "here"
    here.mkdir()
    package = make_package(here, None, {"flashinfer-python": "0.6.3"})
    assert installed(package, [str(elsewhere)]).release == "0.6.3"


SOURCE = '''
@decorate(
    trace=1,
)
@torch.compiler.disable
def f(a: int, b: "x" = 2, *, c=None) -> int:
    """Doc."""
    return helper(a.b)  # why


def f2():
    pass

def helper(x):
    """Other doc."""
    return x
'''


def facts_of(tmp_path: Path, source: str, *companions: str) -> FunctionFacts | None:
    package = tmp_path / "flashinfer"
    package.mkdir(exist_ok=True)
    (package / "m.py").write_text(source)
    return function_facts(package, "flashinfer.m", "f", companions)


def test_a_function_is_described_from_its_source(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, SOURCE, "helper")
    assert facts is not None
    assert facts.signature == "a, b=2, *, c=None"
    assert facts.decorators == ("decorate", "torch.compiler.disable")
    assert facts.names == {"helper", "a", "b"}
    assert (facts.first_line, facts.last_line) == (2, 8)


def test_the_digest_ignores_docstrings_and_decorators_and_nothing_else(tmp_path: Path) -> None:
    def digest(source: str) -> str:
        facts = facts_of(tmp_path, source, "helper")
        assert facts is not None
        return facts.digest

    same = digest(SOURCE)
    assert digest(SOURCE.replace("Doc.", "Another.").replace("Other doc.", "More.")) == same
    assert digest(SOURCE.replace("@torch.compiler.disable\n", "")) == same
    assert digest(SOURCE.replace("a.b", "a.c")) != same
    assert digest(SOURCE.replace("return x", "return -x")) != same


def test_the_last_definition_counts_and_a_nested_one_does_not(tmp_path: Path) -> None:
    source = "def f(a):\n    pass\n\nif 1:\n    def f(b):\n        pass\n\ndef f(c):\n    pass\n"
    facts = facts_of(tmp_path, source)
    assert facts is not None
    assert facts.signature == "c"


@pytest.mark.parametrize("source", ["", "f = 1\n", "def f(:\n    pass\n", "def f(\n"])
def test_what_is_not_there_or_does_not_parse_gives_no_facts(tmp_path: Path, source: str) -> None:
    assert facts_of(tmp_path, source) is None


@pytest.mark.parametrize(
    ("below", "line"),
    [
        ("f = g\n", 3),
        ("\nf: object = g\n", 4),
        ("from .m import f\n", 3),
        ("from .m import (\n    e,\n    f,\n)\n", 3),
        ("def g(): ...\nf = g\n", 4),
        ("", 0),
        ("f = torch.compiler.disable(f)\n", 0),  # a decorator in other words
        ("f = decorate(f, 1)\nf == g\nff = g\n", 0),
        ("from .m import f as g\n", 0),
        ("def f(a):\n    f = a\n", 0),
    ],
)
def test_a_name_that_is_bound_again_below_its_function_is_seen(
    tmp_path: Path, below: str, line: int
) -> None:
    facts = facts_of(tmp_path, f"f = 1\ndef f(a): ...\n{below}")
    assert facts is not None
    assert facts.rebound == line
    inside = f"class C:\n    f = 1\n    def f(a): ...\n{indent(below, '    ')}"
    (tmp_path / "flashinfer" / "m.py").write_text(inside)
    facts = function_facts(tmp_path / "flashinfer", "flashinfer.m", "C.f")
    assert facts is not None
    assert facts.rebound == (line and line + 1)


@pytest.mark.parametrize(("version", "policy"), [("0.6.3", "tested"), ("99.0", "adapt")])
def test_a_function_whose_name_is_bound_again_is_refused(version: str, policy: str) -> None:
    facts = the_facts(FP4, "0.6.3")
    assert judged(version, facts, policy).verdict is Verdict.PENDING
    for known in (facts, dataclasses.replace(facts, released=True)):
        again = judged(version, dataclasses.replace(known, rebound=9), policy)
        assert again.verdict is Verdict.REFUSED
        assert again.reason == "line 9 of /nowhere/flashinfer/x.py puts something else in its place"


def test_a_missing_module_gives_no_facts(tmp_path: Path) -> None:
    assert function_facts(tmp_path, "flashinfer.absent", "f") is None
