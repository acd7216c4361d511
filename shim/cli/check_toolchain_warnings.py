"""What is wrong with the toolchain: what was found, what comes of it, what to do."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator

from packaging.version import Version

from ..toolchain import cache, choices, driver, finding, targets
from ..toolchain.finding import Toolkit
from .check_toolchain import BUILDER, Toolchain
from .check_warnings import Warn

_WANTED = "a directory whose bin/nvcc works"


def toolchain_warnings(chain: Toolchain, release: Version | None) -> tuple[Warn, ...]:
    """All of them; ``release``: FlashInfer's, None if it is not installed or cannot be told."""
    return (
        *_nvcc(chain),
        *_builder(chain),
        *_told(chain),
        *_arch_list(chain, release),
        *(_by_torch(chain, release, chain.arch_list.split(" ")) if chain.arch_list else ()),
        *_driver(chain),
        *_cudart(chain),
        *_cache(chain),
        *_locks(chain),
    )


def _nvcc(chain: Toolchain) -> Iterator[Warn]:
    """Whether there is a compiler, and whether it can be started.

    Where nobody asked for a toolkit and torch has no CUDA, none is missed.
    """
    toolkit, torch_cuda = chain.toolkit, chain.torch_cuda
    if toolkit is None:
        if torch_cuda:
            yield Warn(
                "no_toolkit",
                "there is no CUDA toolkit: FlashInfer can load modules that are built, and build "
                f"none; without us it takes torch's {torch_cuda} for the CUDA version, as with us",
                f"install a toolkit of CUDA {torch_cuda} and set CUDA_HOME to it",
            )
        return
    named = toolkit.chosen_by in ("CUDA_HOME", "CUDA_PATH")
    if not named and torch_cuda is None:
        return
    problem = _problem(chain)
    if problem:
        yield Warn("nvcc_unusable", f"{problem}: {_consequence(chain)}", _next(toolkit))
        return
    if chain.builder is None:
        yield from _unable(chain, toolkit.compiler)
    missing = finding.incomplete(toolkit)
    if missing and torch_cuda:
        yield Warn(
            "toolkit_incomplete",
            f"{toolkit.home} ({toolkit.chosen_by}) has nvcc, but no {' and no '.join(missing)}: "
            "FlashInfer looks for headers and libraries there, so its C++ sources are not compiled "
            "or its modules not linked, unless the compiler finds them elsewhere",
            "set CUDA_HOME to the whole toolkit; a script or a link on PATH hides where it is",
        )
    stated = toolkit.release
    if chain.asked and stated and chain.asked.release and chain.asked.release != stated:
        yield Warn(
            "nvcc_contradicts",
            f"{toolkit.compiler} says that it is {chain.asked.release}, the toolkit's files say "
            f"{stated}: FlashInfer without us goes by the first",
            "set CUDA_HOME to the toolkit whose nvcc is meant",
        )


def _problem(chain: Toolchain) -> str:
    """Why no module can be built with this toolkit's nvcc; empty if it can."""
    toolkit = chain.toolkit
    if toolkit is None:
        return ""
    by = f"{toolkit.chosen_by}: " if toolkit.chosen_by.startswith("CUDA") else ""
    if chain.fault:
        return f"{by}{chain.fault.text}"
    if chain.asked and chain.asked.problem:
        return f"{toolkit.compiler} --version {chain.asked.problem}"
    if not os.path.isabs(toolkit.home):
        return (
            f"{by}{toolkit.home!r} is relative, and ninja looks for it in the directory of a build"
        )
    if os.path.normpath(toolkit.home) == "/usr" != toolkit.home:
        return (
            f"{by}{toolkit.home!r} is not spelled /usr, so FlashInfer puts /usr/include in front "
            "of the compiler's own headers, which breaks them (flashinfer #1793)"
        )
    return ""


def _consequence(chain: Toolchain) -> str:
    """What FlashInfer makes of an nvcc that cannot be used."""
    without, with_us = chain.without_us, chain.with_us
    if without.source == "hangs":
        alone = "waits for it for ever"
    elif without.version:
        alone = f"answers {without.source}'s {without.version}"
    else:
        alone = f"raises {without.source}"
    ours = f"with us it answers torch's {with_us.version}"
    if without == with_us:
        ours = "and with us it does the same"
    return f"no module can be built; FlashInfer's own get_cuda_version {alone}, {ours}"


