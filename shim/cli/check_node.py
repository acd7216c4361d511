"""What a node of a fleet is asked: ``check --json``, of whatever copy of us is in that process.

Stands alone, for nothing says that the node has our package, or this version of it: Ray gets this
module by value.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import socket
import sys
from collections.abc import Sequence
from typing import Any, TypedDict


class Answer(TypedDict):
    """What came back.

    Attributes:
        host: name of the machine.
        text: what the command printed to stdout, empty where it could not tell.
        error: why it could not, empty if it could.
    """

    host: str
    text: str
    error: str


def ask(arguments: Sequence[str]) -> Answer:
    """Run the command in this very process, which is the evidence of what is loaded there.

    Args:
        arguments: of ``check``, beside ``--json``.
    """
    stdout, stderr = io.StringIO(), io.StringIO()
    error = ""
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            status = _command_line().main(["check", "--json", *arguments])
        if status not in (0, 1):
            error = _last_line(stderr) or f"its check ended with status {status}"
    except ModuleNotFoundError as fault:
        error = f"{sys.executable} cannot import {fault.name}: install flashinfer-shim there"
    except SystemExit:
        error = _last_line(stderr) or "its check could not be asked"
    except Exception as fault:
        error = f"its check failed: {type(fault).__name__}: {fault}"
    return {
        "host": socket.gethostname(),
        "text": "" if error else stdout.getvalue(),
        "error": error,
    }


def _command_line() -> Any:
    """Our command line: of the copy that is loaded here, else of the one that an import finds."""
    for finder in sys.meta_path:
        if getattr(type(finder), "flashinfer_shim_gate", False) is True:
            gate: Any = finder
            package = gate.load_package()
            if package is not None:  # its directory may be gone
                return importlib.import_module(f"{package.__name__}.cli")
    return importlib.import_module("shim.cli")


def _last_line(stream: io.StringIO) -> str:
    lines = [line.strip() for line in stream.getvalue().splitlines() if line.strip()]
    return lines[-1] if lines else ""
