"""What nvcc itself says: started with a time limit, and ended with all that it started."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from packaging.version import Version

#: Far more than nvcc takes to tell its version, on a cold network disk too.
TIMEOUT_S = 10.0

#: As FlashInfer looks for the version.
_RELEASE = re.compile(r"release (\d+\.\d+),")


@dataclass(frozen=True)
class Answer:
    """What came back from ``nvcc --version``.

    Attributes:
        release: the CUDA release that it states, None where ``problem`` says why there is none.
        problem: a clause; empty if there is none.
        error: the class of what FlashInfer's own ``get_cuda_version`` raises there, ``hangs`` where
            it waits for ever, empty where it takes torch's CUDA for an answer.
    """

    release: Version | None
    problem: str = ""
    error: str = ""


def version(command: Sequence[str]) -> Answer:
    """Start ``command --version``. Never raises for what the command does."""
    try:
        status, said = _run([*command, "--version"])
    except subprocess.TimeoutExpired:
        return Answer(None, f"has said nothing after {TIMEOUT_S:g} s, and was ended", "hangs")
    except OSError as error:
        fallback = isinstance(error, FileNotFoundError)
        kind = "" if fallback else type(error).__name__
        return Answer(None, f"cannot be started: {error.strerror}", kind)
    if status:
        return Answer(None, f"ends with status {status}{_quoted(said)}")
    match = _RELEASE.search(said)
    if match is None:
        return Answer(None, f"states no release{_quoted(said)}")
    return Answer(Version(match[1]))


def refused(command: Sequence[str], flags: Iterable[str]) -> dict[str, str]:
    """Those of ``flags`` that nvcc does not take, each with what it says. Nothing is compiled."""
    found: dict[str, str] = {}
    for flag in flags:
        words = [*command, "--dryrun", flag, "-c", "none.cu", "-o", os.devnull]
        try:
            status, said = _run(words)
        except (OSError, subprocess.TimeoutExpired):
            return found
        if status:
            found[flag] = next(iter(said.splitlines()), "")
    return found


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Exit status and output of a command.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it took longer than ``TIMEOUT_S``.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # so that what it started ends with it
    ) as process:
        try:
            said, _ = process.communicate(timeout=TIMEOUT_S)
        except BaseException:  # the user's Ctrl-C too must leave nothing behind
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, said


def _quoted(said: str) -> str:
    """The first line of what was said, for a message."""
    line = next((line.strip() for line in said.splitlines() if line.strip()), "")
    return f": {line[:100]!r}" if line else " and says nothing"
