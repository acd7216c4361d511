"""What is installed, read without importing it: FlashInfer's release and where its files are.

One reader serves the command line (before any process starts) and the hook (while FlashInfer is
being imported), so that ``check`` and a running process cannot disagree about what they looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import Distribution, DistributionFinder, MetadataPathFinder
from pathlib import Path
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

#: Names under which FlashInfer was distributed.
DISTRIBUTIONS = ("flashinfer-python", "flashinfer")

#: Companions whose release has to agree with FlashInfer's.
COMPANIONS = ("flashinfer-cubin", "flashinfer-jit-cache")

_BUILD_META = re.compile(r"^__version__\s*(?::\s*str\s*)?=\s*[\"']([^\"']+)[\"']", re.MULTILINE)


#: Blanks around the value are left to strip(), which takes a long line of them in one go.
_HEADER = re.compile(r"^(Name|Version)[ \t]*:(.*)$", re.MULTILINE)


class Installed(NamedTuple):
    """The FlashInfer that an import would give.

    Attributes:
        package: directory of the package.
        distribution: name of the distribution whose metadata describes it, if any.
        metadata_version: the version that metadata states, verbatim, if any.
        module_version: the version that the package's own ``_build_meta`` states, if any.
        version: the parsed version, None where ``problem`` says why it cannot be told.
        problem: one sentence, empty if there is none.
        readable: its modules are source files in a folder, neither in a zip nor ``.pyc`` alone.
    """

    package: Path
    distribution: str | None
    metadata_version: str | None
    module_version: str | None
    version: Version | None
    problem: str
    readable: bool = True

    @property
    def release(self) -> str | None:
        """The public version as the table writes it (``0.6.7.post3``): no local part."""
        return None if self.version is None else self.version.public


def installed(package: Path, search_path: Sequence[str]) -> Installed:
    """Describe the FlashInfer in directory ``package``.

    Metadata beside the package wins; only where there is none (an editable install, a source
    tree) does other metadata on ``search_path`` count. An empty ``dist-info`` counts as none.
    """
    found = _distributions([str(package.parent)]) or _distributions(search_path)
    module_version = _module_version(package)
    versions = dict(found)
    name, metadata_version = found[0] if found else (None, None)
    version, problem = _agree(package, versions, module_version)
    readable = module_file(package, "flashinfer") is not None
    return Installed(package, name, metadata_version, module_version, version, problem, readable)


def _distributions(search_path: Sequence[str]) -> list[tuple[str, str]]:
    """Names and versions of FlashInfer distributions on ``search_path``, in its order."""
    found: list[tuple[str, str]] = []
    for name in DISTRIBUTIONS:
        version = distribution_version(name, search_path)
        if version:
            found.append((name, version))
    return found


def distribution_version(name: str, search_path: Sequence[str]) -> str | None:
    """The version of the first distribution called ``name`` on ``search_path`` that states one."""
    context = DistributionFinder.Context(name=name, path=list(search_path))
    distributions: Iterable[Distribution] = MetadataPathFinder().find_distributions(context)
    for distribution in distributions:
        # An interrupted upgrade leaves a dist-info without METADATA, or with half of one; it states
        # nothing then.
        stated = _headers(distribution)
        version = stated.get("Version")
        if version and _is_called(name, stated.get("Name", "")):
            return version
    return None


def _is_called(name: str, stated: str) -> bool:
    if stated == name:
        return True
    from packaging.utils import canonicalize_name  # with what it needs, a fifth of a megabyte

    return canonicalize_name(stated) == canonicalize_name(name)


def _headers(distribution: Distribution) -> Mapping[str, str]:
    """What the metadata of a distribution state of themselves, by name of the header.

    Not by ``Distribution.metadata``, which reads the description, too, a long text, and differs
    between its releases in what it raises.
    """
    try:
        text = _text(distribution, "METADATA") or _text(distribution, "PKG-INFO")
    except Exception:
        return {}
    headers, _, _ = text.replace("\r\n", "\n").partition("\n\n")
    return {name: value.strip() for name, value in _HEADER.findall(headers)}


def _text(distribution: Distribution, name: str) -> str:
    # To read what is no plain file may take for ever: a pipe that nobody writes into.
    folder = getattr(distribution, "_path", None)
    if isinstance(folder, Path) and not (folder / name).is_file():
        return ""
    return distribution.read_text(name) or ""


def _module_version(package: Path) -> str | None:
    read = contents(module_file(package, "flashinfer._build_meta"))
    if read is None:
        return None
    match = _BUILD_META.search(read.decode("utf-8", "replace"))
    return match.group(1) if match else None


def _agree(
    package: Path, versions: dict[str, str], module_version: str | None
) -> tuple[Version | None, str]:
    stated = dict(versions)
    if module_version is not None:
        stated["flashinfer/_build_meta.py"] = module_version
    if not stated:
        return None, f"no metadata states the release of the FlashInfer in {package}"
    parsed: dict[str, Version] = {}
    for source, text in stated.items():
        try:
            parsed[source] = Version(text)
        except InvalidVersion:
            return None, f"{source} states the version {text!r}, which is not a version"
    if len({version.public for version in parsed.values()}) > 1:
        listed = ", ".join(f"{source} says {version}" for source, version in parsed.items())
        return None, f"the installed FlashInfer contradicts itself: {listed}"
    return next(iter(parsed.values())), ""


def module_file(package: Path, module: str) -> str | None:
    """The source file of ``module`` (``flashinfer.x.y``) below ``package``, None if none."""
    stem = os.sep.join([str(package), *module.split(".")[1:]])
    for candidate in (f"{stem}.py", f"{stem}{os.sep}__init__.py"):
        if os.path.isfile(candidate):
            return candidate
    return None


def contents(file: str | None) -> bytes | None:
    """All of a file, None where there is none or it cannot be read."""
    try:
        if file is None:
            return None
        with open(file, "rb", buffering=0) as opened:
            return opened.readall()
    except OSError:
        return None
