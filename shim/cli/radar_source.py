"""What the radar looks at: a release that is not installed, as a directory of Python files."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from ..upstream import Installed, installed
from .radar_archive import Refused, unpack
from .radar_fetch import NotFetched, fetch

_STATED = re.compile(r"^Version: *(\S+) *$", re.MULTILINE)
#: Of a file that states a version so much is read.
_HEAD = 1 << 16


class Unusable(Exception):
    """There is nothing to look at; the message says what was found, expected and what to do."""


@dataclass(frozen=True)
class Source:
    """A FlashInfer to look at.

    Attributes:
        installed: its package and release; ``problem`` where the release cannot be told.
        origin: what the user named, or what was fetched.
    """

    installed: Installed
    origin: str

    @property
    def tree(self) -> Path:
        """The directory that would be put on ``PYTHONPATH``."""
        return self.installed.package.parent

    @property
    def release(self) -> str:
        """Its number, or words for a release that states none."""
        return self.installed.release or "unknown release"


@contextmanager
def opened(word: str | None, time_limit: float, tell: Callable[[str], None]) -> Iterator[Source]:
    """Find what ``word`` names: a directory as it is, all else in one that ends with the context.

    Args:
        word: a version, a path of a wheel, an archive or a directory; None for the newest release.
        time_limit: for what has to be fetched, in seconds.
        tell: called with what takes time and begins now.

    Raises:
        Unusable: there is no such thing, or no FlashInfer in it.
    """
    with tempfile.TemporaryDirectory(prefix="flashinfer-shim-radar-") as scratch:
        if word is None or _is_version(word):
            tell(f"fetching flashinfer-python {word or '(newest release)'}")
            try:
                path = fetch(word, Path(scratch), time_limit)
            except NotFetched as error:
                raise Unusable(str(error)) from None
        else:
            path = Path(word)
        yield _look(path, Path(scratch, "tree"))


def _is_version(word: str) -> bool:
    try:
        Version(word)
    except InvalidVersion:
        return False
    return True


def _look(path: Path, scratch: Path) -> Source:
    try:
        if path.is_dir():
            top = path.absolute()
        elif path.is_file():
            scratch.mkdir()
            unpack(path, scratch)
            top = scratch
        else:
            raise Unusable(
                f"expected a version, a wheel, a source archive or a directory, and {str(path)!r} "
                "is none of them"
            )
        return Source(_stated(_package(top, path)), path.name or str(path.resolve()))
    except Refused as error:
        raise Unusable(f"{path} is refused: {error}") from None
    except (OSError, ValueError) as error:  # such as a name with a null character
        raise Unusable(f"{str(path)!r} cannot be read: {error}") from error


def _package(top: Path, named: Path) -> Path:
    """The package in a directory: itself, within it, or in the only folder of it that has one."""
    direct = [top / "flashinfer"] + ([top] if top.name == "flashinfer" else [])
    for candidates in (direct, sorted(top.glob("*/flashinfer"))):
        found = [folder for folder in candidates if (folder / "__init__.py").is_file()]
        if len(found) > 1:
            raise Unusable(f"several FlashInfers are in {named}: name the directory of one")
        if found:
            return found[0]
    raise Unusable(
        f"there is no FlashInfer in {named}: expected a directory flashinfer with an __init__.py"
    )


def _stated(package: Path) -> Installed:
    """The package and its release, by its metadata or by what a source tree states."""
    here = installed(package, [])
    if here.metadata_version or here.module_version:
        return here
    stated = _by_source(package.parent)
    if stated is None:
        return here._replace(problem="no metadata states its release, nor does a version.txt")
    try:
        return here._replace(version=Version(stated), problem="")
    except InvalidVersion:
        return here._replace(problem=f"the source states the version {stated!r}, which is none")


def _by_source(tree: Path) -> str | None:
    for name, pattern in (("PKG-INFO", _STATED), ("version.txt", re.compile(r"\A\s*(\S+)\s*\Z"))):
        try:
            with (tree / name).open(encoding="utf-8", errors="replace") as stream:
                match = pattern.search(stream.read(_HEAD))
        except OSError:
            continue
        if match:
            return match[1]
    return None
