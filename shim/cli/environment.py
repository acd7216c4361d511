"""What is installed beside us, read from files: nothing is imported, no process is started."""

from __future__ import annotations

import ast
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from .. import __version__
from ..location import package_directory, startup_directory
from ..toolchain import finding
from ..toolchain.finding import Toolkit
from ..upstream import COMPANIONS, DISTRIBUTIONS, distribution_version

ABSENT = "FlashInfer is not installed in this environment"
#: What to do about it.
INSTALL = f"pip install {DISTRIBUTIONS[0]}"
#: Both, where a command ends with them.
NOT_INSTALLED = f"{ABSENT}: {INSTALL}"


class Unreadable(Exception):
    """The environment cannot be read; the message says what was asked and what came back."""


@dataclass(frozen=True)
class Python:
    """The interpreter that all of the report is about."""

    version: str
    executable: str


@dataclass(frozen=True)
class Torch:
    """The torch that an import would give.

    Attributes:
        version: as ``torch.__version__`` would give it, None where no file states it.
        cuda: the CUDA that it was built with, None for a CPU or a ROCm build.
        package: its directory.
    """

    version: str | None
    cuda: str | None
    package: str


@dataclass(frozen=True)
class Ourselves:
    """This copy of flashinfer-shim.

    Attributes:
        version: of the package.
        package: its directory.
        kind: ``wheel``, ``checkout`` (an editable install too), or ``incomplete`` where
            sitecustomize.py is missing.
        startup: the directory that belongs on PYTHONPATH, None if incomplete.
    """

    version: str
    package: str
    kind: str
    startup: str | None


@dataclass(frozen=True)
class Environment:
    """All but FlashInfer's own functions.

    Attributes:
        python: this interpreter.
        torch: None if it is not installed.
        flashinfer: directory of the package that an import would give, None if there is none.
        leftover: a directory called flashinfer that is no package, where there is nothing better.
        companions: versions of the installed ones of FlashInfer's companion distributions.
        toolkit: the CUDA toolkit that FlashInfer would compile with, None if there is none.
        wrapt: its version, None if it is not installed.
        shim: ourselves.
    """

    python: Python
    torch: Torch | None
    flashinfer: Path | None
    leftover: Path | None
    companions: Mapping[str, str]
    toolkit: Toolkit | None
    wrapt: str | None
    shim: Ourselves


def look(environ: Mapping[str, str]) -> Environment:
    """Look at this interpreter's environment.

    Raises:
        Unreadable: an import finder of somebody else's fails.
    """
    flashinfer, leftover = _locate("flashinfer")
    versions = {name: distribution_version(name, sys.path) for name in COMPANIONS}
    return Environment(
        python=Python(platform.python_version(), sys.executable),
        torch=_torch(),
        flashinfer=flashinfer,
        leftover=leftover,
        companions={name: version for name, version in versions.items() if version},
        toolkit=finding.find(environ),
        wrapt=distribution_version("wrapt", sys.path),
        shim=_ourselves(),
    )


def _locate(name: str) -> tuple[Path | None, Path | None]:
    """Directory of the package ``name``, or else of a mere folder of that name."""
    try:
        spec = find_spec(name)  # asks the finders of editable installs too; imports nothing
    except Exception as error:
        raise Unreadable(
            f"a finder on sys.meta_path fails when asked for {name}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if spec is None or not spec.submodule_search_locations:
        return None, None
    directory = Path(next(iter(spec.submodule_search_locations)))
    return (directory, None) if spec.origin else (None, directory)


def _torch() -> Torch | None:
    package, _ = _locate("torch")
    if package is None:
        return None
    stated = _constants(package / "version.py")
    version = stated.get("__version__") or distribution_version("torch", sys.path)
    return Torch(version, stated.get("cuda"), str(package))


def _constants(path: Path) -> dict[str, str]:
    """The module-level names that a file assigns plain strings to; none if it cannot be read."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[str, str] = {}
    for statement in body:
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
        elif isinstance(statement, ast.AnnAssign):
            target = statement.target
        else:
            continue
        value = statement.value
        if (
            isinstance(target, ast.Name)
            and isinstance(value, ast.Constant)
            and isinstance(value.value, str)
        ):
            found[target.id] = value.value
    return found


def _ourselves() -> Ourselves:
    package = package_directory()
    try:
        startup = startup_directory()
    except FileNotFoundError:
        return Ourselves(__version__, package, "incomplete", None)
    kind = "wheel" if Path(startup).parent == Path(package) else "checkout"
    return Ourselves(__version__, package, kind, startup)