def _next(toolkit: Toolkit) -> str:
    variable = toolkit.chosen_by if toolkit.chosen_by.startswith("CUDA") else "CUDA_HOME"
    better = finding.repaired(toolkit.home)
    if better and os.path.normpath(better) != os.path.normpath(toolkit.home or "."):
        return f"export {variable}={better}"
    if os.path.normpath(toolkit.home or ".") == "/usr":
        return f"export {variable}=/usr"
    return f"set {variable} to {_WANTED}, or unset it"


def _builder(chain: Toolchain) -> Iterator[Warn]:
    """FlashInfer builds with one nvcc and asks another one for the version."""
    if chain.builder is None:
        return
    if chain.builder_asked and chain.builder_asked.problem:
        yield Warn(
            "nvcc_override",
            f"FlashInfer builds with {BUILDER}={chain.builder!r}, whose --version "
            f"{chain.builder_asked.problem}: no module can be built, unless it does better there",
            f"unset {BUILDER}, or set it to a command that works",
        )
        return
    yield from _unable(chain, f"{BUILDER}={chain.builder!r}")
    if chain.builder_release in (None, chain.release) or not chain.release:
        return  # None: no file states it, which --toolchain does not need
    yield Warn(
        "nvcc_override",
        f"FlashInfer builds with {BUILDER}={chain.builder!r} of CUDA "
        f"{chain.builder_release}, and asks the nvcc of CUDA {chain.release} in "
        f"{chain.toolkit.home if chain.toolkit else ''} for the version",
        f"unset {BUILDER}, or set CUDA_HOME to the toolkit of that nvcc",
    )


def _unable(chain: Toolchain, command: str) -> Iterator[Warn]:
    """A compiler that tells its version and does nothing else; the flags are not what it lacks."""
    if chain.unable:
        yield Warn(
            "nvcc_unusable",
            f"{command} takes no call at all, even without a flag of FlashInfer's, and says "
            f"{chain.unable!r}: no module can be built",
            "see what its --dryrun -c none.cu says: it may lack a host compiler",
        )


def _told(chain: Toolchain) -> Iterator[Warn]:
    """What comes of telling FlashInfer torch's CUDA where its compiler is of another one."""
    if not chain.differences or chain.toolkit is None:
        return
    lacks = list(dict.fromkeys(each.lack for each in chain.differences if each.lack))
    unused = [each for each in chain.differences if each.by_torch == each.choice.below]
    if lacks:
        consequence = f"asks this nvcc for what it cannot do: {'; '.join(lacks)}"
    elif unused:
        step = max(Version(each.choice.cuda) for each in unused)
        left_out = "; ".join(dict.fromkeys(each.choice.of for each in unused))
        consequence = f"leaves out what CUDA {step} brought, which this nvcc can do: {left_out}"
    else:
        step = max(Version(each.choice.cuda) for each in chain.differences)
        consequence = f"asks for what CUDA {step} brought, which this nvcc can do as well"
    yield Warn(
        "toolkit_differs",
        f"the CUDA toolkit in {chain.toolkit.home} is {chain.without_us.version}, torch was built "
        f"with {chain.torch_cuda}: FlashInfer, told torch's version, {consequence}",
        "set FLASHINFER_SHIM_CUDA_VERSION=nvcc, or CUDA_HOME to a toolkit that matches torch",
    )


def _arch_list(chain: Toolchain, release: Version | None) -> Iterator[Warn]:
    text, found = chain.arch_list, chain.targets
    if text is None or found is None or release is None:
        return
    if found.error:
        differs = targets.listed(text, release, chain.without_us.version)
        alone = "" if differs.error else ", which it does not do without us"
        yield Warn(
            "arch_list",
            f"{targets.VARIABLE}={text!r} makes the import of FlashInfer {release.public} raise "
            f"{found.error}{alone}",
            _better_list(text, found.error),
        )
        return
    odd = targets.doubtful(text)
    if odd:
        yield Warn(
            "arch_list",
            f"{targets.VARIABLE}: FlashInfer hands {', '.join(map(repr, odd))} on as it is, and no "
            "nvcc knows such a target: no module can be built",
            _better_list(text, ""),
        )
        return
    yield from _beyond(chain, release)
    plain = targets.unspecific(found.archs)
    if plain:
        yield Warn(
            "arch_unspecific",
            f"{targets.VARIABLE}: FlashInfer {release.public} compiles for "
            f"{', '.join(f'sm_{arch}' for arch in plain)} as it is written, without the "
            "instructions that only such an architecture has",
            f"export {targets.VARIABLE}='{' '.join(_specific(word) for word in text.split(' '))}'",
        )


