"""The matrix of versions: FlashInfer, torch and Python; ``make matrix`` runs all of it.

    nox                       # every cell, then the tables in docs/compatibility.md
    nox -s "cells(2.13.0)"    # those of one torch; with `-- RELEASE...` of these releases alone
    nox -s tables             # the tables alone

Which cells there are is declared in ``tests/cells.py``. Builds of torch with CUDA take gigabytes,
so each torch is fetched, tried and removed before the next one. No GPU is used. A Python
that is not there is an error: its cells would keep what an earlier run has found.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "tests"))

from cells import FAILED, TORCHES  # noqa: E402

nox.options.sessions = ["cells", "tables"]
nox.options.error_on_missing_interpreters = True


@nox.session
@nox.parametrize(
    "python,torch",
    [nox.param(torch.python, torch.version, id=torch.version) for torch in TORCHES],
)
def cells(session: nox.Session, torch: str) -> None:
    """Try every release that the matrix has with one torch."""
    try:
        pins = Path(session.create_tmp()) / "constraints.txt"
        pinned = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
        pins.write_text("".join(pin for pin in pinned if not pin.startswith("torch==")))
        session.install("-q", "-c", str(pins), f"torch=={torch}", "-e", ".[test]")
        # A test that fails is a result too, which the table shows.
        wanted = session.posargs or ["--torch", torch]
        session.run("python", "tests/cells.py", *wanted, success_codes=[0, FAILED])
    finally:
        shutil.rmtree(session.virtualenv.location)


@nox.session
def tables(session: nox.Session) -> None:
    """Write docs/compatibility.md from what was found."""
    session.install("-q", "-c", "constraints.txt", "-e", ".")
    session.run("python", "tests/write_compatibility.py")
