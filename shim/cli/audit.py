"""``flashinfer-shim audit -- COMMAND...``: what became of FlashInfer's calls in its processes."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..location import startup_directory
from ..settings import AUDIT
from .run import EXIT_STATUS, NOT_EXECUTABLE, NOT_FOUND, USAGE, put_first


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments: all that follows the options is the command."""
    parser.usage = (
        "flashinfer-shim audit [-h] [--json] [--output FILE] (-- COMMAND [ARGUMENT ...] | --read "
        "DIRECTORY)"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON, docs/audit.md has the schema; what the command prints goes to stderr",
    )
    parser.add_argument("--output", metavar="FILE", type=Path, help="write that JSON to FILE")
    parser.add_argument(
        "--read",
        metavar="DIRECTORY",
        type=Path,
        help=f"run nothing: report on what processes with {AUDIT}=DIRECTORY left there",
    )
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="COMMAND", help="the program and its arguments"
    )
    parser.epilog = EXIT_STATUS


def main(args: argparse.Namespace) -> int:
    """Run the command and print the report. Return the command's exit status."""
    words: list[str] = args.words[1:] if args.words[:1] == ["--"] else args.words
    if bool(words) == (args.read is not None):
        return _fail(USAGE, "expected either a command behind -- or --read DIRECTORY")
    if args.read is not None and not args.read.is_dir():
        return _fail(USAGE, f"{str(args.read)!r} is not a directory that exists")
    if args.output is not None and not args.output.absolute().parent.is_dir():
        return _fail(USAGE, f"the directory of {str(args.output)!r} does not exist: make it first")
    if args.read is not None:
        return _report(args, args.read, None, 0)
    try:
        startup = startup_directory()
    except FileNotFoundError as error:
        return _fail(1, str(error))
    with tempfile.TemporaryDirectory(prefix="flashinfer-shim-audit-") as directory:
        environment = {
            **os.environ,
            "PYTHONPATH": put_first(startup, os.environ.get("PYTHONPATH", "")),
            AUDIT: directory,
        }
        try:
            status = _run(words, environment, quiet=args.json)
        except FileNotFoundError:
            return _fail(
                NOT_FOUND,
                f"cannot find the program {words[0]!r}; expected a path or a name on PATH",
            )
        except OSError as error:
            return _fail(
                NOT_EXECUTABLE,
                f"cannot execute {words[0]!r} ({error.strerror}); expected an executable program",
            )
        return _report(args, Path(directory), words, status)


def _run(words: Sequence[str], environment: Mapping[str, str], *, quiet: bool) -> int:
    """Run the command to its end, and give its exit status as a shell would."""
    with subprocess.Popen(words, env=environment, stdout=sys.stderr if quiet else None) as process:
        # A terminal's Ctrl-C reaches the command too, and it is the one to decide what that means.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        stop = signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
        try:
            status = process.wait()
        finally:
            signal.signal(signal.SIGINT, before)
            signal.signal(signal.SIGTERM, stop)
    return 128 - status if status < 0 else status


def _report(
    args: argparse.Namespace, directory: Path, words: Sequence[str] | None, status: int
) -> int:
    from .audit_report import as_json, merge, print_text

    audit = merge(directory)
    text = as_json(audit, words, status)
    if args.output is not None:
        try:
            args.output.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            _fail(status, f"{str(args.output)!r} cannot be written: {error.strerror}")
    if args.json:
        print(text)
    elif args.output is None:
        print_text(audit)
    return status


def _fail(status: int, message: str) -> int:
    print(f"flashinfer-shim audit: {message}", file=sys.stderr)
    return status
