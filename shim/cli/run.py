"""``flashinfer-shim run -- COMMAND...``: becomes COMMAND, with the shim on its PYTHONPATH."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from ..location import startup_directory

USAGE, NOT_EXECUTABLE, NOT_FOUND = 2, 126, 127  # exit statuses, the last two as shells have them
EXIT_STATUS = (
    "The exit status is the command's own; 2 for wrong usage, 126 if there is such a file and it "
    "cannot be executed, 127 if there is no such program."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments: all that follows is the command and its own arguments."""
    parser.usage = "flashinfer-shim run [-h] -- COMMAND [ARGUMENT ...]"
    parser.epilog = EXIT_STATUS
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="COMMAND", help="the program and its arguments"
    )


def main(args: argparse.Namespace) -> int:
    """Replace this process by the command; return an exit status only where that fails."""
    words: list[str] = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        return _fail(
            USAGE, "no command given; usage: flashinfer-shim run -- COMMAND [ARGUMENT ...]"
        )
    try:
        directory = startup_directory()
    except FileNotFoundError as error:
        return _fail(1, str(error))
    environment = dict(os.environ)
    environment["PYTHONPATH"] = put_first(directory, environment.get("PYTHONPATH", ""))
    _give_back_signals()
    try:
        os.execvpe(words[0], words, environment)
    except FileNotFoundError:
        return _fail(
            NOT_FOUND,
            f"cannot find the program {words[0]!r}, nor one that it starts with; "
            "expected a path or a name on PATH",
        )
    except OSError as error:
        return _fail(
            NOT_EXECUTABLE,
            f"cannot execute {words[0]!r} ({error.strerror}); expected an executable program",
        )


def put_first(directory: str, pythonpath: str) -> str:
    """Return ``pythonpath`` with ``directory`` in front, and there only.

    Every other component stays, in its order; an empty one means the current directory. An empty
    ``pythonpath`` has no component at all, as in Python itself.
    """
    components = pythonpath.split(os.pathsep) if pythonpath else []
    others = [each for each in components if not _is_same_directory(each, directory)]
    return os.pathsep.join([directory, *others])


def _is_same_directory(component: str, directory: str) -> bool:
    # A relative component is the user's: what it means depends on where a child is started.
    return os.path.isabs(component) and os.path.realpath(component) == os.path.realpath(directory)


def _give_back_signals() -> None:
    # Python ignores these two, and exec hands that down: a shell pipeline would not end as usual.
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)


def _fail(status: int, message: str) -> int:
    print(f"flashinfer-shim run: {message}", file=sys.stderr)
    return status
