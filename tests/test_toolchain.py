"""What we say of the toolchain against what FlashInfer itself makes of it, in each release."""

from __future__ import annotations

import json
import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import children
import pytest
import releases
from check_command import file
from packaging.version import Version
from toolchain_cases import broken_toolkits, chain
from toolchain_child import CUDAS

from shim.toolchain import asking, cache, choices, companions, finding, targets

TESTS = Path(__file__).parent

#: Fit and unfit, as people write them.
LISTS = (
    *("9.0a", "8.0 9.0a 10.0a", "9.0", "10.0", "12.0", "12.1", "12.0f", "12.1a 9.0", "11.0", "7.5"),
    *("", " ", "9.0 ", "8.9  9.0", "9.0;10.0", "9.0,10.0", "9.0+PTX", "90a", "sm_90a", "9.", "9.x"),
)
COMPANIONS = (
    *(("flashinfer_cubin", each) for each in ("{}", "{}9", "0.4.0")),
    *(("flashinfer_jit_cache", each) for each in ("{}+cu130", "{}9+cu130", "0.4.0+cu130")),
)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The cases, and what FlashInfer makes of each in each release: one process for all of them."""
    folder = tmp_path_factory.mktemp("toolkits")
    unset = dict.fromkeys(("CUDA_HOME", "CUDA_PATH", "FLASHINFER_WORKSPACE_BASE"))
    toolkits = broken_toolkits(folder)
    caches: dict[str, dict[str, str | None]] = {
        "home": {"HOME": "/h"},
        "base": {"HOME": "/h", "FLASHINFER_WORKSPACE_BASE": "/b/"},
        "empty": {"HOME": "/h", "FLASHINFER_WORKSPACE_BASE": ""},
        "relative": {"HOME": "/h", "FLASHINFER_WORKSPACE_BASE": "b"},
    }
    cases = {
        "trees": {release: str(releases.path(release)) for release in releases.RELEASES},
        "toolkits": [unset | each for each in toolkits.values()],
        "lists": LISTS,
        "caches": [unset | each for each in caches.values()],
        "companions": {
            release: [(package, text.format(release)) for package, text in COMPANIONS]
            for release in releases.RELEASES
        },
    }
    script = file(folder / "cases.json", json.dumps(cases))
    child = children.run_child(
        None,
        scratch=folder,
        shim=False,
        args=[TESTS / "toolchain_child.py", script],
        env={"PYTHONPATH": str(TESTS)},
    )
    return {"toolkits": toolkits, "caches": caches, "found": child.json}


def test_the_toolkit_is_the_one_that_flashinfer_takes_and_so_is_the_version_without_us(
    work: dict[str, Any],
) -> None:
    for release, found in work["found"].items():
        for (name, environ), (home, version) in zip(
            work["toolkits"].items(), found["toolkits"], strict=True
        ):
            here = chain(environ, release=release, ask=True)
            told = here.without_us
            assert home == here.toolkit.home if here.toolkit else home.startswith("RuntimeError")
            if told.version:
                assert version == str(told.version), (release, name)
            else:
                assert version.partition(":")[0] == told.source, (release, name)


def test_targets_are_those_that_flashinfer_makes_of_a_list(work: dict[str, Any]) -> None:
    for release, found in work["found"].items():
        for cuda in CUDAS:
            for text in LISTS:
                ours = targets.listed(text, Version(release), Version(cuda))
                theirs = found["archs"][cuda][text]
                if ours.error.startswith("RuntimeError"):
                    assert theirs.startswith("RuntimeError"), (release, cuda, text)
                else:
                    assert (ours.error or " ".join(ours.archs)) == theirs, (release, cuda, text)


def test_every_module_gets_the_flag_from_the_version_on_that_we_say(work: dict[str, Any]) -> None:
    choice = choices.CHOICES[0]
    for release, found in work["found"].items():
        for cuda in CUDAS:
            given = Version(cuda) >= Version(choice.cuda)
            assert found["archs"][cuda]["stub"] is given, (release, cuda)


def test_the_cache_is_where_flashinfer_has_it(work: dict[str, Any]) -> None:
    for release, found in work["found"].items():
        for environ, theirs in zip(work["caches"].values(), found["caches"], strict=True):
            assert cache.look(environ, release).path == theirs, (release, environ)


def test_a_companion_comes_to_what_we_say(work: dict[str, Any]) -> None:
    for release, found in work["found"].items():
        for (package, text), theirs in zip(COMPANIONS, found["companions"], strict=True):
            version = text.format(release)
            if Version(version).public == release:
                assert theirs == "takes", (release, package)
                continue
            name = package.replace("_", "-")
            said = companions.consequence(name, version, Version(release), {})
            word = {"it takes": "takes", "its impo": "raises", "it leave": "leaves"}[
                (said or "")[:8]
            ]
            assert word == theirs, (release, package, version)


def test_a_directory_of_cubins_goes_before_the_package_from_0_6_16_on() -> None:
    def said(release: str, **environ: str) -> str | None:
        return companions.consequence("flashinfer-cubin", "0.4.0", Version(release), environ)

    assert said("0.6.13", FLASHINFER_CUBIN_DIR="/c") == "its import raises RuntimeError"
    assert said("0.6.18.post1", FLASHINFER_CUBIN_DIR="/c") is None
    assert "takes kernels" in str(said("0.6.13", FLASHINFER_DISABLE_VERSION_CHECK="1"))


# --- the rows against the sources ---------------------------------------------------------------

#: Below these FlashInfer keeps what it does not call by itself, tools, and other projects' code.
_OTHER = re.compile(r"^(experimental|data|aot\.py|__main__\.py|moe_ep/kernel_src)|cake_build\.py$")


def decided(release: str) -> set[str]:
    """The versions of CUDA that a release's own code compares get_cuda_version with."""
    package = releases.path(release) / "flashinfer"
    found: set[str] = set()
    for path in package.rglob("*.py"):
        text = path.read_text()
        if "cuda_version" not in text or _OTHER.search(str(path.relative_to(package))):
            continue
        found |= set(re.findall(r"is_cuda_version_at_least\(\s*\"([\d.]+)\"", text))
        compared = r"\b_?(?:get_)?cuda_version(?:\(\))? *(?:>=|<) *Version\(\"([\d.]+)\"\)"
        found |= set(re.findall(compared, text))
        majors = re.findall(r"\bget_cuda_version\(\)\.major *(?:>=|<) *(\d+)", text)
        found |= {f"{major}.0" for major in majors}
    return found


