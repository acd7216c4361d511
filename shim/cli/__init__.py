"""The command line: one module per command, imported when it is the one that was asked for."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from .. import __version__
from ..location import zip_complaint

COMMANDS = {
    "check": "say which patches this environment would get, and why not the others",
    "prove": "compile FlashInfer calls without and with the shim, and compare",
    "radar": "say what a release that is not installed would do to our patches",
    "coverage": "list FlashInfer's public functions, and which of them torch.compile takes whole",
    "audit": "run a command, and tell which FlashInfer calls were compiled and which were not",
    "prewarm": "build the kernel modules that ops need ahead of their first call",
    "run": "run a command with the shim on its PYTHONPATH",
    "path": "print the directory that belongs on PYTHONPATH",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments without the program's name; ``sys.argv[1:]`` when left out.

    Returns:
        The exit status of the command.

    Raises:
        SystemExit: With 2 for wrong usage, with 0 after ``--help`` and ``--version``.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="flashinfer-shim",
        description="FlashInfer under torch.compile(fullgraph=True), its files left untouched.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands = {
        name: subparsers.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        for name, text in COMMANDS.items()
    }
    # No option ahead of the command takes a value, so the first plain word is the command.
    chosen = next((word for word in arguments if not word.startswith("-")), "")
    if chosen not in commands:
        parser.parse_args(arguments)  # exits: help, the version, or what is wrong
    if complaint := zip_complaint():
        print(f"flashinfer-shim: {complaint}", file=sys.stderr)
        return 2
    module = import_module(f".{chosen}", __name__)
    module.add_arguments(commands[chosen])
    return _with_stdout(lambda: module.main(parser.parse_args(arguments)))


def _with_stdout(command: Callable[[], int]) -> int:
    """The exit status of ``command``: its own, or 130, 141 or 2 where it could not end."""
    try:
        status = command()
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("flashinfer-shim: interrupted", file=sys.stderr)
        return 130  # as a shell reports a program that SIGINT ended
    except BrokenPipeError:
        status = 141  # as a shell reports a program that SIGPIPE ended: `check | head -1`
    except OSError as fault:
        if fault.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF):
            raise
        print(f"flashinfer-shim: stdout cannot be written: {fault.strerror}", file=sys.stderr)
        status = 2
    # What is still in the buffer would fail once more when Python flushes it at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status
