"""For which architectures FlashInfer compiles, and which of them an nvcc can target."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.version import Version

VARIABLE = "FLASHINFER_CUDA_ARCH_LIST"

#: What an nvcc can target: the CUDA release that brought an architecture, and the one that dropped
#: it. Targets with an ``a`` came with their architecture, but for sm_90a; those with an ``f``, for
#: a family, with CUDA 12.9.
_NVCC = {
    **dict.fromkeys(("50", "52", "53", "60", "61", "62", "70", "72"), ("10.0", "13.0")),
    **dict.fromkeys(("75", "80", "86", "87"), ("11.4", None)),
    **dict.fromkeys(("89", "90"), ("11.8", None)),
    **dict.fromkeys(("100", "120"), ("12.8", None)),
    "101": ("12.8", "13.0"),
    **dict.fromkeys(("103", "121"), ("12.9", None)),
    **dict.fromkeys(("88", "110"), ("13.0", None)),
    "107": ("13.4", None),  # as FlashInfer's own flags have it
}
_RELEASES = ("11.4", "11.8", "12.0", "12.8", "12.9", "13.0", "13.4")
_SPECIFIC_90 = Version("12.0")
_FAMILIES = Version("12.9")

#: The releases of FlashInfer at which the reading of an entry changed: suffixes are added from the
#: first on, 12.1 is no longer taken for 12.0 from the second on, 12.0 is allowed CUDA 12.8 from the
#: third on. From the last on 10.7 is compiled for its family where nvcc does not know it.
_SUFFIXES = Version("0.6.7")
_MINOR_KEPT = Version("0.6.8")
_12_8_ALLOWED = Version("0.7.1")
_RUBIN_BY_FAMILY = Version("0.7.1")

_TARGET = re.compile(r"(\d+)([af]?)")
_ENTRY = re.compile(r"\d+\.\d+[af]?")


class Unsupported(Exception):
    """FlashInfer raises a RuntimeError for this architecture, with this text."""


@dataclass(frozen=True)
class Targets:
    """What FlashInfer makes of the variable.

    Attributes:
        archs: the targets in the order of the flags, as nvcc writes them (``120f``).
        error: what FlashInfer's import raises, empty if nothing: then there are no targets.
    """

    archs: tuple[str, ...]
    error: str = ""


def normalised(major: int, minor: int, release: Version, cuda: Version) -> str:
    """The target of a GPU, or of an entry without a suffix, in a FlashInfer that is told ``cuda``.

    Raises:
        Unsupported: that FlashInfer has no target for it.
    """
    if major < 9:
        return f"{major}{minor}"
    if major != 12 or release < _SUFFIXES:
        return f"{major}{minor}a"
    allowed = "12.8" if release >= _12_8_ALLOWED and minor == 0 else "12.9"
    if cuda < Version(allowed):
        raise Unsupported(f"compute capability 12.{minor} requires CUDA {allowed} or newer")
    if minor == 0 or release < _MINOR_KEPT:
        return "120f" if cuda >= _FAMILIES else "120a"
    return f"12{minor}a"


def listed(text: str, release: Version, cuda: Version | None) -> Targets:
    """What a FlashInfer that is told ``cuda`` makes of the variable.

    ``cuda`` is None where it cannot tell a version: then it has no target of 12.x by itself.
    """
    found: set[tuple[int, str]] = set()
    try:
        for entry in text.split(" "):
            major, minor = entry.split(".")
            found.add((int(major), _suffixed(int(major), minor, release, cuda)))
    except (ValueError, IndexError) as error:
        return Targets((), f"{type(error).__name__}: {error}")
    except Unsupported as error:
        return Targets((), f"RuntimeError: {error}")
    return Targets(tuple(f"{major}{minor}" for major, minor in sorted(found)))


def _suffixed(major: int, minor: str, release: Version, cuda: Version | None) -> str:
    if release < _SUFFIXES or minor[-1].isalpha():
        return minor
    if major == 12 and cuda is None:
        raise Unsupported("no version of CUDA can be told")
    return normalised(major, int(minor), release, cuda or _SPECIFIC_90)[len(str(major)) :]


def doubtful(text: str) -> tuple[str, ...]:
    """The entries that FlashInfer hands on as they are, and that name no target of any nvcc."""
    return tuple(entry for entry in text.split(" ") if not _ENTRY.fullmatch(entry))


def unspecific(archs: Iterable[str]) -> tuple[str, ...]:
    """The targets without a suffix that have variants with one, with instructions of their own."""
    return tuple(arch for arch in archs if arch.isdigit() and int(arch) >= 90)


def corrected(text: str) -> str | None:
    """The list that ``text`` was probably meant to be, None if that cannot be told."""
    words = re.split(r"[\s,;:]+", text.strip("\"' \t,;:"))
    entries = [_entry(word) for word in words]
    return " ".join(filter(None, entries)) if all(entries) else None


def _entry(word: str) -> str | None:
    """``9.0a`` for ``sm_90a``, ``9.0+PTX`` and the like; ``12.0`` for ``12``."""
    word = word.lower().removesuffix("+ptx").removeprefix("sm").removeprefix("_")
    match = re.fullmatch(r"(\d+)(?:\.(\d))?([af]?)", word)
    if match is None:
        return None
    major, minor, suffix = match.groups()
    if minor is None and f"{major}0" in _NVCC:
        minor = "0"
    elif minor is None and major in _NVCC:
        major, minor = major[:-1], major[-1]
    return f"{major}.{minor}{suffix}" if minor else None


def takes(nvcc: Version, arch: str) -> bool | None:
    """Whether the nvcc of a CUDA release can target ``arch``; None: newer than what we know."""
    match = _TARGET.fullmatch(arch)
    if match is None:
        return False
    number, suffix = match.groups()
    if number not in _NVCC:
        return None
    since, dropped = _NVCC[number]
    if suffix and int(number) < (90 if suffix == "a" else 100):
        return False
    first = max(Version(since), _FAMILIES if suffix == "f" else Version(since))
    if arch == "90a":
        first = _SPECIFIC_90
    return first <= nvcc and (dropped is None or nvcc < Version(dropped))


def runs_on(arch: str, capability: str) -> bool:
    """Whether code for a target runs on a GPU of ``capability`` (``12.0``).

    Plain code runs on later GPUs of its generation, a family's on those of the family, and that
    for one architecture on nothing else.
    """
    match = _TARGET.fullmatch(arch)
    major, _, minor = capability.partition(".")
    if match is None or match[1][:-1] != major:
        return False
    own, here = int(match[1][-1]), int(minor)
    return own == here if match[2] == "a" else own <= here


def given(arch: str, release: Version, nvcc: Version | None) -> str:
    """The target that a FlashInfer gives this nvcc for ``arch``."""
    if nvcc is None or arch != "107a" or release < _RUBIN_BY_FAMILY:
        return arch
    return arch if takes(nvcc, arch) else "100f"


def brought_by(arch: str) -> str | None:
    """The CUDA release from which on nvcc can target ``arch``, None if we do not know."""
    return next((text for text in _RELEASES if takes(Version(text), arch)), None)


def gencode(arch: str) -> str:
    """The flag that FlashInfer gives for a target."""
    return f"-gencode=arch=compute_{arch},code=sm_{arch}"
