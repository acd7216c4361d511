"""Would a Python that is started from this environment load us, and if not, why?

This very process was started from it: whether the gate stands on ``sys.meta_path`` here is the
evidence. The path is read only to explain, since nobody can tell from a file whether somebody
else's sitecustomize goes on to run the next one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder

from ..gate import find_gate
from ..location import is_our_sitecustomize
from ..rights import rights_are_borrowed
from .check_doors import activated_by
from .environment import Environment

EXPORT = 'export PYTHONPATH="$(flashinfer-shim path)${PYTHONPATH:+:$PYTHONPATH}"'


@dataclass(frozen=True)
class Loading:
    """Whether children would load us, in one sentence why or why not, and what to do."""

    loads: bool
    reason: str
    action: str


def loading(environment: Environment, environ: Mapping[str, str], *, off: bool) -> Loading:
    """Judge; ``off`` says that the settings switch us off."""
    ours = environment.shim
    if off:
        return Loading(False, "FLASHINFER_SHIM=off", "unset FLASHINFER_SHIM")
    if ours.startup is None:
        return Loading(
            False,
            f"sitecustomize.py is missing from {ours.package}/startup",
            "install flashinfer-shim again",
        )
    if sys.implementation.name != "cpython":
        return Loading(
            False, f"this is {sys.implementation.name}, and we act in CPython alone", "use CPython"
        )
    for flag, effect in _flags():
        return Loading(
            False,
            f"this Python was started with {flag}, which {effect}, and its workers inherit that",
            f"start Python without {flag}",
        )
    if rights_are_borrowed():
        return Loading(
            False,
            "this process has the rights of another user or group than the one who started it "
            "(setuid, setgid), and there we do nothing",
            "start Python as that user, by sudo or su",
        )
    if environment.wrapt is None:
        return Loading(False, "wrapt, which we need, is not installed", "pip install wrapt")
    gate = find_gate()
    # By any other door, a plugin's or activate(), this process says nothing of its children.
    if gate is None or activated_by() != "sitecustomize":
        return _explain(ours.startup, environ)
    if os.path.realpath(gate.directory) != ours.package:
        return Loading(
            False,
            f"another copy of flashinfer-shim, in {gate.directory}, comes before this one",
            f"take it off PYTHONPATH, or run its own check; then {EXPORT}",
        )
    if gate.fault is not None:  # this report has asked where FlashInfer is
        return Loading(False, gate.fault.splitlines()[-1], "install flashinfer-shim again")
    return Loading(True, _position(ours.startup, environ), "")


def _flags() -> Iterator[tuple[str, str]]:
    """The flags of this interpreter that keep us out, each with what it does."""
    if sys.flags.isolated:
        yield "-I", "ignores PYTHONPATH"
    if sys.flags.ignore_environment:
        yield "-E", "ignores PYTHONPATH"
    if sys.flags.no_site:
        yield "-S", "runs no sitecustomize.py"


def _explain(startup: str, environ: Mapping[str, str]) -> Loading:
    """Why the gate is not there though nothing forbids it."""
    search_path = _search_path(environ)
    if not any(os.path.realpath(entry) == startup for entry in search_path):
        return Loading(False, f"PYTHONPATH does not hold {startup}", EXPORT)
    first = _first_sitecustomize(search_path)
    if first is None or _is_in(first, startup):
        return Loading(
            False,
            f"{startup}/sitecustomize.py comes first, but it has not run in this process",
            "see what children do: flashinfer-shim check --deep",
        )
    if is_our_sitecustomize(first):
        return Loading(
            False, f"{first}, of another copy of flashinfer-shim, comes before this one", EXPORT
        )
    return Loading(
        False,
        f"{first} comes before ours and does not run the next sitecustomize.py",
        f"{EXPORT}; where a command puts that file in front (opentelemetry-instrument, say), have "
        "it start ours: opentelemetry-instrument flashinfer-shim run -- COMMAND",
    )


def _position(startup: str, environ: Mapping[str, str]) -> str:
    first = _first_sitecustomize(_search_path(environ))
    if first is None or _is_in(first, startup):
        return f"{startup} is on PYTHONPATH, and this process loaded us from it"
    return f"{first} comes before ours, and ran it: this process loaded us"


def _search_path(environ: Mapping[str, str]) -> list[str]:
    """Where a child looks for sitecustomize: as here, without the running script's directory."""
    stated = environ.get("PYTHONPATH", "")
    entries = [entry or os.curdir for entry in stated.split(os.pathsep)] if stated else []
    return entries + sys.path[1:]


def _first_sitecustomize(search_path: list[str]) -> str | None:
    spec = PathFinder.find_spec("sitecustomize", search_path)
    return None if spec is None or spec.loader is None else spec.origin


def _is_in(file: str, directory: str) -> bool:
    return os.path.realpath(os.path.dirname(file)) == directory
