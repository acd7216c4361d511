"""The real ``check`` command in a child process, for its tests."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import releases
from children import Child
from conftest import RunChild
from packaging.version import Version

from shim.patches import NAMES, PATCHES, USUAL

ROOT = releases.ROOT

# For a Python to which PYTHONPATH does not give the package: found, but not loaded at start-up.
BY_HAND = """
import sys
sys.path[:0] = {path!r}
from shim.cli import main
sys.exit(main({arguments!r}))
"""


@dataclass(frozen=True)
class Checked:
    """What ``check --json`` said."""

    child: Child
    report: dict[str, Any]

    def __repr__(self) -> str:
        return str(self.child)

    @property
    def verdicts(self) -> dict[str, str]:
        return {patch["patch"]: patch["verdict"] for patch in self.report["patches"]}

    @property
    def reasons(self) -> list[str]:
        usual = (patch for patch in self.report["patches"] if patch["patch"] in USUAL)
        return [patch["reason"] for patch in usual]

    @property
    def warnings(self) -> list[str]:
        return [warning["code"] for warning in self.report["warnings"]]


def all_are(verdict: str) -> dict[str, str]:
    """That verdict for every patch that no setting has to ask for."""
    return dict.fromkeys(NAMES, "disabled") | dict.fromkeys(USUAL, verdict)


def fine_on(release: str) -> dict[str, str]:
    """What ``check`` should say of an untouched release: it has a function, or it has not."""
    return all_are("pending") | {
        patch.name: "not needed"
        for patch in PATCHES
        if not patch.contract.row_for(Version(release))
    }


def parse(child: Child) -> Checked:
    """Read a child that was to print JSON and nothing else, and whose status agrees with it."""
    assert child.returncode in (0, 1), child
    checked = Checked(child, json.loads(child.stdout))
    assert checked.report["exit_status"] == child.returncode, child
    return checked


def check(run_child: RunChild, *arguments: str, **options: Any) -> Checked:
    """Run ``python -m shim check --json``; ``options`` are ``run_child``'s.

    PATH has no ``python`` of another environment in front, which would be worth a warning.
    """
    env = {"PATH": path_with_this_python(), **(options.pop("env", None) or {})}
    words = ["-m", "shim", "check", "--json", *arguments]
    return parse(run_child(None, args=words, env=env, **options))


def by_hand(
    run_child: RunChild, *path: Path, arguments: Sequence[str] = ("check", "--json"), **options: Any
) -> Child:
    """Run ``check`` from a script that puts the checkout and ``path`` on ``sys.path`` itself."""
    env = {"PATH": path_with_this_python(), **(options.pop("env", None) or {})}
    code = BY_HAND.format(path=[str(ROOT), *map(str, path)], arguments=list(arguments))
    return run_child(code, env=env, shim=options.pop("shim", False), **options)


def path_with_this_python() -> str:
    """PATH with the directory of the running interpreter in front, and without the machine's nvcc.

    A script of that name, as some machines have it, would be worth a warning.
    """
    words = os.environ.get("PATH", os.defpath).split(os.pathsep)
    words = [word for word in words if not os.path.isfile(os.path.join(word, "nvcc"))]
    return os.pathsep.join([os.path.dirname(sys.executable), *words])


def pythonpath(*entries: str | Path) -> dict[str, str]:
    """An environment whose PYTHONPATH is ``entries``."""
    return {"PYTHONPATH": os.pathsep.join(map(str, entries))}


def file(path: Path, text: str = "") -> Path:
    """Write a file and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def without_us(folder: Path) -> Path:
    """A directory that keeps a process which has it first on its path from an installed copy."""
    file(
        folder / "sitecustomize.py",
        "import os, sys\n"
        "sys.path[:] = [p for p in sys.path if not os.path.isdir(os.path.join(p, 'shim'))]\n",
    )
    return folder


def dist_info(folder: Path, name: str, version: str) -> None:
    """Metadata of a distribution in ``folder``."""
    file(
        folder / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA",
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    )


def fake_torch(folder: Path, cuda: str) -> Path:
    """A directory with a torch of which all but ``version.py`` is missing."""
    file(folder / "torch" / "__init__.py", "raise SystemExit('torch was imported')\n")
    text = f"__version__ = '2.11.0+cu'\ncuda: 'str | None' = {cuda!r}\n"
    file(folder / "torch" / "version.py", text)
    return folder


def toolkit(folder: Path, release: str) -> dict[str, str]:
    """A CUDA toolkit that looks whole and whose nvcc says its version, as a child's environment."""
    file(folder / "version.json", json.dumps({"cuda_nvcc": {"version": f"{release}.1"}}))
    file(folder / "include" / "cuda_runtime.h")
    file(folder / "lib64" / "libcudart.so")
    nvcc(folder, f"echo 'Cuda compilation tools, release {release}, V{release}.1'")
    return {"CUDA_HOME": str(folder)}


def nvcc(folder: Path, body: str) -> Path:
    """Make ``bin/nvcc`` of a toolkit a script of the shell."""
    program = file(folder / "bin" / "nvcc", f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return program
