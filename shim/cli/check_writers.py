"""Who else may change what every Python of this environment runs at its start.

Our directory on ``PYTHONPATH`` and each one before it: whoever can write there, or can put another
directory in its place, chooses code for every process that inherits the variable.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .check_warnings import Warn
from .environment import Ourselves

_TRUSTED = (0, os.geteuid()) if os.name == "posix" else ()
_OVERFLOW = Path("/proc/sys/fs/overflowuid")
_UID_MAP = Path("/proc/self/uid_map")


@dataclass(frozen=True)
class Writer:
    """Somebody else who may change a file or directory.

    Attributes:
        path: what they may change.
        who: as in "... may change it".
        action: what to do about it.
    """

    path: str
    who: str
    action: str


def writer_warnings(ours: Ourselves, environ: Mapping[str, str]) -> Iterator[Warn]:
    """One warning for each place that others may write; none on a system without such rights."""
    if os.name != "posix":
        return
    found = [*_on_the_path(ours, environ), *_in_our_package(ours)]
    for writer in dict.fromkeys(found):
        yield Warn(
            "writable_path",
            f"{writer.who} may change {writer.path}, and with it what every Python runs that "
            "inherits PYTHONPATH",
            writer.action,
        )


def writer_of(directory: str) -> Writer | None:
    """Somebody else who may change what is found under the name ``directory``, None if nobody.

    All of the way counts: the directory, those above it, and links on it, which somebody may
    replace. In a sticky one above, as ``/tmp`` is, only an entry's owner may.
    """
    steps = list(_steps(directory))
    for step in steps:
        try:
            found = os.lstat(step)
        except OSError:
            return None  # nothing is found there
        if writer := _writer(step, found, above=step != steps[-1]):
            return writer
    return None


def _on_the_path(ours: Ourselves, environ: Mapping[str, str]) -> Iterator[Writer]:
    stated = environ.get("PYTHONPATH", "")
    for entry in stated.split(os.pathsep) if stated else []:
        directory = os.path.abspath(entry or os.curdir)
        if writer := writer_of(directory):
            yield writer
        if ours.startup and os.path.realpath(directory) == ours.startup:
            return


def _in_our_package(ours: Ourselves) -> Iterator[Writer]:
    """The package's directory and the way to it; else the first of its files, if there is one."""
    writer = writer_of(ours.package)
    files = [] if writer else _files(ours.package)
    if ours.startup and not writer:
        files = [os.path.join(ours.startup, "sitecustomize.py"), *files]
    found = (_writer(file, os.stat(file), above=False) for file in files)
    writer = writer or next(filter(None, found), None)
    if writer:
        yield writer


def _files(package: str) -> list[str]:
    return [
        os.path.join(directory, name)
        for directory, folders, files in os.walk(package)
        for name in [*folders, *files]
        if os.path.exists(os.path.join(directory, name))
    ]


def _steps(path: str) -> Iterator[str]:
    """Every directory and link that is passed on the way from the root to ``path``, and that."""
    todo, here, links = [*reversed(Path(path).parts[1:])], "/", 0
    yield here
    while todo:
        part = todo.pop()
        here = os.path.normpath(os.path.join(here, part))
        yield here
        if os.path.islink(here) and links < 40:  # as many as Linux follows
            links += 1
            to = Path(os.path.dirname(here), os.readlink(here))
            todo += reversed(to.parts[1:])
            here = "/"


def _writer(path: str, found: os.stat_result, *, above: bool) -> Writer | None:
    if found.st_uid not in _TRUSTED and not _is_unknown(found.st_uid):
        return Writer(
            path,
            _name_of(found.st_uid),
            "have it belong to root or to you, or install flashinfer-shim elsewhere",
        )
    if stat.S_ISLNK(found.st_mode) or (above and found.st_mode & stat.S_ISVTX):
        return None
    if found.st_mode & stat.S_IWOTH:
        return Writer(path, "everybody", f"chmod o-w {path}")
    if found.st_mode & stat.S_IWGRP and (others := _members(found.st_gid)):
        return Writer(path, others, f"chmod g-w {path}")
    return None


@cache
def _is_unknown(uid: int) -> bool:
    """Whether a user namespace shows all owners that it does not know as this one."""
    try:
        whole = _UID_MAP.read_text(encoding="ascii").split() == ["0", "0", "4294967295"]
        return not whole and uid == int(_OVERFLOW.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return False


def _name_of(uid: int) -> str:
    import pwd

    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


@cache
def _members(gid: int) -> str:
    """Who else is in a group, empty where nobody is known to be."""
    import grp
    import pwd

    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return f"group {gid}"
    others: Iterable[str] = {*group.gr_mem, *(p.pw_name for p in pwd.getpwall() if p.pw_gid == gid)}
    known = {p.pw_name for p in pwd.getpwall() if p.pw_uid in _TRUSTED}
    return f"group {group.gr_name}" if set(others) - known else ""
