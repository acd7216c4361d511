"""Which CUDA toolkit FlashInfer would compile with, from files alone: no process is started."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

#: The CUDA releases at which FlashInfer's JIT changes its flags or architectures: -DENABLE_FP4
#: and sm_100 at 12.8, the sm_12x and family-specific targets at 12.9, then 13.0 and later ones.
THRESHOLDS = tuple(Version(text) for text in ("12.8", "12.9", "13.0", "13.2", "13.4"))

DEFAULT_HOME = "/usr/local/cuda"

_CUDA_VERSION = re.compile(r"^#define\s+CUDA_VERSION\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit.

    Attributes:
        home: its directory, as FlashInfer's get_cuda_path would give it.
        chosen_by: what led there: ``CUDA_HOME``, ``CUDA_PATH``, ``nvcc on PATH`` or ``default``.
        nvcc: whether ``bin/nvcc`` is there.
        release: CUDA release of its compiler (``12.8``), None where no file states it.
    """

    home: str
    chosen_by: str
    nvcc: bool
    release: Version | None


def find(environ: Mapping[str, str]) -> Toolkit | None:
    """The toolkit that FlashInfer's ``get_cuda_path`` would choose in ``environ``, None if none.

    The same order as there: CUDA_HOME, CUDA_PATH, the nvcc on PATH, /usr/local/cuda.
    """
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(variable):
            return _describe(environ[variable], variable)
    nvcc = shutil.which("nvcc", path=environ.get("PATH", os.defpath))
    if nvcc:
        return _describe(os.path.dirname(os.path.dirname(nvcc)), "nvcc on PATH")
    return _describe(DEFAULT_HOME, "default") if os.path.isdir(DEFAULT_HOME) else None


def _describe(home: str, chosen_by: str) -> Toolkit:
    nvcc = os.path.isfile(os.path.join(home, "bin", "nvcc"))
    return Toolkit(home, chosen_by, nvcc, _release(Path(home)))


def _release(home: Path) -> Version | None:
    """Major and minor of the compiler, from version.json, or from cuda.h where that is missing."""
    try:
        stated = json.loads((home / "version.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return _header_release(home)
    for component in ("cuda_nvcc", "cuda"):
        try:
            version = Version(stated[component]["version"])
        except (KeyError, TypeError, InvalidVersion):
            continue
        return Version(f"{version.major}.{version.minor}")
    return _header_release(home)


def _header_release(home: Path) -> Version | None:
    """cuda.h defines CUDA_VERSION, 1000 * major + 10 * minor, well within its first 64 KiB."""
    try:
        with open(home / "include" / "cuda.h", encoding="ascii", errors="replace") as header:
            match = _CUDA_VERSION.search(header.read(65536))
    except OSError:
        return None
    if match is None:
        return None
    number = int(match.group(1))
    return Version(f"{number // 1000}.{number % 1000 // 10}")


def crossed(toolkit: Version, torch_cuda: Version) -> tuple[Version, ...]:
    """The thresholds that torch's CUDA reaches and the toolkit does not.

    Where there are any, FlashInfer told ``torch_cuda`` chooses flags that this nvcc may not take.
    """
    return tuple(step for step in THRESHOLDS if toolkit < step <= torch_cuda)
