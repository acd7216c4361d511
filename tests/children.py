"""Child processes for the tests: each starts from nothing that this process or its user has set.

A child sees an environment of our making, a home directory of its own and, unless told otherwise,
the checkout's ``sitecustomize.py``. It never has a GPU unless a test gives it one.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import releases

from shim.patches import NAMES, USUAL

ROOT = releases.ROOT

# What a child may know of the machine. Nothing else is passed on.
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR")


@dataclass(frozen=True)
class Child:
    """A child that has ended. Use it as the message of an assertion: it shows all it said."""

    command: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The last line of stdout, parsed. A child that failed, or said none, fails the test."""
        assert self.returncode == 0, self
        lines = self.stdout.strip().splitlines()
        assert lines, self
        try:
            return json.loads(lines[-1])
        except json.JSONDecodeError:
            pytest.fail(f"the last line of stdout is not JSON\n{self}")

    def __str__(self) -> str:
        return (
            f"{' '.join(self.command)}\nexit status {self.returncode}\n"
            f"--- stdout ---\n{self.stdout}\n--- stderr ---\n{self.stderr}"
        )

    __repr__ = __str__


def run_child(
    code: str | None,
    *,
    scratch: Path,
    release: str | Path | None = None,
    shim: bool = True,
    env: Mapping[str, str | None] | None = None,
    python: str | Path = sys.executable,
    args: Sequence[str | Path] = (),
    timeout: float = 300,
) -> Child:
    """Run ``code`` as a script in a fresh interpreter and wait for its end.

    Args:
        code: The script, indented as one likes; None to run ``args`` alone (``-m``, ``-c``).
        scratch: A directory of the test's own: home, working and workspace directory.
        release: A FlashInfer version, or a tree, to put on the child's ``PYTHONPATH``.
        shim: Whether the checkout, and so our ``sitecustomize.py``, comes first on it.
        env: Variables to set beside the usual ones; None removes one. ``PYTHONPATH`` given here
            replaces ours.
        python: The interpreter.
        args: Arguments of the interpreter, in front of the script.
        timeout: Seconds after which the child and all that it started are killed.
    """
    command = [str(python), *map(str, args)]
    if code is not None:
        script = scratch / "child.py"
        script.write_text(textwrap.dedent(code))
        command.append(str(script))
    process = subprocess.Popen(
        command,
        env=environment(scratch, release=release, shim=shim, env=env, python=python),
        cwd=scratch,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        child = Child(tuple(command), process.returncode, stdout, stderr)
        pytest.fail(f"not done after {timeout} s\n{child}")
    return Child(tuple(command), process.returncode, stdout, stderr)


def environment(
    scratch: Path,
    *,
    release: str | Path | None = None,
    shim: bool = True,
    env: Mapping[str, str | None] | None = None,
    python: str | Path = sys.executable,
) -> dict[str, str]:
    """The whole environment that ``run_child`` gives to a child."""
    tree = releases.path(release) if isinstance(release, str) else release
    entries = [ROOT] * shim + ([tree] if tree else [])
    result: dict[str, str | None] = {name: os.environ.get(name) for name in _PASSED_ON}
    result |= {
        "HOME": str(scratch),
        "FLASHINFER_WORKSPACE_BASE": str(scratch),
        "FLASHINFER_CUDA_ARCH_LIST": "12.0f",
        "CUDA_VISIBLE_DEVICES": "",
        # Compiled for all children of a run, not again for each.
        "TORCHINDUCTOR_CACHE_DIR": str(scratch.parent / "inductor"),
        # With a torch older than 2.10 tvm_ffi would compile for half a minute in each child.
        "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1",
        "PYTHONPATH": os.pathsep.join(map(str, entries)) or None,
        # Python 2 would leave its .pyc beside the sources of the checkout.
        "PYTHONDONTWRITEBYTECODE": None if str(python) == sys.executable else "1",
    }
    result |= env or {}
    return {name: value for name, value in result.items() if value is not None}


def deviating(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Those of ``child_side.records()`` that are not in force though they are needed and wanted.

    FlashInfer does not import all of its modules by itself; a patch may be waiting for one.
    """
    assert records.keys() == set(NAMES), records
    return {
        patch: record
        for patch, record in records.items()
        if record["verdict"] not in ("applied", "not needed")
        and (record["verdict"] != "disabled" or patch in USUAL)
        and (record["verdict"] != "pending" or record["imported"])
    }


@functools.cache
def pythons() -> Mapping[str, Path]:
    """Interpreters on this machine by version ("3.12"): this one, on the PATH, or of pyenv."""
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": Path(sys.executable)}
    names = ["python2.7", *(f"python3.{minor}" for minor in range(6, 16))]
    candidates = [Path(which) for name in names if (which := shutil.which(name))]
    candidates += sorted(Path.home().glob(".pyenv/versions/*/bin/python"))
    for candidate in candidates:
        # A launcher may be on the PATH for a version that is not installed: ask it.
        show = "import sys; print('%d.%d %s' % (sys.version_info[:2] + (sys.executable,)))"
        asked = subprocess.run(
            [candidate, "-S", "-E", "-c", show],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if answer := re.fullmatch(r"(\d+\.\d+) (.+)\n", asked.stdout):
            found.setdefault(answer[1], Path(answer[2]))
    return found


def python_or_skip(version: str) -> Path:
    """The interpreter of that version ("3.12"); the test is skipped on a machine without it."""
    interpreter = pythons().get(version)
    if interpreter is None:
        pytest.skip(f"no Python {version} on this machine")
    return interpreter


def output(command: list[str | Path], *, cwd: Path | None = None, **env: str) -> str:
    """What a command printed to stdout; one that fails, fails the test."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
