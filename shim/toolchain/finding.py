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

DEFAULT_HOME = "/usr/local/cuda"

#: What a module's C++ sources include and what it is linked with, below the toolkit's directory.
_NEEDED = ("include/cuda_runtime.h", "lib64/libcudart.so")

_CUDA_VERSION = re.compile(r"^#define\s+CUDA_VERSION\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    """Why ``bin/nvcc`` of a toolkit cannot be started.

    Attributes:
        text: what was found, a clause with the toolkit's directory in it.
        error: the class of what FlashInfer's own ``get_cuda_version`` raises there, empty where it
            takes torch's CUDA for an answer.
    """

    text: str
    error: str


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

    @property
    def compiler(self) -> str:
        """The nvcc that FlashInfer asks for its version."""
        return os.path.join(self.home, "bin/nvcc")


def find(environ: Mapping[str, str]) -> Toolkit | None:
    """The toolkit that FlashInfer's ``get_cuda_path`` would choose in ``environ``, None if none.

    The same in every release: CUDA_HOME, CUDA_PATH, the nvcc on PATH, /usr/local/cuda. What the
    variables say is taken as it stands, and an empty CUDA_PATH is a value.
    """
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(variable):
            return _describe(environ[variable], variable)
    if "CUDA_PATH" in environ:
        return _describe("", "CUDA_PATH")
    nvcc = shutil.which("nvcc", path=environ.get("PATH", os.defpath))
    if nvcc:
        return _describe(os.path.dirname(os.path.dirname(nvcc)), "nvcc on PATH")
    return _describe(DEFAULT_HOME, "default") if os.path.exists(DEFAULT_HOME) else None


def fault(toolkit: Toolkit) -> Fault | None:
    """Why FlashInfer cannot start this toolkit's nvcc, None if nothing stands against it."""
    nvcc = toolkit.compiler
    try:
        is_file = os.path.isfile(nvcc)
        os.stat(nvcc)
    except FileNotFoundError:
        return Fault(_why_missing(toolkit.home), "")
    except OSError as error:  # a file where a directory should be, a loop of links, no permission
        what = "is a file, not a directory" if os.path.isfile(toolkit.home) else error.strerror
        return Fault(f"{toolkit.home!r} {what}", type(error).__name__)
    if not is_file:
        return Fault(f"{nvcc} is not a file", "PermissionError")
    if not os.access(nvcc, os.X_OK):
        return Fault(f"{nvcc} is not executable", "PermissionError")
    return _unloadable(nvcc)


def incomplete(toolkit: Toolkit) -> tuple[str, ...]:
    """What every build needs beside nvcc and this toolkit lacks, relative to its directory."""
    if (
        os.path.normpath(toolkit.home) == "/usr"
    ):  # a distribution's own, where compilers look anyway
        return ()
    return tuple(each for each in _NEEDED if not os.path.exists(os.path.join(toolkit.home, each)))


def repaired(home: str) -> str | None:
    """The directory that ``home`` was probably meant to be: one that holds ``bin/nvcc``."""
    for part in home.strip("\"' ").split(os.pathsep):
        directory = os.path.expanduser(part.strip("\"' "))
        above = directory.rstrip("/").removesuffix("/nvcc").removesuffix("/bin")
        for each in (directory, above):
            if os.path.isabs(each) and os.path.isfile(os.path.join(each, "bin", "nvcc")):
                return each
    return DEFAULT_HOME if os.path.isfile(os.path.join(DEFAULT_HOME, "bin", "nvcc")) else None


def _why_missing(home: str) -> str:
    if not home:
        return "it is set to nothing, which stands for the working directory"
    if os.pathsep in home:
        return f"{home!r} is a list, as PATH is, and is taken for one directory"
    if home != home.strip("\"' "):
        return f"{home!r} has blanks or quotes around it, which are taken for part of the name"
    if home.startswith("~"):
        return f"{home!r} begins with ~, which nothing expands there"
    path = Path(home)
    for part in (*reversed(path.parents), path, path / "bin", path / "bin" / "nvcc"):
        if part.is_symlink() and not part.exists():
            return f"{part} is a link to {os.readlink(part)}, which does not exist"
    return f"{home!r} holds no bin/nvcc" if path.is_dir() else f"{home!r} does not exist"


def _unloadable(nvcc: str) -> Fault | None:
    """A file that is executable, and yet the system does not start it."""
    try:
        with open(nvcc, "rb") as file:
            line = file.read(256).partition(b"\n")[0]
    except OSError:
        return None
    if line.startswith(b"\x7fELF"):
        return None
    if not line.startswith(b"#!"):
        return Fault(f"{nvcc} is neither a program nor a script that begins with #!", "OSError")
    interpreter = os.fsdecode(line[2:].strip()).partition(" ")[0]
    if not os.path.exists(interpreter):
        return Fault(f"{nvcc} is a script for {interpreter}, which does not exist", "")
    return None


def _describe(home: str, chosen_by: str) -> Toolkit:
    nvcc = os.path.isfile(os.path.join(home, "bin", "nvcc"))
    return Toolkit(home, chosen_by, nvcc, stated_release(home))


def stated_release(home: str) -> Version | None:
    """Major and minor of the compiler, from version.json, or from cuda.h where that is missing."""
    directory = Path(home)
    try:
        stated = json.loads((directory / "version.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return _header_release(directory)
    for component in ("cuda_nvcc", "cuda"):
        try:
            version = Version(stated[component]["version"])
        except (KeyError, TypeError, InvalidVersion):
            continue
        return Version(f"{version.major}.{version.minor}")
    return _header_release(directory)


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