def test_the_versions_at_which_something_is_decided_are_those_of_the_sources(
    each_release: str,
) -> None:
    cudas = [Version(f"{major}.{minor}") for major in (11, 12, 13) for minor in range(10)]
    ours = {
        str(newer)
        for older, newer in pairwise(cudas)
        if choices.differences(older, newer, Version(each_release), None)
    }
    assert ours == decided(each_release)


def test_each_row_begins_with_the_release_that_has_it() -> None:
    # One line that stands in the sources from that release on, of each row that is not in all.
    lines = {
        "b12x kernels (mm_fp4, fused MoE on 12.x)": "get_cuda_version().major < 13",
        "packed KDA decode on 10.0": 'is_cuda_version_at_least("12.9") else "sm100a"',
        "tinygemm2 on 10.x": 'is_cuda_version_at_least("13.4")',
        "fp4_quantize on 12.x": 'if version_at_least(torch.version.cuda, "12.9"):',
        "sparse MLA on 12.0": 'get_cuda_version() >= Version("13.2")',
    }
    for choice in (*choices.CHOICES, *choices.BY_TORCH):
        if choice.since == "0.5.0":
            continue
        for release in releases.RELEASES:
            package = releases.path(release) / "flashinfer"
            folders = ("kda_kernels", "jit", "mla", "fused_moe")
            paths = [path for folder in folders for path in (package / folder).rglob("*.py")]
            paths += package.rglob("fp4_quantization.py")
            here = any(lines[choice.of] in path.read_text() for path in paths)
            assert here is (Version(release) >= Version(choice.since)), (choice.of, release)


# --- targets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cuda", "can", "cannot"),
    [
        ("12.6", ("70", "90", "90a"), ("100a", "120", "90f", "89a")),
        ("12.8", ("70", "100a", "101a", "120a"), ("100f", "103a", "121a", "120f")),
        ("12.9", ("100f", "120f", "121a", "103a"), ("110a", "90f", "90+PTX", "")),
        ("13.0", ("75", "88", "110f", "120f"), ("70", "101a", "107a")),
    ],
)
def test_what_an_nvcc_can_target(cuda: str, can: tuple[str, ...], cannot: tuple[str, ...]) -> None:
    assert [arch for arch in can if not targets.takes(Version(cuda), arch)] == []
    assert [arch for arch in cannot if targets.takes(Version(cuda), arch)] == []
    assert targets.takes(Version(cuda), "130a") is None  # newer than what we know


def test_a_real_nvcc_agrees() -> None:
    here = finding.find(dict(os.environ))
    answer = asking.version([here.compiler]) if here else None
    if here is None or answer is None or answer.release is None:
        pytest.skip("no nvcc on this machine")
    if answer.release > Version("13.0"):
        pytest.skip(f"nvcc {answer.release} is newer than what we know")
    numbers = ("70", "75", "80", "86", "87", "88", "89", "90", "100", "101", "103", "110", "120")
    flags = {targets.gencode(n + s): n + s for n in (*numbers, "121") for s in ("", "a", "f")}
    refused = asking.refused([here.compiler], flags)
    for flag, arch in flags.items():
        assert targets.takes(answer.release, arch) is (flag not in refused), arch


@pytest.mark.parametrize(
    ("text", "better"),
    [
        ("9.0;10.0", "9.0 10.0"),
        ("9.0,", "9.0"),
        (" sm_90a ", "9.0a"),
        ("'12.0f'", "12.0f"),
        ("120f 9.0+PTX", "12.0f 9.0"),
        ("native", None),
        ("", None),
    ],
)
def test_a_list_that_was_meant_is_offered(text: str, better: str | None) -> None:
    assert targets.corrected(text) == better