def gpu_warnings(
    chain: Toolchain, release: Version | None, capabilities: Iterable[str]
) -> tuple[Warn, ...]:
    """What is wrong for the GPUs that were seen: compute capabilities, as ``12.0``."""
    seen = sorted(set(capabilities))
    if not seen or release is None:
        return ()
    if chain.arch_list is not None:
        return tuple(_left_out(chain, seen))
    return (*_gpu_beyond(chain, release, seen), *_by_torch(chain, release, seen))


def _left_out(chain: Toolchain, seen: Iterable[str]) -> Iterator[Warn]:
    """The list of architectures has nothing for a GPU."""
    archs = chain.targets.archs if chain.targets else ()
    missed = [each for each in seen if not any(targets.runs_on(arch, each) for arch in archs)]
    if archs and missed:
        yield Warn(
            "arch_misses_gpu",
            f"{targets.VARIABLE}={chain.arch_list!r} has nothing for a GPU of compute capability "
            f"{', '.join(missed)}: modules compiled for the list are built, and do not run there",
            f"add {' '.join(missed)}, or unset {targets.VARIABLE}",
        )


def _gpu_beyond(chain: Toolchain, release: Version, seen: Iterable[str]) -> Iterator[Warn]:
    """FlashInfer has no target for a GPU, or the compiler has not."""
    told, nvcc = chain.with_us.version, chain.builder_release
    if told is None or nvcc is None:
        return
    for capability in seen:
        major, minor = map(int, capability.split("."))
        try:
            arch = targets.given(targets.normalised(major, minor, release, told), release, nvcc)
        except targets.Unsupported as reason:
            problem, needed = f"{reason}, and FlashInfer is told {told}", None
        else:
            if chain.takes(arch) is not False:
                continue
            problem, needed = f"nvcc of CUDA {nvcc} cannot target sm_{arch}", _since(arch, nvcc)
        yield Warn(
            "arch_beyond_nvcc",
            f"for the GPU of compute capability {capability} no module can be built: {problem}",
            f"set CUDA_HOME to a toolkit of CUDA {needed} or newer"
            if needed
            else "set CUDA_HOME to a toolkit that can",
        )


def _by_torch(
    chain: Toolchain, release: Version | None, entries: Collection[str]
) -> Iterator[Warn]:
    """FlashInfer goes by torch's CUDA in some places, whatever get_cuda_version says."""
    nvcc, torch_cuda = chain.builder_release, chain.torch_cuda
    if release is None or nvcc is None or torch_cuda is None:
        return
    for lack in choices.broken_by_torch(nvcc, torch_cuda, release, entries):
        yield Warn(
            "torch_asks",
            f"nvcc is of CUDA {nvcc}, and FlashInfer {release.public} goes by torch's {torch_cuda} "
            f"there, with us and without: {lack}",
            "set CUDA_HOME to a toolkit that is as new as torch's CUDA",
        )


def _specific(entry: str) -> str:
    major = entry.partition(".")[0]
    return f"{entry}a" if entry[-1].isdigit() and int(major) >= 9 else entry


def _beyond(chain: Toolchain, release: Version) -> Iterator[Warn]:
    """The targets that the compiler cannot do."""
    archs = chain.targets.archs if chain.targets else ()
    given = {arch: targets.given(arch, release, chain.builder_release) for arch in archs}
    beyond = [arch for arch, flag in given.items() if chain.takes(flag) is False]
    if not beyond:
        return
    said = [
        f"sm_{arch} (since CUDA {since})" if since else f"sm_{arch}"
        for arch, since in ((arch, _since(arch, chain.builder_release)) for arch in beyond)
    ]
    words = "; ".join(
        chain.refused[flag] for flag in map(targets.gencode, beyond) if flag in chain.refused
    )
    yield Warn(
        "arch_beyond_nvcc",
        f"{targets.VARIABLE}={chain.arch_list!r}: nvcc of CUDA {chain.builder_release} cannot "
        f"target {', '.join(said)}: what is compiled for the whole list cannot be built at all"
        + (f" ({words})" if words else ""),
        "take the entry out, or set CUDA_HOME to a toolkit that can",
    )


def _since(arch: str, nvcc: Version | None) -> str | None:
    """The CUDA release that brought a target, None where this one is not too old for it."""
    since = targets.brought_by(arch)
    return since if since and nvcc and nvcc < Version(since) else None


