"""Where nothing can be written or nobody is at home; and no file of anybody's is changed.

What FlashInfer does there without us is shown beside it: it makes a directory for its kernels while
it is imported, and we make nothing.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import releases
from children import ROOT, Child, environment
from conftest import RunChild

CHILD = Path(__file__).parent / "files_child.py"
RELEASE = "0.6.3"

#: Shell commands in namespaces of their own, in which "$@" runs the child.
NAMELESS = 'exec unshare --user --map-user=54321 --map-group=54321 "$@"'
READ_ONLY = """exec unshare --user --map-root-user --mount sh -c '
    mount -o remount,bind,ro / && touch "$HOME/x" 2>/dev/null && exit 99; exec "$@"' sh "$@" """
FULL = """exec unshare --user --map-root-user --mount sh -c '
    mount -t tmpfs -o size=64k none "$HOME" && dd if=/dev/zero of="$HOME/x" 2>/dev/null
    exec "$@"' sh "$@" """


@functools.cache
def namespaces() -> bool:
    """Whether this machine lets us have them."""
    tried = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-o", "remount,bind,ro"]
    try:
        return subprocess.run([*tried, "/"], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def run(scratch: Path, wrapper: str, env: dict[str, str | None], *, shim: bool) -> Child:
    """Run the child by a shell command."""
    limits = {"file_size": 0} if wrapper == "limited" else {}
    command = [sys.executable, str(CHILD), json.dumps(limits)]
    if wrapper and wrapper != "limited":
        command = ["sh", "-c", wrapper, "sh", *command]
    ended = subprocess.run(
        command,
        check=False,
        env=environment(scratch, release=RELEASE, shim=shim, env=env),
        cwd=scratch,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    return Child(tuple(command), ended.returncode, ended.stdout, ended.stderr)


#: By name: the command, variables, and what importing FlashInfer and compiling says without us.
PLACES: dict[str, tuple[str, dict[str, str | None], str]] = {
    "nothing can be written": (READ_ONLY, {}, "OSError"),
    "the disk is full": (FULL, {}, ""),
    # FlashInfer is imported; what says no is torch.compile.
    "no file can grow": ("limited", {}, "No usable temporary directory"),
    "home is in /proc": ("", {"HOME": "/proc", "FLASHINFER_WORKSPACE_BASE": None}, "No such file"),
    "nobody has a name or a home": (
        NAMELESS,
        {"HOME": None, "FLASHINFER_WORKSPACE_BASE": None},
        "RuntimeError",
    ),
    "nobody has a name": (NAMELESS, {}, ""),
}
SHORT = ("nothing can be written", "nobody has a name")


@pytest.mark.parametrize(
    "place", [p if p in SHORT else pytest.param(p, marks=pytest.mark.long) for p in PLACES]
)
def test_flashinfer_fares_as_without_us(place: str, tmp_path: Path) -> None:
    wrapper, env, expected = PLACES[place]
    if "unshare" in wrapper and not namespaces():
        pytest.skip("no namespaces for users on this machine")
    without, with_us = (run(tmp_path, wrapper, env, shim=shim) for shim in (False, True))
    theirs, ours = without.json, with_us.json
    assert ours["error"] == theirs["error"]
    assert (expected in theirs["error"]) if expected else theirs["error"] is None
    assert len(with_us.stdout.splitlines()) == 1, with_us
    assert "flashinfer-shim" not in with_us.stderr, with_us
    assert (ours["applied"] > 100) is ("version" in theirs)
    if not expected:
        assert any(op.startswith("flashinfer_shim.silu_and_mul.") for op in ours["ops"])


# --- not one byte ---------------------------------------------------------------------------------


def contents(trees: Iterable[Path]) -> dict[str, tuple[int, int, str]]:
    """Size, time and digest of every file and folder; links are followed by nobody here."""
    found = {}
    for tree in trees:
        for folder, _, files in os.walk(tree):
            for path in (Path(folder), *(Path(folder, name) for name in files)):
                state = path.lstat()
                told = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
                found[str(path)] = (state.st_size, state.st_mtime_ns, told)
    return found


#: Commands that only look, quick ones first. Each ends with a status of its own.
QUICK = (["path"], ["check", "--json"], ["coverage", "--json"])
THOROUGH = (
    ["check"],
    ["check", "--deep", "--json"],
    ["coverage", "rmsnorm"],
    ["prove", "rmsnorm", "--json"],
    ["prewarm", "--dry-run"],
    ["run", "--", sys.executable, "-c", "import flashinfer; print(flashinfer.__version__)"],
)


def unchanged(commands: Iterable[list[str]], scratch: Path, run_child: RunChild) -> int:
    """Start, import, compile and run commands; the number of files that are as they were."""
    ours, theirs = scratch / "ours", scratch / "theirs"
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "shim", ours / "shim", ignore=leave)
    shutil.copy2(ROOT / "sitecustomize.py", ours)
    shutil.copytree(releases.path(RELEASE), theirs, ignore=leave)
    before = contents((ours, theirs))
    env: dict[str, Any] = {
        "PYTHONPATH": os.pathsep.join(map(str, (ours, theirs))),
        "PYTHONDONTWRITEBYTECODE": "1",  # what Python itself would leave
    }
    seen = run_child(None, args=[CHILD, "{}"], env=env).json
    assert seen["ops"], seen
    for command in commands:
        child = run_child(None, args=["-m", "shim", *command], env=env)
        assert child.returncode in (0, 1), child
        assert child.stdout, child
    assert contents((ours, theirs)) == before
    return len(before)


def test_no_file_is_changed(
    tmp_path: Path, run_child: RunChild, figure: Callable[[str], None]
) -> None:
    files = unchanged(QUICK, tmp_path, run_child)
    figure(f"files: {files} unchanged after start, import, compile and {len(QUICK)} commands")


@pytest.mark.long
def test_no_file_is_changed_by_any_command_that_looks(
    tmp_path: Path, run_child: RunChild, figure: Callable[[str], None]
) -> None:
    files = unchanged(THOROUGH, tmp_path, run_child)
    figure(f"files: {files} unchanged after {len(THOROUGH)} further commands")
