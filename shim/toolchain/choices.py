"""What FlashInfer decides by the version of CUDA that ``get_cuda_version`` tells it.

Without us that is nvcc's, with us torch's (unless the user wants nvcc's). One row for each decision
and the release that first made it; a test holds the versions against the sources of each release.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
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
        about: GPUs of this compute capability (``12.0``), or of all that begin so (``12.``).
    """

    of: str
    cuda: str
    since: str
    below: str
    above: str
    flag: str = ""
    needs: str | None = None
    lack: str = ""
    about: str = ""

    def concerns(self, entries: Iterable[str]) -> bool:
        """Whether it is about one of these compute capabilities, or entries of the list."""
        about = self.about
        if not about:
            return True
        return any(e.startswith(about) if about.endswith(".") else e == about for e in entries)


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
        about="12.",
    ),
    Choice(
        "packed KDA decode on 10.0",
        "12.9",
        "0.6.18",
        below="sm_100a, nothing below CUDA 12.8",
        above="sm_100f",
        flag=targets.gencode("100f"),
        needs="12.9",
        lack="nvcc cannot target sm_100f: packed KDA decode cannot be built",
        about="10.",
    ),
    Choice(
        "tinygemm2 on 10.x",
        "13.4",
        "0.7.0",
        below="no target for 10.7",
        above="sm_107a too",
        flag=targets.gencode("107a"),
        needs="13.4",
        lack="nvcc cannot target sm_107a: tinygemm2 cannot be built",
        about="10.",
    ),
    Choice(
        "sparse MLA on 12.0",
        "13.2",
        "0.7.2",
        below="conversion by way of FP32",
        above="direct conversion to BF16",
        needs="13.2",
        lack="nvcc does not take PTX of ISA 9.2: that sparse MLA cannot be built",
        about="12.",
    ),
)

#: What FlashInfer decides by ``torch.version.cuda`` itself, without us too.
BY_TORCH = (
    Choice(
        "fp4_quantize on 12.x",
        "12.9",
        "0.6.6",
        below="sm_120a or sm_121a",
        above="sm_120f",
        flag=targets.gencode("120f"),
        needs="12.9",
        lack="the module of fp4_quantize on 12.x is compiled for sm_120f, which it cannot target",
        about="12.",
    ),
)

#: From this release on the target of a GPU of 12.x, or of an entry without a suffix, depends on the
#: version; ``targets.normalised`` knows how.
_12_X_SINCE = "0.6.7"


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


def differences(
    nvcc: Version, torch_cuda: Version, release: Version, arch_list: str | None
) -> tuple[Difference, ...]:
    """What a release of FlashInfer decides otherwise for ``nvcc`` than for ``torch_cuda``.

    Of what is about GPUs of one kind, that which concerns an entry of ``arch_list``; where there is
    no list, all of it, since any GPU may be compiled for.
    """
    found = []
    for choice in (*CHOICES, *_targets(nvcc, torch_cuda, release)):
        step = Version(choice.cuda)
        if Version(choice.since) > release or (nvcc >= step) == (torch_cuda >= step):
            continue
        if arch_list is not None and not choice.concerns(arch_list.split(" ")):
            continue
        if torch_cuda < step:
            found.append(Difference(choice, choice.above, choice.below, ""))
        else:
            lacking = choice.needs is not None and nvcc < Version(choice.needs)
            lack = choice.lack if lacking else ""
            found.append(Difference(choice, choice.below, choice.above, lack))
    return tuple(found)


def broken_by_torch(
    nvcc: Version, torch_cuda: Version, release: Version, entries: Collection[str]
) -> tuple[str, ...]:
    """What cannot be built for these compute capabilities since torch is newer than nvcc."""
    return tuple(
        choice.lack
        for choice in BY_TORCH
        if Version(choice.since) <= release
        and choice.concerns(entries)
        and nvcc < Version(choice.cuda) <= torch_cuda
    )


def _targets(nvcc: Version, torch_cuda: Version, release: Version) -> Iterator[Choice]:
    """The target of a GPU of 12.0 and of one of 12.1, where the two versions lead to two."""
    older, newer = sorted((nvcc, torch_cuda))
    for minor in (0, 1):
        below, above = _target(minor, release, older), _target(minor, release, newer)
        if above is None or above == below:
            continue
        yield Choice(
            f"target of compute capability 12.{minor}",
            str(newer),
            _12_X_SINCE,
            below=f"sm_{below}" if below else "none: FlashInfer has no target",
            above=f"sm_{above}",
            flag=targets.gencode(above),
            needs=targets.brought_by(above),
            lack=f"nvcc cannot target sm_{above}: nothing can be built for 12.{minor}",
            about=f"12.{minor}",
        )


def _target(minor: int, release: Version, cuda: Version) -> str | None:
    try:
        return targets.normalised(12, minor, release, cuda)
    except targets.Unsupported:
        return None
