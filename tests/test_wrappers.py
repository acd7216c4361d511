"""Methods of FlashInfer's attention wrappers as ops, on every release of the matrix.

Kernels do nothing, so plans are made and methods run on CPU tensors: upstream's own Python tells
what a call returns, and our fakes have to say the same.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import releases
from conftest import RunChild
from packaging.version import Version

from shim.patches.op_contracts import contract
from shim.patches.ops import OPS

CHILD = Path(__file__).with_name("wrappers_child.py")

#: Those whose modules need NVIDIA's packages.
IN_CUTE_DSL = ("CuteDslMoEWrapper", "CuteDslMxfp8Mxfp4MoEWrapper", "B12xMoEWrapper")

#: Options of the calls, beside their examples.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "run": [{}, {"return_lse": True}],
    "forward": [{}],
    "forward_return_lse": [{}],
    "run of BatchAttention": [{}],
    **{f"run of {wrapper}": [{}] for wrapper in IN_CUTE_DSL},
    "run of MultiLevelCascadeAttentionWrapper": [{}],
    "run of PODWithPagedKVCacheWrapper": [{}, {"return_lse_d": True}],
}


#: Releases and cards on which they are tried.
PACKAGED = (("0.6.13", "10.0a"), ("0.7.4", "10.0a"), ("0.7.4", "12.0f"))


def asked(release: str, arch: str = "") -> list[tuple[str, dict[str, Any]]]:
    """The methods that a release has, with the options to call them with.

    With an architecture those in CuTe DSL that are for it, without one the others.
    """
    version = Version(release)
    names = [n for n, op in OPS.items() if op.owner and contract(op).row_for(version)]
    names = [n for n in names if (OPS[n].owner in IN_CUTE_DSL) == bool(arch)]
    if arch:
        names = [n for n in names if (OPS[n].arch or "10.0") == arch.rstrip("af")]
    found = []
    for name in names:
        owner, _, method = name.partition(".")
        options = OPTIONS.get(f"{method} of {owner}", OPTIONS.get(method, [{}]))
        found += [(name, each) for each in options]
    return found


def test_wrappers_methods_compile_and_their_fakes_are_what_upstream_returns(
    each_release: str, run_child: RunChild
) -> None:
    request = asked(each_release)
    assert request
    judge(
        request,
        run_child(None, release=each_release, args=[CHILD, json.dumps(request)], timeout=500).json,
    )


@pytest.mark.parametrize(("release", "arch"), PACKAGED)
def test_wrappers_with_kernels_in_cute_dsl_do_too(
    run_child: RunChild, release: str, arch: str
) -> None:
    request = asked(release, arch)
    assert request
    entries = [releases.ROOT, releases.path(release), *releases.cuda_packages()]
    env = {
        "PYTHONPATH": os.pathsep.join(map(str, entries)),
        "FLASHINFER_CUDA_ARCH_LIST": arch,
        "CUTE_DSL_ARCH": f"sm_{arch.replace('.', '')}",
    }
    args: list[str | Path] = [CHILD, json.dumps(request), arch.rstrip("af")]
    judge(request, run_child(None, env=env, args=args, timeout=500).json)


def judge(request: list[tuple[str, dict[str, Any]]], child: dict[str, Any]) -> None:
    """Fail with what the child's answers say."""
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
            told += [all(calls == [op] for calls in graphs)]
            if not all(told):
                problems.append(f"{name} {options}: {told} {answer}")
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)
