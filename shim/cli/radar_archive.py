"""The Python files of a release's wheel or source archive, for reading. Nothing in it is run.

Whoever made the archive may mean harm: names that lead out of the tree, links, a small file that
unpacks to a large one, a file that is no archive at all. All of them are refused.
"""

from __future__ import annotations

import functools
import gzip
import io
import re
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, cast

#: Unpacked, of all files that are read from a zip and of a whole tar. FlashInfer 0.7.4 has 130 MB
#: and 680 MB.
MOST_BYTES = 2 << 30
MOST_MEMBERS = 200_000

#: Of a wheel or, below one directory, of a source archive: what is read, and what an import needs.
_WANTED = re.compile(
    r"(?:[^/]+/)?(?:flashinfer/(?!data/).*\.(?:py|json)|[^/]+\.dist-info/METADATA"
    r"|PKG-INFO|version\.txt)",
    re.DOTALL,
)
#: Where a link would stand for something that is read.
_INSIDE = re.compile(r"(?:[^/]+/)?flashinfer/(?!data(?:/|$)).*", re.DOTALL)
_GZIP = b"\x1f\x8b"
#: What zipfile unpacks no further than it is read; a block of another method comes out whole.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_PIECE = 1 << 20


class Refused(Exception):
    """The archive cannot be used; the message says why, and ends a sentence about it."""


def unpack(archive: Path, to: Path) -> None:
    """Write the Python files, the tables beside them and the metadata of ``archive`` below ``to``.

    Args:
        archive: a wheel, or a source archive (``.tar.gz``, ``.tar``, ``.zip``).
        to: an empty directory.

    Raises:
        Refused: it is none of these, or one that does harm.
    """
    try:
        with archive.open("rb") as stream:
            members = _zip(stream) if zipfile.is_zipfile(stream) else _tar(stream)
            for number, (written, opens) in enumerate(members, 1):
                _check(written, number)
                name = str(PurePosixPath(written))  # without the ./ that some begin with
                if opens is not None and _WANTED.fullmatch(name):
                    _write(opens, to / name, name)
    except Refused:
        raise
    except Exception as error:  # the readers raise whatever they stumble over
        raise Refused(
            f"expected a wheel or a .tar.gz, and it cannot be read as one "
            f"({type(error).__name__}: {error})"
        ) from error


#: The name, and what opens it for reading, None for what is no file.
_Member = tuple[str, Callable[[], IO[bytes]] | None]


def _write(opens: Callable[[], IO[bytes]], path: Path, name: str) -> None:
    if path.exists():
        raise Refused(f"it holds {name!r} twice")
    path.parent.mkdir(parents=True, exist_ok=True)
    with opens() as source, path.open("wb") as file:
        shutil.copyfileobj(source, file, _PIECE)


def _check(name: str, members: int) -> None:
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
        raise Refused(f"the name {name!r} in it leads out of the tree")
    if members > MOST_MEMBERS:
        raise Refused(f"it holds more than {MOST_MEMBERS} files")


def _check_plain(name: str, *, is_link: bool) -> None:
    if is_link and _INSIDE.fullmatch(str(PurePosixPath(name))):
        raise Refused(f"{name!r} in it is a link, or no plain file")


def _zip(stream: IO[bytes]) -> Iterator[_Member]:
    stream.seek(0)
    with zipfile.ZipFile(stream) as archive:
        left = MOST_BYTES
        for member in archive.infolist():
            is_link = stat.S_ISLNK(member.external_attr >> 16)
            _check_plain(member.filename, is_link=is_link)
            if _WANTED.fullmatch(str(PurePosixPath(member.filename))):
                if member.compress_type not in _METHODS:
                    raise Refused(f"{member.filename!r} in it is neither stored nor deflated")
                left -= member.file_size  # which zipfile holds it to
            _check_size(left)
            opens = None if member.is_dir() else functools.partial(archive.open, member)
            yield member.filename, opens


def _tar(stream: IO[bytes]) -> Iterator[_Member]:
    stream.seek(0)
    zipped = stream.read(2) == _GZIP
    stream.seek(0)
    plain = cast(IO[bytes], gzip.GzipFile(fileobj=stream)) if zipped else stream
    # As a stream, so that no more is unpacked than is counted.
    with tarfile.open(fileobj=cast(IO[bytes], _Limited(plain)), mode="r|") as archive:
        for member in archive:
            _check_plain(member.name, is_link=not (member.isreg() or member.isdir()))
            if member.issparse():  # its holes are not in the stream that is counted
                raise Refused(f"{member.name!r} in it is a sparse file")
            opens = functools.partial(archive.extractfile, member) if member.isreg() else None
            yield member.name, cast(Callable[[], IO[bytes]] | None, opens)


def _check_size(left: int) -> None:
    if left < 0:
        raise Refused(f"it unpacks to more than {MOST_BYTES >> 20} MB")


class _Limited(io.RawIOBase):
    """A stream that ends with an error where it is longer than anything that is expected."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._left = MOST_BYTES

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1) -> bytes:
        """As of the stream within."""
        data = self._stream.read(size if size >= 0 else self._left + 1)
        self._left -= len(data)
        _check_size(self._left)
        return data
