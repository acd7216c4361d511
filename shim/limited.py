"""Commands with a time limit, which end with all that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

#: Seconds between two looks at what is still running.
_A_MOMENT = 0.02
#: Seconds after which what does not end is left alone: a process that waits for a disk, say.
PATIENCE = 10.0


def run(
    command: Sequence[str],
    time_limit: float,
    *,
    env: Mapping[str, str] | None = None,
    stdout: bool = False,
) -> tuple[int, str]:
    """Exit status of a command, and what it said.

    Args:
        command: its words.
        time_limit: in seconds.
        env: its environment; ours when left out.
        stdout: whether what it writes there counts as said, too; else it is dropped.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it took longer, and was ended.
    """
    with subprocess.Popen(
        command,
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if stdout else subprocess.DEVNULL,
        stderr=subprocess.STDOUT if stdout else subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as child:
        try:
            said = child.communicate(timeout=time_limit)
        except BaseException:  # the user's Ctrl-C too must leave nothing behind
            end_session(child.pid)
            raise
    return child.returncode, said[0 if stdout else 1]


def end_session(leader: int) -> None:
    """Kill a child with all that it started; the child first, so that it starts no more.

    What cannot be killed, or does not end, is left alone after :data:`PATIENCE`.

    The group of processes is not enough: ninja gives each compiler one of its own, and one that
    goes on would write into the next build's files.
    """
    until = time.monotonic() + PATIENCE
    while members := [pid for pid in _session(leader) if pid != os.getpid()]:
        # Only what is in the session: once the child is gone, its number may be another's.
        for pid in sorted(members, key=lambda pid: pid != leader):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            return
        time.sleep(_A_MOMENT)


def _session(leader: int) -> Iterator[int]:
    """The processes of a session that still run."""
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with suppress(OSError), open(f"/proc/{entry}/stat", encoding="latin-1") as file:
                # Behind the name, which may hold anything: state, parent, group, session.
                state, _, _, session = file.read().rpartition(") ")[2].split()[:4]
                if int(session) == leader and state not in "ZX":
                    yield int(entry)
