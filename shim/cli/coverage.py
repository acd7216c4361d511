"""``flashinfer-shim coverage``: what becomes of each public function of FlashInfer.

Static as ``check`` is: files are read, neither torch nor FlashInfer is imported.
"""

from __future__ import annotations

import argparse
import os
import sys

NOTHING = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="only these functions, classes or families; * stands for any characters",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON; docs/coverage.md has the schema"
    )
    parser.epilog = (
        "Exit status 0, whatever is covered; 2: wrong usage, no function or class has any of the "
        "names, or FlashInfer is not installed or cannot be read."
    )


def main(args: argparse.Namespace) -> int:
    """Print the list. Return 0, or 2 if there is none."""
    try:
        from ..contract import sources_missing
        from ..patches import FAMILIES, NAMES
        from ..settings import read
        from ..upstream import module_file
        from .coverage_judging import judge
        from .coverage_report import as_json, print_text
        from .environment import NOT_INSTALLED, Unreadable, look
    except ImportError as error:
        return _fail(f"this Python ({sys.executable}) cannot import {error.name}, which we need")
    try:
        package = look(os.environ).flashinfer
        if package is None:
            return _fail(NOT_INSTALLED)
        if module_file(package, "flashinfer") is None:
            return _fail(f"{sources_missing(package)}: install flashinfer-python again")
        coverage = judge(package, sys.path, read(os.environ, NAMES, FAMILIES).policy)
    except (Unreadable, OSError) as error:
        return _fail(str(error))
    found = {name: coverage.only([name]) for name in args.names}
    unknown = [name for name, only in found.items() if not only.functions and not only.classes]
    if unknown:
        _fail(
            f"this FlashInfer has no public function, class or family called {', '.join(unknown)}; "
            "without names, all are listed"
        )
    if unknown and len(unknown) == len(found):
        return NOTHING
    wanted = coverage.only(args.names) if args.names else coverage
    if args.json:
        print(as_json(wanted))
    else:
        print_text(wanted, each=bool(args.names))
    return 0


def _fail(message: str) -> int:
    print(f"flashinfer-shim coverage: {message}", file=sys.stderr)
    return NOTHING
