"""``flashinfer-shim radar``: what a release that is not installed would do to our patches.

Its files are read; they are run with ``--run`` alone.
"""

from __future__ import annotations

import argparse
import sys

from .arguments import seconds

UNREADABLE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "source",
        nargs="?",
        metavar="VERSION | WHEEL | DIRECTORY",
        help="a release to fetch with pip; a wheel or a source archive; a checkout of FlashInfer "
        "or another directory that holds flashinfer/. When left out, the newest release that pip "
        "finds",
    )
    parser.add_argument(
        "--against",
        metavar="VERSION",
        help="the tested release to compare with; when left out, the installed one if it is "
        "tested, else the newest",
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help="only this patch, or the patches of this family; may be repeated",
    )
    parser.add_argument(
        "--run",
        action="store_true",
        help="import both releases in child processes, without a GPU, and compare the outputs of "
        "what moved: this runs that release's code",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=300.0,
        metavar="SECONDS",
        help="how long pip may take to fetch a release (default: 300)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON; docs/radar.md has the schema"
    )
    parser.epilog = (
        "Exit status 0: nothing moved; 1: something did; 2: wrong usage, or there is nothing that "
        "can be read."
    )


def main(args: argparse.Namespace) -> int:
    """Print the report. Return 0, 1 or 2 as the help says."""
    try:
        from .environment import Unreadable
        from .radar_looking import look
        from .radar_report import as_json, print_text
        from .radar_source import Unusable
        from .table import escape_odd_names
    except ImportError as error:
        return _fail(f"this Python ({sys.executable}) cannot import {error.name}, which we need")
    try:
        report = look(
            args.source,
            against=args.against,
            only=args.only or (),
            runs=args.run,
            time_limit=args.timeout,
        )
    except (Unusable, Unreadable) as error:
        return _fail(str(error))
    escape_odd_names()
    if args.json:
        print(as_json(report))
    else:
        print_text(report)
    return report.exit_status


def _fail(message: str) -> int:
    print(f"flashinfer-shim radar: {message}", file=sys.stderr)
    return UNREADABLE
