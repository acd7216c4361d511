"""``flashinfer-shim prove``: FlashInfer calls compiled without and with us, in child processes."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..proof.children import ask
from ..proof.examples import EXAMPLES, PATCHES
from ..proof.rows import Row, as_json, describe, make_row
from .table import print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "patches",
        nargs="*",
        metavar="OP",
        type=_patch,
        help=f"only calls that these patches cover: {', '.join(PATCHES)}; all when left out",
    )
    parser.add_argument(
        "--arch",
        type=_arch,
        metavar="MAJOR.MINOR",
        help="pretend a device of this compute capability and use no GPU; "
        "where there is no GPU, 12.0 is pretended when left out",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, not a table")
    parser.add_argument("--save", metavar="FILE", type=_file, help="write that object to FILE too")
    parser.epilog = (
        "Exit status: 0 if every call fails without us and passes with us, 1 if not, 2 for wrong "
        "usage."
    )


def main(args: argparse.Namespace) -> int:
    """Run both sides and print what came of it. Return 0, or 1 if a row is not as it should be."""
    wanted = [e for e in EXAMPLES if not args.patches or e.patch in args.patches]
    progress = _Progress()
    try:
        without = ask("without", wanted, arch=args.arch, tell=progress)
        with_us = ask("with", wanted, arch=args.arch, tell=progress)
    except FileNotFoundError as error:
        print(f"flashinfer-shim prove: {error}", file=sys.stderr)
        return 1
    finally:
        progress.clear()
    rows = [make_row(example, without, with_us) for example in wanted]
    environment = with_us.environment or without.environment
    text = json.dumps(as_json(rows, environment), indent=2)
    if args.save is not None:
        args.save.write_text(text + "\n", encoding="utf-8")
    if args.json:
        print(text)
    else:
        _print(rows, environment)
    return 0 if all(row.passed for row in rows) else 1


def _patch(word: str) -> str:
    if word not in PATCHES:
        raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(PATCHES)}")
    return word


def _arch(word: str) -> str:
    if not re.fullmatch(r"\d+\.\d", word):
        raise argparse.ArgumentTypeError(f"{word!r} is not of the form major.minor, as 12.0")
    return word


def _file(word: str) -> Path:
    path = Path(word)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{word!r} is not a file in a directory that exists")
    return path


class _Progress:
    """What happens now, on stderr: one line that changes on a terminal, else a line each."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        start, end = ("\r\x1b[K", "") if self._terminal else ("", "\n")
        print(f"{start}flashinfer-shim prove: {text} ...", end=end, file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _print(rows: Sequence[Row], environment: Mapping[str, Any] | None) -> None:
    for line in _header(environment):
        print(line)
    print_table(
        "",
        ("call", "without us", "with us", "ok"),
        [
            (
                row.name,
                f"refused: {row.reason}" if row.refused else row.reason,
                describe(row.runs) or "-",
                "yes" if row.passed else "no",
            )
            for row in rows
        ],
    )
    for row in rows:
        for problem in row.problems:
            print(f"{row.name}: {problem}")
    passed = sum(row.passed for row in rows)
    print(f"{passed} of {len(rows)} calls fail without us and pass with us.")


def _header(environment: Mapping[str, Any] | None) -> list[str]:
    if environment is None:
        return ["FlashInfer could not be imported on either side."]
    capability = ".".join(map(str, environment["capability"]))
    lines = [
        f"FlashInfer {environment['flashinfer']}, torch {environment['torch']} "
        f"(CUDA {environment['torch_cuda'] or 'none'}), Python {environment['python']}",
        f"Device: {environment['device']}, compute capability {capability}"
        + (": fake tensors, no kernel runs" if environment["pretended"] else ""),
        "Ledger with us: "
        + "; ".join(f"{record['patch']} {record['verdict']}" for record in environment["ledger"]),
    ]
    if environment["inductor"]:
        lines.append(f"Inductor does not run here: {environment['inductor']}")
    return lines
