"""``flashinfer-shim path``: the directory that belongs on PYTHONPATH."""

from __future__ import annotations

import argparse
import sys

from ..location import startup_directory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments: there are none."""
    parser.epilog = 'export PYTHONPATH="$(flashinfer-shim path)${PYTHONPATH:+:$PYTHONPATH}"'


def main(args: argparse.Namespace) -> int:
    """Print the directory. Return 0, or 1 if this installation lacks it."""
    try:
        print(startup_directory())
    except FileNotFoundError as error:
        print(f"flashinfer-shim path: {error}", file=sys.stderr)
        return 1
    return 0
