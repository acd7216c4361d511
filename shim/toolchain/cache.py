"""Where FlashInfer puts the modules that it builds: can it, and does anybody stand in its way?"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "FLASHINFER_WORKSPACE_BASE"

#: A build of a large module leaves some hundred megabytes behind, its object files included.
ENOUGH_BYTES = 1 << 30

#: A single module takes minutes; the longest, fused MoE, can take half an hour.
LONG_S = 3600.0

#: What Linux says of mounts and of file locks; a test puts files of its own here.
MOUNTS = Path("/proc/self/mountinfo")
LOCKS = Path("/proc/locks")

#: File systems that several machines share, where a lock need not keep other machines out.
_SHARED = re.compile(r"nfs|lustre|gpfs|cifs|smb|ceph|beegfs|9p|afs|glusterfs|fuse\.(?!overlay)")


#: Of a line for a lock that is held. One for a process that waits has ``->`` in front of FLOCK.
_FLOCK = re.compile(r"^\d+: FLOCK +\S+ +\S+ +(-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE)
#: A process's number where it is the first word of a lock file.
_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class Lock:
    """A lock file of a build.

    Attributes:
        path: the file.
        holder: process that holds it, 0 if that cannot be seen from here, None if nobody does.
        alive: whether the holder is a process of this machine that we can see.
        age_s: seconds since the last sign of a build. The file is written when it is made; where
            a process holds it, the start of that process and of what it started count as well, and
            what was written of the module.
    """

    path: str
    holder: int | None
    alive: bool
    age_s: float

    @property
    def stale(self) -> bool:
        """Whether a build that wants it would wait for nobody, or for one that should be done."""
        return self.holder is not None and (
            (not self.alive and self.holder > 0) or self.age_s > LONG_S
        )


@dataclass(frozen=True)
class Cache:
    """FlashInfer's directory of built modules.

    Attributes:
        path: ``<base>/.cache/flashinfer``; empty where FlashInfer cannot tell it.
        chosen_by: ``FLASHINFER_WORKSPACE_BASE`` or ``home directory``.
        problem: why FlashInfer cannot write there, a clause; empty if nothing stands against it.
        filesystem: type of the file system (``ext4``, ``nfs4``), None where that cannot be told.
        shared: whether other machines may see the same files.
        noexec: whether it is mounted so that no library can be loaded from it.
        free_bytes: what is free there, for this user; None where that cannot be told.
        locks: the lock files of the builds of all releases.
    """

    path: str
    chosen_by: str
    problem: str
    filesystem: str | None = None
    shared: bool = False
    noexec: bool = False
    free_bytes: int | None = None
    locks: tuple[Lock, ...] = ()


def look(environ: Mapping[str, str], release: str) -> Cache:
    """Look at the directory that FlashInfer ``release`` will use. Nothing is written.

    The same in every release. The home directory is asked for even where the variable is set.
    """
    stated = environ.get(VARIABLE)
    chosen_by = "home directory" if stated is None else VARIABLE
    try:
        home = Path(environ["HOME"] or "/") if "HOME" in environ else Path.home()
    except RuntimeError as error:
        return Cache("", chosen_by, f"there is no home directory: {error}")
    directory = Path(stated if stated is not None else home) / ".cache" / "flashinfer"
    try:
        above = (directory, *directory.absolute().parents)
    except OSError as error:
        why = f"{directory} is relative, and the working directory is gone: {error.strerror}"
        return Cache(str(directory), chosen_by, why)
    nearest = next(each for each in above if os.path.lexists(each))
    mount = _mount(nearest)
    free, full = _free(nearest)
    return Cache(
        path=str(directory),
        chosen_by=chosen_by,
        problem=_problem(nearest, mount) or full or _below(directory / release),
        filesystem=mount.filesystem if mount else None,
        shared=bool(mount and _SHARED.match(mount.filesystem)),
        noexec=bool(mount and "noexec" in mount.options),
        free_bytes=free,
        locks=tuple(_locks(directory)),
    )


def _problem(nearest: Path, mount: _Mount | None) -> str:
    if nearest.is_symlink() and not nearest.exists():
        return f"{nearest} is a link to {os.readlink(nearest)}, which does not exist"
    if not nearest.is_dir():
        return f"{nearest} is a file, not a directory"
    if mount and "ro" in mount.options:
        return f"{nearest} is on a file system that is mounted read-only"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"{nearest} is not writable for this user"
    return ""


def _below(directory: Path) -> str:
    """The same for what builds of a release have made, which may have been another user's."""
    made = (directory, *directory.glob("*"), *directory.glob("*/cached_ops"))
    made += tuple(directory.glob("*/cached_ops/tmp"))
    for each in filter(os.path.isdir, made):
        if not os.access(each, os.W_OK | os.X_OK):
            return f"{each} is not writable for this user"
    return ""


