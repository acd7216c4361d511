"""``flashinfer-shim check``: what is installed, whether we are loaded, what is patched.

Static unless an option asks for more: files are read, no process is started, neither
torch nor FlashInfer is imported. The answer to "which FlashInfer, and may it be patched" comes from
the functions that the hook uses in a running process.
"""

from __future__ import annotations

import argparse
import os
import sys

from .arguments import address, seconds

UNREADABLE = 2

#: Seconds that a fleet has to answer, unless the user names others.
TIMEOUT_S = 120.0


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
    about = parser.add_mutually_exclusive_group()
    about.add_argument(
        "--toolchain",
        action="store_true",
        help="leave the patches out, and ask nvcc itself (with a time limit) what it is and takes",
    )
    about.add_argument(
        "--ray",
        nargs="?",
        const="auto",
        type=address,
        metavar="ADDRESS",
        help="ask every node of a Ray cluster, and compare them; without an address that of "
        "RAY_ADDRESS, or the one that runs on this machine",
    )
    about.add_argument(
        "--fleet",
        action="store_true",
        help="under torchrun: ask every rank, and compare them",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help=f"how long --ray and --fleet wait for an answer (default: {TIMEOUT_S:g})",
    )
    parser.epilog = (
        "Exit status 0: all enabled patches will be applied or are not needed; 1: some would not "
        "be; 2: wrong usage, or the environment cannot be read. Whether children load the shim is "
        "part of it, so set PYTHONPATH first. Of a fleet, 0 also says that its nodes are alike."
    )


def main(args: argparse.Namespace) -> int:
    """Print the report. Return 0, 1 or 2 as the help says."""
    try:
        from .check_fleet import CannotTell
        from .environment import Unreadable
        from .table import escape_odd_names
    except ImportError as error:
        # With -S, or PYTHONPATH leading into another Python's environment.
        hint = "started with -S, " if sys.flags.no_site else ""
        return _fail(
            f"this Python ({hint}{sys.executable}) cannot import {error.name}, which we need; "
            "install flashinfer-shim into it with pip"
        )
    escape_odd_names()
    try:
        return _fleet(args) if args.fleet or args.ray else _here(args)
    except (CannotTell, Unreadable) as error:
        return _fail(str(error))


def _here(args: argparse.Namespace) -> int:
    from .check_inspect import inspect_environment
    from .check_report import as_json, print_text

    report = inspect_environment(os.environ, deep=args.deep, ask=args.toolchain)
    if args.json:
        print(as_json(report))
    else:
        print_text(report, patches=not args.toolchain)
    return report.exit_status


def _fleet(args: argparse.Namespace) -> int:
    from .check_fleet import Fleet, as_json, print_text
    from .check_ranks import check_ranks
    from .check_ray import ask_nodes

    def show(fleet: Fleet) -> int:
        if args.json:
            print(as_json(fleet))
        else:
            print_text(fleet)
        return fleet.exit_status

    arguments = ["--deep"] * args.deep
    if args.fleet:
        return check_ranks(arguments, args.timeout, show)
    return show(ask_nodes(args.ray, arguments, args.timeout))


def _fail(message: str) -> int:
    print(f"flashinfer-shim check: {message}", file=sys.stderr)
    return UNREADABLE
