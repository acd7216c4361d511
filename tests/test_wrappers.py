"""Methods of FlashInfer's attention wrappers as ops: in one run on the ends of the matrix.

Kernels do nothing, so plans are made and methods run on CPU tensors: upstream's own Python tells
what a call returns, and our fakes have to say the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ops_cases
import pytest
import releases
from conftest import RunChild
from packaging.version import Version

from shim.patches.ops import OPS

pytestmark = pytest.mark.early

CHILD = Path(__file__).with_name("wrappers_child.py")

#: Options of the calls, beside their examples.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "run": [{}, {"return_lse": True}],
    "forward": [{}],
    "forward_return_lse": [{}],
    "run of BatchAttention": [{}],
    "run of BatchDecodeCuteDSLWrapper": [{}],
    "run of BatchDecodePagedCuteDSLWrapper": [{}],
    "run of BatchMLADecodeCuteDSLWrapper": [{}],
    "run of BlockSparseTSWrapper": [{}],
    "run of BlockSparsePagedTSWrapper": [{}],
    "run of QTokenKvBlockSparsePagedTSWrapper": [{}],
    "run of BatchSparseMLADecodePagedTSWrapper": [{}],
    "run_paged": [{}, {"return_lse": True}],
    "run of CuteDslMoEWrapper": [{}],
    "run of CuteDslMxfp8Mxfp4MoEWrapper": [{}],
    "run of B12xMoEWrapper": [{}],
    "run of MultiLevelCascadeAttentionWrapper": [{}],
    "run of PODWithPagedKVCacheWrapper": [{}, {"return_lse_d": True}],
    "run of NVFP4KVMaterializer": [{}],
    "run of SegmentGEMMWrapper": [{}],
}


#: What a cell of the matrix of versions tries; see ``cells``.
CORE = ("BatchDecodeWithPagedKVCacheWrapper.run",)

#: Releases on which those are tried that need no packages; see ``releases.IS_WHOLE``.
TRIED = releases.RELEASES if releases.IS_WHOLE else releases.asked("0.5.0", "0.7.4")
#: Releases and cards on which those are tried that need NVIDIA's packages.
PACKAGED = (
    *((release, "10.0a") for release in ops_cases.WITH_PACKAGES[-2:]),
    *((release, "10.0a") for release in ops_cases.WITH_PACKAGES[:-2] if releases.IS_WHOLE),
    # Tile schedulers' methods were changed in each.
    *((release, "10.0a") for release in ("0.7.0", "0.7.1", "0.7.2") if releases.IS_WHOLE),
    *(("0.7.4", arch) for arch in ("12.0f", *["10.7a"] * releases.IS_WHOLE)),
)


def asked(release: str, arch: str = "") -> list[tuple[str, dict[str, Any]]]:
    """The methods that a release has, with the options to call them with.

    Args:
        release: of FlashInfer.
        arch: of the card that methods are for which need NVIDIA's packages for kernels written in
            Python; without it the others.
    """
    version = Version(release)
    names = [
        name
        for name, op in OPS.items()
        if op.owner
        and bool(op.arch or op.requires) == bool(arch)
        and ops_cases.CONTRACTS[name].row_for(version)
    ]
    if releases.IS_CORE:
        names = [n for n in names if n in CORE]
    if arch:
        names = [n for n in names if (OPS[n].arch or "10.0") == arch.rstrip("af")]
    found = []
    for name in names:
        owner, _, method = name.partition(".")
        options = OPTIONS.get(f"{method} of {owner}", OPTIONS.get(method, [{}]))
        found += [(name, each) for each in options]
    return found


@pytest.mark.core
@pytest.mark.parametrize("release", TRIED)
def test_wrappers_methods_compile_and_their_fakes_are_what_upstream_returns(
    release: str, run_child: RunChild
) -> None:
    request = asked(release)
    assert request
    check(request, run_child, release, "9.0a", [])


@pytest.mark.parametrize(("release", "arch"), PACKAGED)
def test_those_of_nvidias_packages_likewise(release: str, arch: str, run_child: RunChild) -> None:
    """Their kernels are written in Python, by packages of NVIDIA's."""
    request = asked(release, arch)
    if request:
        check(request, run_child, release, arch, releases.cuda_packages())


def check(
    request: list[tuple[str, dict[str, Any]]],
    run_child: RunChild,
    release: str,
    arch: str,
    packages: Sequence[Path],
) -> None:
    """Ask a child and compare what it says."""
    entries = [releases.ROOT, releases.path(release), *packages]
    env = {
        "PYTHONPATH": os.pathsep.join(map(str, entries)),
        "FLASHINFER_CUDA_ARCH_LIST": arch,
        "CUTE_DSL_ARCH": f"sm_{arch.replace('.', '')}",
    }
    child = run_child(None, env=env, args=[CHILD, json.dumps(request)], timeout=500).json
    problems = []
    for (name, options), answer in zip(request, child["answers"], strict=True):
        if child["verdicts"][name] != "applied":
            problems.append(f"{name}: {child['verdicts'][name]}")
        elif "error" in answer:
            problems.append(f"{name} {options}: {answer['error']}")
        else:
            upstream, graphs = answer["upstream"], answer["graphs"]
            told = [answer["compiled"] == upstream, answer["fake"] == upstream]
            op = f"flashinfer_shim.{name.replace('.', '_')}"
            told += [all(answer["unchanged"]), len(graphs) <= 3]
            # The second where the example has outputs, since there is no call without.
            told += [all(calls in ([op], [f"{op}_out"]) for calls in graphs)]
            if not all(told):
                problems.append(f"{name} {options}: {told} {answer}")
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)