def _free(directory: Path) -> tuple[int | None, str]:
    """Free bytes, and a clause where nothing at all can be written any more."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return None, ""
    free = found.f_bavail * found.f_frsize
    if free == 0:
        return free, f"the file system of {directory} is full"
    if found.f_files and not found.f_favail:  # some file systems count no inodes
        return free, f"the file system of {directory} has no inode left"
    return free, ""


@dataclass(frozen=True)
class _Mount:
    filesystem: str
    options: frozenset[str]


def _mount(path: Path) -> _Mount | None:
    """The mount that ``path`` is on: the last one of those whose point is the deepest above it."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    real = os.path.realpath(path)
    found: tuple[int, _Mount] | None = None
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 6 or len(kinds) < 3:
            continue
        # A blank in a name is written as \040.
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        above = point == "/" or real == point or real.startswith(f"{point}/")
        if above and (found is None or len(point) >= found[0]):
            options = frozenset((*fields[5].split(","), *kinds[2].split(",")))
            found = len(point), _Mount(kinds[0], options)
    return found and found[1]


def _locks(directory: Path) -> Iterator[Lock]:
    """The lock files below ``<release>/<targets>/cached_ops/tmp``.

    FlashInfer locks by flock (filelock), and the kernel drops such a lock with its process: a file
    alone says nothing. Where a file system has no flock, newer filelocks write the process's number
    into the file instead, and the file is the lock.
    """
    held = _held()
    for file in sorted(directory.glob("*/*/cached_ops/tmp/*.lock")):
        try:
            state = file.stat()
            words = file.read_text(encoding="utf-8", errors="replace").split()
        except OSError:
            continue
        holder = held.get((os.major(state.st_dev), os.minor(state.st_dev), state.st_ino))
        if holder is None and words and _NUMBER.fullmatch(words[0]):
            holder = int(words[0]) if words[1:2] in ([], [os.uname().nodename]) else 0
        alive = bool(holder and os.path.exists(f"/proc/{holder}"))
        ages = [time.time() - state.st_mtime]
        if holder and alive:
            ages += (*_running_s(holder), *_written_s(file))
        yield Lock(str(file), holder, alive, max(0.0, min(ages)))


def _written_s(lock: Path) -> Iterator[float]:
    """How long ago files of the module were written; of any one, where one lock is for several."""
    built = lock.parent.parent
    one = built / lock.stem
    for file in one.glob("*") if one.is_dir() else built.glob("*/*"):
        with suppress(OSError):
            yield time.time() - file.stat().st_mtime


def _running_s(process: int) -> Iterator[float]:
    """How long a process and those that it started have been running."""
    every = [str(process)]
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            every += file.read_text(encoding="ascii").split()
    now, ticks = time.clock_gettime(time.CLOCK_BOOTTIME), os.sysconf("SC_CLK_TCK")
    for each in every:
        with suppress(OSError), open(f"/proc/{each}/stat", encoding="latin-1") as stat:
            # Field 22. The name, which may hold anything, is the second.
            yield now - int(stat.read().rpartition(") ")[2].split()[22 - 3]) / ticks


def _held() -> dict[tuple[int, int, int], int]:
    """Who holds a flock on which file, by device and inode; 0: not a process that can be seen here.

    A line of /proc/locks: ``1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF``.
    """
    try:
        text = LOCKS.read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    return {
        (int(major, 16), int(minor, 16), int(inode)): max(0, int(process))
        for process, major, minor, inode in _FLOCK.findall(text)
    }
