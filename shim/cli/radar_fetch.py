"""A release's wheel from the package index, by the user's own pip with its own configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ..limited import run
from ..upstream import DISTRIBUTIONS

#: As -m does it, but not with a pip.py that lies in the working directory. (PYTHONSAFEPATH, which
#: leaves that out and its own entry with it, is of Python 3.11.)
_PIP = (
    "import sys; '' in sys.path[:1] and sys.path.pop(0); import runpy; "
    "runpy.run_module('pip', run_name='__main__', alter_sys=True)"
)


class NotFetched(Exception):
    """There is no wheel; the message says why and what to do."""


def fetch(version: str | None, to: Path, time_limit: float) -> Path:
    """Download the wheel of a release, or of the newest one.

    Args:
        version: of the release; None for the newest that pip chooses.
        to: an empty directory.
        time_limit: in seconds; then pip and what it started are ended.

    Raises:
        NotFetched: pip is missing, fails or takes too long.
    """
    wanted = f"{DISTRIBUTIONS[0]}=={version}" if version else DISTRIBUTIONS[0]
    command = [sys.executable, "-c", _PIP, "download", "--quiet", "--no-input", "--no-deps"]
    # A source archive would be built, that is run.
    command += ["--disable-pip-version-check", "--only-binary=:all:", f"--dest={to}", wanted]
    environ = {**os.environ, "FLASHINFER_SHIM": "off"}
    try:
        status, said = run(command, time_limit, env=environ)
    except subprocess.TimeoutExpired:
        raise _not_fetched(wanted, f"it was not done after {time_limit:g} s") from None
    wheels = sorted(to.glob("*.whl"))
    if status or len(wheels) != 1:
        raise _not_fetched(wanted, _reason(said))
    return wheels[0]


def _not_fetched(wanted: str, reason: str) -> NotFetched:
    return NotFetched(
        f"`{sys.executable} -m pip download {wanted}` gave no wheel: {reason}; give the path of a "
        "wheel, a source archive or a directory that holds flashinfer/"
    )


def _reason(said: str) -> str:
    """The last of pip's lines that tells of an error, or its last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    reason = (errors or lines or ["it said nothing"])[-1]
    # Where pip reaches no index, its error says that no release fits.
    broken = any("connection broken by" in line for line in lines)
    return f"{reason} (the index could not be reached)" if broken else reason