def _better_list(text: str, error: str) -> str:
    if error.startswith("RuntimeError"):
        return "set CUDA_HOME to a toolkit that is new enough, or take the entry out"
    better = targets.corrected(text)
    if better and better != text:
        return f"export {targets.VARIABLE}='{better}'"
    return f"write entries like 9.0a or 12.0f with one blank between, or unset {targets.VARIABLE}"


def _driver(chain: Toolchain) -> Iterator[Warn]:
    """Within a major release of CUDA an older driver will do; below it, nothing runs."""
    here = chain.driver
    if here is None or (here.cuda is None and not here.old):
        return
    runs = here.cuda or driver.OLDEST_CUDA
    upto = f"runs CUDA up to {runs}" if here.cuda else f"is older than those that run CUDA {runs}"
    wanted = {"torch": chain.torch_cuda, "nvcc": chain.release}
    newer = [f"{name} {cuda}" for name, cuda in wanted.items() if cuda and cuda.major > runs.major]
    if newer:
        yield Warn(
            "driver_old",
            f"the driver {here.version} {upto}, and is too old for {' and '.join(newer)}: what "
            "they build does not run, unless NVIDIA's package cuda-compat is in front of the "
            "driver's library",
            f"install a driver for CUDA {newer[0].split()[1]}"
            + (f", or a torch and a toolkit for {runs}" if here.cuda else ""),
        )


def _cudart(chain: Toolchain) -> Iterator[Warn]:
    """Modules are linked with the toolkit's runtime, and torch brings its own along."""
    nvcc, torch_cuda = chain.release, chain.torch_cuda
    if nvcc is None or torch_cuda is None or nvcc.major == torch_cuda.major:
        return
    yield Warn(
        "cudart_differs",
        f"modules are linked with libcudart.so.{nvcc.major} of the toolkit, torch loads "
        f"libcudart.so.{torch_cuda.major}: a process has two CUDA runtimes, or a module cannot be "
        "loaded where the first is not on the library path",
        f"set CUDA_HOME to a toolkit of CUDA {torch_cuda.major}",
    )


def _cache(chain: Toolchain) -> Iterator[Warn]:
    here = chain.cache
    elsewhere = f"set {cache.VARIABLE} to a directory on a local disk that this user can write"
    if here.problem:
        if not here.path:
            elsewhere = "set HOME: FlashInfer asks for it even where the variable is set"
        yield Warn(
            "cache_unusable",
            f"FlashInfer's cache ({here.chosen_by}): {here.problem}: its import fails, where it "
            "makes the directory and opens its log, or else the next build does",
            elsewhere,
        )
        return
    if here.chosen_by == cache.VARIABLE and not os.path.isabs(here.path):
        yield Warn(
            "cache_relative",
            f"FlashInfer's cache is {here.path!r}, relative to each process's working directory: "
            "each of them builds its own modules",
            f"set {cache.VARIABLE} to an absolute path, or unset it",
        )
    if here.shared:
        yield Warn(
            "cache_shared",
            f"FlashInfer's cache {here.path} is on {here.filesystem}: machines that share it may "
            "build one module at the same time, since a lock need not hold between them, and a "
            "machine that died may leave one behind",
            elsewhere,
        )
    if here.noexec:
        yield Warn(
            "cache_noexec",
            f"FlashInfer's cache {here.path} is on a file system that is mounted noexec: modules "
            "are built there and cannot be loaded",
            elsewhere,
        )
    if here.free_bytes is not None and here.free_bytes < cache.ENOUGH_BYTES:
        yield Warn(
            "cache_space",
            f"FlashInfer's cache {here.path} has {here.free_bytes / 1e6:.0f} MB left: a large "
            "module takes some hundred, so a build may fail in the middle",
            f"make room, or {elsewhere}",
        )


def _locks(chain: Toolchain) -> Iterator[Warn]:
    for lock in chain.cache.locks:
        if not lock.stale:
            continue
        hours = f"{lock.age_s / 3600:.0f} h"
        if lock.holder and lock.alive:
            who = f"process {lock.holder}, and for {hours} no sign of a build was seen"
            then = f"look at process {lock.holder}, and end it if it does not build"
        elif lock.holder:
            who, then = f"process {lock.holder}, which has ended", f"remove {lock.path}"
        else:
            who = f"a process of another machine or container, and was made {hours} ago"
            then = f"remove {lock.path} if that process died"
        yield Warn(
            "stale_lock",
            f"{lock.path} is held by {who}: all that want this module wait for it",
            then,
        )
