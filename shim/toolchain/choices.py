"""What FlashInfer decides by the version of CUDA that ``get_cuda_version`` tells it.

Without us that is nvcc's, with us torch's (unless the user wants nvcc's). One row for each decision
and the release that first made it; a test holds the versions against the sources of each release.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packaging.version import Version

from . import targets


@dataclass(frozen=True)
class Choice:
    """One decision.

    Attributes:
        of: what it is about: modules, functions.
        cuda: the CUDA version from which on it falls the other way.
        since: the first release of FlashInfer that makes it.
        below: what is chosen for an older CUDA.
        above: what is chosen from ``cuda`` on.
        flag: what nvcc is given from ``cuda`` on, empty where that is no matter of nvcc's.
        needs: the CUDA release whose nvcc or headers ``above`` takes, None if any will do.
        lack: what becomes of it with an older one.
    """

    of: str
    cuda: str
    since: str
    below: str
    above: str
    flag: str = ""
    needs: str | None = None
    lack: str = ""


_STUB = "-static-global-template-stub=false"

CHOICES = (
    Choice(
        "every module",
        "12.8",
        "0.5.0",
        below=f"no {_STUB}",
        above=_STUB,
        flag=_STUB,
        needs="12.8",
        lack=f"nvcc does not know the option {_STUB}: no module can be built",
    ),
    Choice(
        "modules of fp4_quantize and cutlass_fused_moe",
        "12.8",
        "0.5.0",
        below="no -DENABLE_FP4: without FP4",
        above="-DENABLE_FP4",
        needs="12.8",
        lack="with -DENABLE_FP4 the sources include cuda_fp4.h, which came with CUDA 12.8",
    ),
    Choice(
        "modules of cutlass_fused_moe and FP8 block scale gemm",
        "12.8",
        "0.5.0",
        below="no -DENABLE_FP8_BLOCK_SCALE",
        above="-DENABLE_FP8_BLOCK_SCALE",
    ),
    Choice(
        "b12x kernels (mm_fp4, fused MoE on 12.x)",
        "13.0",
        "0.6.9",
        below="not supported",
        above="chosen",
    ),
    Choice(
        "packed KDA decode on 10.0",
        "12.9",
        "0.6.18",
        below="sm_100a",
        above="sm_100f",
        flag=targets.gencode("100f"),
        needs="12.9",
        lack="nvcc cannot target sm_100f: that module cannot be built",
    ),
    Choice(
        "tinygemm2 on 10.x",
        "13.4",
        "0.7.0",
        below="no target for 10.7",
        above="sm_107a too",
        flag=targets.gencode("107a"),
        needs="13.4",
        lack="nvcc cannot target sm_107a: that module cannot be built",
    ),
    Choice(
        "sparse MLA on 12.0",
        "13.2",
        "0.7.2",
        below="conversion by way of FP32",
        above="direct conversion to BF16",
        needs="13.2",
        lack="nvcc does not take PTX of ISA 9.2: that module cannot be built",
    ),
)

#: The release of FlashInfer from which on the target of a GPU of 12.x depends on the version.
_12_X_SINCE = Version("0.6.7")


@dataclass(frozen=True)
class Difference:
    """One decision that falls one way for nvcc's version and the other way for torch's.

    Attributes:
        choice: the decision.
        by_nvcc: what is chosen where FlashInfer is told nvcc's version.
        by_torch: what is chosen where it is told torch's.
        lack: what breaks where torch's is told, empty if nothing.
    """

    choice: Choice
    by_nvcc: str
    by_torch: str
    lack: str


def made_by(release: Version) -> tuple[Choice, ...]:
    """The decisions that a release of FlashInfer makes."""
    fixed = [choice for choice in CHOICES if Version(choice.since) <= release]
    return (*fixed, *_12_x(release))


def thresholds(release: Version) -> tuple[Version, ...]:
    """The CUDA versions at which a release of FlashInfer decides something, ascending."""
    return tuple(sorted({Version(choice.cuda) for choice in made_by(release)}))


def crossed(nvcc: Version, torch_cuda: Version, release: Version) -> tuple[Version, ...]:
    """The thresholds that torch's CUDA reaches and nvcc's release does not, ascending."""
    return tuple(step for step in thresholds(release) if nvcc < step <= torch_cuda)


def differences(nvcc: Version, torch_cuda: Version, release: Version) -> tuple[Difference, ...]:
    """What a release of FlashInfer decides otherwise for ``nvcc`` than for ``torch_cuda``."""
    found = []
    for choice in made_by(release):
        step = Version(choice.cuda)
        by_nvcc = choice.above if nvcc >= step else choice.below
        by_torch = choice.above if torch_cuda >= step else choice.below
        if by_nvcc != by_torch:
            lacking = torch_cuda >= step and choice.needs and nvcc < Version(choice.needs)
            found.append(Difference(choice, by_nvcc, by_torch, choice.lack if lacking else ""))
    return tuple(found)


def _12_x(release: Version) -> Iterator[Choice]:
    """The target of a GPU of 12.0 and of one of 12.1, or of such an entry of the list."""
    if release < _12_X_SINCE:
        return
    for minor, cudas in ((0, ("12.8", "12.9")), (1, ("12.9",))):
        for cuda in cudas:
            above = _target(minor, release, cuda)
            below = _target(minor, release, "12.8" if cuda == "12.9" else "12.6")
            if above is None or above == below:
                continue
            yield Choice(
                f"target of compute capability 12.{minor}",
                cuda,
                str(_12_X_SINCE),
                below=f"sm_{below}" if below else "none: FlashInfer has no target",
                above=f"sm_{above}",
                flag=targets.gencode(above),
                needs=targets.brought_by(above),
                lack=f"nvcc cannot target sm_{above}: no module can be built for 12.{minor}",
            )


def _target(minor: int, release: Version, cuda: str) -> str | None:
    try:
        return targets.normalised(12, minor, release, Version(cuda))
    except targets.Unsupported:
        return None
