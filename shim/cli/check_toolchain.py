"""``check``'s view of the toolchain: what FlashInfer would compile with, for, and into."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from ..settings import Settings
from ..toolchain import asking, cache, choices, driver, finding, targets
from ..toolchain.asking import Answer
from ..toolchain.cache import Cache
from ..toolchain.choices import Difference
from ..toolchain.driver import Driver
from ..toolchain.finding import Fault, Toolkit
from ..toolchain.targets import Targets
from ..upstream import Installed
from .environment import Environment

#: What FlashInfer compiles with, where that is not the toolkit's own nvcc.
BUILDER = "FLASHINFER_NVCC"


@dataclass(frozen=True)
class Told:
    """What ``get_cuda_version`` gives FlashInfer.

    Attributes:
        version: the answer, None where there is none.
        source: ``nvcc`` or ``torch``; else the class of what is raised, or ``hangs``.
    """

    version: Version | None
    source: str


@dataclass(frozen=True)
class Toolchain:
    """All that a build of a FlashInfer module depends on, beside FlashInfer.

    Attributes:
        toolkit: where FlashInfer looks for nvcc, None if there is no such place.
        fault: why that nvcc cannot be started, None if nothing stands against it.
        asked: what it says, None where it was not asked.
        builder: the command of ``FLASHINFER_NVCC``, None where it is not set.
        builder_asked: what that says, None where it was not asked.
        builder_release: CUDA release of the compiler that builds, None if unknown.
        unable: what the compiler that builds says where it takes no call at all, else empty.
        refused: flags that it was asked about and does not take, each with its words.
        torch_cuda: the CUDA that torch was built with, None for none.
        without_us: what FlashInfer's own ``get_cuda_version`` answers.
        with_us: what it answers in this environment, with our settings.
        differences: what FlashInfer decides otherwise because of us.
        arch_list: the value of ``FLASHINFER_CUDA_ARCH_LIST``, None where it is not set.
        targets: what FlashInfer makes of it, None where it is not set or FlashInfer unknown.
        driver: of the GPU, None if none can be seen.
        cache: where modules go.
    """

    toolkit: Toolkit | None
    fault: Fault | None
    asked: Answer | None
    builder: str | None
    builder_asked: Answer | None
    builder_release: Version | None
    unable: str
    refused: Mapping[str, str]
    torch_cuda: Version | None
    without_us: Told
    with_us: Told
    differences: tuple[Difference, ...]
    arch_list: str | None
    targets: Targets | None
    driver: Driver | None
    cache: Cache

    @property
    def release(self) -> Version | None:
        """CUDA release of the toolkit's nvcc: its own word, or else what its files state."""
        if self.asked and self.asked.release:
            return self.asked.release
        return self.toolkit.release if self.toolkit else None

    def takes(self, arch: str) -> bool | None:
        """Whether the compiler that builds can target ``arch``, None if nobody knows."""
        if targets.gencode(arch) in self.refused:
            return False
        return targets.takes(self.builder_release, arch) if self.builder_release else None


def look(
    environ: Mapping[str, str],
    environment: Environment,
    installed: Installed | None,
    settings: Settings,
    *,
    tells_torch_cuda: bool,
    ask: bool,
) -> Toolchain:
    """Look at the toolchain; with ``ask`` nvcc is started, each time with a time limit.

    ``tells_torch_cuda``: the patch of get_cuda_version will be in force.
    """
    toolkit, release = environment.toolkit, installed.version if installed else None
    fault = finding.fault(toolkit) if toolkit else None
    asked = asking.version([toolkit.compiler]) if ask and toolkit and not fault else None
    stated = (asked and asked.release) or (toolkit.release if toolkit else None)
    torch_cuda = _version(environment.torch.cuda if environment.torch else None)
    without_us = _without_us(fault, asked, stated, torch_cuda)
    by_torch = settings.cuda_version == "torch" or without_us.source != "nvcc"
    ours = tells_torch_cuda and by_torch and torch_cuda is not None
    with_us = Told(torch_cuda, "torch") if ours else without_us
    arch_list = environ.get(targets.VARIABLE)
    differences = _differences(without_us, with_us, release, arch_list)
    wanted = None
    if arch_list is not None and release:
        wanted = targets.listed(arch_list, release, with_us.version)
    builder = environ.get(BUILDER)
    command = [toolkit.compiler] if toolkit else [""]
    building, builder_release, builder_asked = asked, stated, None
    if builder is not None:
        command = _command(builder, toolkit)
        building = builder_asked = asking.version(command) if ask else None
        builder_release = building.release if building else _stated_by(command, environ)
    works = building is not None and not building.problem
    unable = asking.unable(command) if works else ""
    asks = works and not unable
    return Toolchain(
        toolkit=toolkit,
        fault=fault,
        asked=asked,
        builder=builder,
        builder_asked=builder_asked,
        builder_release=builder_release,
        unable=unable,
        refused=asking.refused(command, _flags(differences, wanted)) if asks else {},
        torch_cuda=torch_cuda,
        without_us=without_us,
        with_us=with_us,
        differences=differences,
        arch_list=arch_list,
        targets=wanted,
        driver=driver.find(),
        cache=cache.look(environ, (installed and installed.module_version) or ""),
    )


def _differences(
    without_us: Told, with_us: Told, release: Version | None, arch_list: str | None
) -> tuple[Difference, ...]:
    if not (release and without_us.version and with_us.version):
        return ()
    return choices.differences(without_us.version, with_us.version, release, arch_list)


