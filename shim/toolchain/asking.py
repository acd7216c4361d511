"""What nvcc itself says: started with a time limit, and ended with all that it started."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from packaging.version import Version

from .. import limited

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
        status, said = limited.run([*command, "--version"], TIMEOUT_S, stdout=True)
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
    """Those of ``flags`` that nvcc does not take, each with what it says. Nothing is compiled.

    None of them where nvcc is :func:`unable` to do without them, too: it is not the flag then.
    """
    found: dict[str, str] = {}
    for flag in flags:
        said = _dry_run(command, flag)
        if said is None:
            return found
        if said:
            found[flag] = said
    return {} if found and unable(command) else found


def unable(command: Sequence[str]) -> str:
    """What nvcc says where it would compile nothing, whatever the flags; empty where it would."""
    return _dry_run(command) or ""


def _dry_run(command: Sequence[str], *flags: str) -> str | None:
    """What nvcc says where it refuses, empty where it does not, None where it does not end."""
    words = [*command, "--dryrun", *flags, "-c", "none.cu", "-o", os.devnull]
    try:
        status, said = limited.run(words, TIMEOUT_S, stdout=True)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (line.strip() for line in said.splitlines())
    return next(filter(None, lines), f"exit status {status}") if status else ""


def _quoted(said: str) -> str:
    """The first line of what was said, for a message."""
    line = next((line.strip() for line in said.splitlines() if line.strip()), "")
    return f": {line[:100]!r}" if line else " and says nothing"
