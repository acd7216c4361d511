"""Directories for the start-up tests: a copy of our start-up files, a toy FlashInfer, and others.

The copied package has a hook of its own that patches the toy, because what is tried here is the
way to the hook and back. The tests at the end of the file list use the real ones.
"""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path
from textwrap import dedent
from typing import Protocol

import children
import releases
from conftest import RunChild

SUPPORTED = ("3.10", "3.11", "3.12", "3.13")
SITECUSTOMIZE = releases.ROOT / "sitecustomize.py"
GATE = tuple(releases.ROOT / "shim" / name for name in ("gate.py", "handover.py"))

HOOK = """
def engage(gate):
    gate.engaged = getattr(gate, "engaged", 0) + 1
    gate.after["flashinfer.ops"] = patch

def patch(module):
    module.answer = lambda: "patched"
"""

TOY = {
    "__init__.py": "from .ops import answer\nbody_ran_with = (__loader__, __spec__.loader)\n",
    "__main__.py": "from . import answer\nprint('main', answer())\n",
    "ops.py": """
        def answer():
            return "original"

        body_ran_with = (__loader__, __spec__.loader)
        if __name__ == "__main__":
            print("ops", answer())
        """,
    "data/note.txt": "a data file",
}


class Layout(Protocol):
    """``checkout`` or ``wheel``."""

    def __call__(self, folder: Path, hook: str = ...) -> Path: ...


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write ``files`` (relative name -> text, indented as one likes) below ``folder``."""
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
    return folder


def package(folder: Path, hook: str = HOOK) -> Path:
    """Our package in ``folder``: the real gate, and ``hook`` as its hook."""
    write(folder, {"__init__.py": "", "hook.py": hook})
    for file in GATE:
        shutil.copy(file, folder)
    return folder


def checkout(folder: Path, hook: str = HOOK) -> Path:
    """A source checkout; the folder itself belongs on PYTHONPATH."""
    package(folder / "shim", hook)
    shutil.copy(SITECUSTOMIZE, folder)
    return folder


def wheel(folder: Path, hook: str = HOOK) -> Path:
    """A wheel installed in ``folder``; the returned folder belongs on PYTHONPATH."""
    startup = package(folder / "shim", hook) / "startup"
    startup.mkdir()
    shutil.copy(SITECUSTOMIZE, startup)
    return startup


def toy_flashinfer(folder: Path) -> Path:
    """A package ``flashinfer`` in ``folder``, whose ``ops.answer`` the hook patches."""
    write(folder / "flashinfer", TOY)
    return folder


def on_python(version: str, scratch: Path) -> RunChild:
    """``run_child`` with that interpreter; skips the test on a machine without it."""
    python = children.python_or_skip(version)
    return functools.partial(children.run_child, scratch=scratch, python=python)


def path(*entries: Path | str) -> dict[str, str | None]:
    """The environment that puts ``entries`` on the path of a child, and nothing else."""
    return {"PYTHONPATH": os.pathsep.join(map(str, entries))}