def _without_us(
    fault: Fault | None, asked: Answer | None, stated: Version | None, torch_cuda: Version | None
) -> Told:
    """The original's answer: nvcc's, or torch's where nvcc says none and nothing else is raised."""
    error = fault.error if fault else asked.error if asked else ""
    if error:
        return Told(None, error)
    if stated and not fault and not (asked and asked.problem):
        return Told(stated, "nvcc")
    return Told(torch_cuda, "torch" if torch_cuda else "RuntimeError")


def _flags(differences: tuple[Difference, ...], wanted: Targets | None) -> tuple[str, ...]:
    """The flags that FlashInfer, with us, would give nvcc and of which it may not take all."""
    flags = [each.choice.flag for each in differences if each.by_torch == each.choice.above]
    flags += [targets.gencode(arch) for arch in (wanted.archs if wanted else ())]
    return tuple(dict.fromkeys(filter(None, flags)))


def _command(builder: str, toolkit: Toolkit | None) -> list[str]:
    """The words of ``FLASHINFER_NVCC``, in which ninja knows ``$cuda_home``."""
    text = builder.replace("$cuda_home", toolkit.home if toolkit else "")
    try:
        return shlex.split(text) or [""]
    except ValueError:
        return [text]


def _stated_by(command: list[str], environ: Mapping[str, str]) -> Version | None:
    """What files state of the compiler in ``FLASHINFER_NVCC``, its last word (``ccache nvcc``)."""
    program = shutil.which(command[-1], path=environ.get("PATH", os.defpath)) or ""
    home, _, _ = program.rpartition("/bin/")
    return finding.stated_release(home) if home else None


def _version(text: str | None) -> Version | None:
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None


def rows(chain: Toolchain) -> list[tuple[str, str, str]]:
    """The lines of the table of the environment: what, version, and where or how."""
    return [
        ("CUDA toolkit", *_toolkit_cells(chain)),
        *([("nvcc", *_asked_cells(chain.asked))] if chain.asked else ()),
        ("GPU driver", *_driver_cells(chain.driver)),
        ("compiled for", *_target_cells(chain)),
        ("module cache", *_cache_cells(chain.cache)),
    ]


def _toolkit_cells(chain: Toolchain) -> tuple[str, str]:
    toolkit = chain.toolkit
    if toolkit is None:
        return "-", "no CUDA_HOME, CUDA_PATH, nvcc on PATH, /usr/local/cuda"
    nvcc = "with" if toolkit.nvcc else "without"
    where = f"{toolkit.home or repr(toolkit.home)} ({toolkit.chosen_by}), {nvcc} bin/nvcc"
    if toolkit.nvcc and toolkit.release is None:
        where += ", no file states its release" + ("" if chain.asked else ": --toolchain asks it")
    return str(toolkit.release or "unknown"), where


def _asked_cells(asked: Answer) -> tuple[str, str]:
    return str(asked.release or "-"), asked.problem or "by its own word"


def _driver_cells(here: Driver | None) -> tuple[str, str]:
    if here is None:
        return "-", "none can be seen from here"
    if here.cuda:
        return here.version, f"runs CUDA up to {here.cuda}"
    unknown = f"older than what runs CUDA {driver.OLDEST_CUDA}" if here.old else ""
    return here.version, unknown or "newer than what we know"


def _target_cells(chain: Toolchain) -> tuple[str, str]:
    if chain.arch_list is None:
        return "-", f"the GPUs that torch sees; {targets.VARIABLE} is not set"
    found = " ".join(f"sm_{arch}" for arch in chain.targets.archs) if chain.targets else ""
    return found or "-", f"{targets.VARIABLE}={chain.arch_list!r}"


def _cache_cells(here: Cache) -> tuple[str, str]:
    free = "unknown" if here.free_bytes is None else f"{here.free_bytes / 1e9:.1f} GB free"
    held = [lock for lock in here.locks if lock.holder is not None]
    locks = f"{len(held)} of {len(here.locks)} locks held" if here.locks else ""
    said = [f"{here.path or '-'} ({here.chosen_by})", here.filesystem or "", locks]
    return free, ", ".join(filter(None, said))


def difference_rows(chain: Toolchain) -> list[tuple[str, str, str, str]]:
    """One row for each decision that falls otherwise because of us."""
    return [
        (each.choice.of, each.by_nvcc, each.by_torch, _verdict(chain, each))
        for each in chain.differences
    ]


def _verdict(chain: Toolchain, each: Difference) -> str:
    if each.choice.flag and each.choice.flag in chain.refused:
        return "refused"
    return "breaks" if each.lack else "fine"


def as_json(chain: Toolchain) -> dict[str, Any]:
    """The keys ``nvcc``, ``told``, ``driver``, ``targets`` and ``cache`` of the report."""
    asked, here = chain.asked, chain.driver
    return {
        "nvcc": asked and {"release": _text(asked.release), "problem": asked.problem},
        "told": {
            "without_us": {**asdict(chain.without_us), "version": _text(chain.without_us.version)},
            "with_us": {**asdict(chain.with_us), "version": _text(chain.with_us.version)},
            "differences": [
                {
                    "of": each.choice.of,
                    "cuda": each.choice.cuda,
                    "without_us": each.by_nvcc,
                    "with_us": each.by_torch,
                    "breaks": each.lack,
                }
                for each in chain.differences
            ],
            "refused": dict(chain.refused),
        },
        "driver": here and {"version": here.version, "cuda": _text(here.cuda)},
        "targets": {
            "list": chain.arch_list,
            "archs": list(chain.targets.archs) if chain.targets else [],
            "error": chain.targets.error if chain.targets else "",
        },
        "cache": {
            **asdict(chain.cache),
            "locks": [
                {**asdict(lock), "age_s": int(lock.age_s), "stale": lock.stale}
                for lock in chain.cache.locks
            ],
        },
    }


def _text(version: Version | None) -> str | None:
    return None if version is None else str(version)
