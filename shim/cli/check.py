"""``flashinfer-shim check``: what is installed, whether we are loaded, what is patched.

Static unless ``--deep`` or ``--toolchain`` is given: files are read, no process is started, neither
torch nor FlashInfer is imported. The answer to "which FlashInfer, and may it be patched" comes from
the functions that the hook uses in a running process.
"""

from __future__ import annotations

import argparse
import os
import sys

UNREADABLE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--json", action="store_true", help="print JSON; docs/check.md has the schema"
    )
    parser.add_argument(
        "--deep",
        action="store_true",
        help="start child processes that import FlashInfer, and report what became of the patches",
    )
    parser.add_argument(
        "--toolchain",
        action="store_true",
        help="leave the patches out, and ask nvcc itself (with a time limit) what it is and takes",
    )
    parser.epilog = (
        "Exit status 0: all enabled patches will be applied or are not needed; 1: some would not "
        "be; 2: wrong usage, or the environment cannot be read. Whether children load the shim is "
        "part of it, so set PYTHONPATH first."
    )


def main(args: argparse.Namespace) -> int:
    """Print the report. Return 0, 1 or 2 as the help says."""
    try:
        from .check_inspect import inspect_environment
        from .check_report import as_json, print_text
        from .environment import Unreadable
        from .table import escape_odd_names
    except ImportError as error:
        # With -S, or PYTHONPATH leading into another Python's environment.
        hint = "started with -S, " if sys.flags.no_site else ""
        return _fail(
            f"this Python ({hint}{sys.executable}) cannot import {error.name}, which we need; "
            "install flashinfer-shim into it with pip"
        )
    try:
        report = inspect_environment(os.environ, deep=args.deep, ask=args.toolchain)
    except Unreadable as error:
        return _fail(str(error))
    escape_odd_names()
    if args.json:
        print(as_json(report))
    else:
        print_text(report, patches=not args.toolchain)
    return report.exit_status


def _fail(message: str) -> int:
    print(f"flashinfer-shim check: {message}", file=sys.stderr)
    return UNREADABLE
