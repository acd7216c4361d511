"""``get_cuda_version`` without a subprocess.

What breaks: the original runs ``which nvcc`` and ``nvcc --version``; a compiler that meets it, by
way of ``is_cuda_version_at_least`` in any JIT-backed function, stops with "cannot trace
_thread.allocate_lock" (flashinfer #2733). Its functools.cache does not help, since Dynamo traces
through caches. Every release so far.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
from packaging.version import Version

from .. import announce
from ..opaque.identity import take_over
from . import Site


def build(site: Site) -> Callable[[], Version]:
    """The replacement: torch's CUDA, or nvcc's asked once here if the settings say so."""
    _compare_toolkit(site)
    return _answering(site.function, _asked_nvcc(site))


def _answering(original: Callable[..., Any], nvcc: str | None) -> Callable[[], Version]:
    is_dynamo_compiling = torch.compiler.is_dynamo_compiling

    @functools.cache
    def answer() -> Version:
        return Version(nvcc or torch.version.cuda or "")

    def get_cuda_version() -> Version:
        text = nvcc or torch.version.cuda
        if text is None:
            # A CPU build of torch knows no CUDA: nvcc or the original's own error is the answer.
            return original()  # type: ignore[no-any-return]
        if is_dynamo_compiling():
            # Built anew: one prebuilt object in a closure crashes Dynamo on torch 2.9.
            return Version(text)
        return answer()

    def cache_clear() -> None:
        answer.cache_clear()
        original.cache_clear()  # type: ignore[attr-defined]

    replacement = take_over(get_cuda_version, original)
    # The original is a functools.cache object, and its users may treat it as one.
    replacement.cache_info = answer.cache_info  # type: ignore[attr-defined]
    replacement.cache_clear = cache_clear  # type: ignore[attr-defined]
    replacement.cache_parameters = answer.cache_parameters  # type: ignore[attr-defined]
    return replacement


def _asked_nvcc(site: Site) -> str | None:
    """What nvcc says, with a time limit, which FlashInfer's own function does not have."""
    if site.settings.cuda_version != "nvcc":
        return None
    from ..toolchain import asking, finding

    toolkit = finding.find(os.environ)
    if toolkit is None:
        problem = "there is no CUDA toolkit"
    elif fault := finding.fault(toolkit):
        problem = fault.text
    else:
        answer = asking.version([toolkit.compiler])
        if answer.release:
            return str(answer.release)
        problem = f"{toolkit.compiler} --version {answer.problem}"
    announce.warn(
        f"FLASHINFER_SHIM_CUDA_VERSION=nvcc, but {problem}; torch.version.cuda is used; set "
        "CUDA_HOME to a toolkit whose bin/nvcc works"
    )
    return None


def _compare_toolkit(site: Site) -> None:
    """Warn where FlashInfer, told torch's CUDA, asks this nvcc for what it cannot do."""
    if torch.version.cuda is None or site.settings.cuda_version == "nvcc" or not site.release:
        return
    from ..toolchain import finding

    toolkit = finding.find(os.environ)
    told = Version(torch.version.cuda)
    if toolkit is None or toolkit.release is None or toolkit.release == told:
        return
    from ..toolchain import choices, targets

    differences = choices.differences(
        toolkit.release, told, Version(site.release), os.environ.get(targets.VARIABLE)
    )
    broken = list(dict.fromkeys(each.lack for each in differences if each.lack))
    if broken:
        announce.warn(
            f"the CUDA toolkit in {toolkit.home} is {toolkit.release}, torch was built with "
            f"{torch.version.cuda}, and FlashInfer goes by torch's: {'; '.join(broken)}; set "
            "FLASHINFER_SHIM_CUDA_VERSION=nvcc, or CUDA_HOME to a toolkit that matches torch"
        )
