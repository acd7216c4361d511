"""``flashinfer-shim prove``: FlashInfer calls compiled without and with us, in child processes."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..patches import FAMILIES, NAMES
from ..proof.children import ask
from ..proof.examples import choose
from ..proof.rows import Row, as_json, describe, make_row, proved
from ..records import counted
from .environment import NOT_INSTALLED
from .table import paragraph, print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        type=_name,
        help="only the calls that this patch covers, or the patches of this family (families: "
        f"{', '.join(FAMILIES)}); when left out, those of cuda_version and fp4_quantize and one "
        "for each family",
    )
    parser.add_argument("--all", action="store_true", help="every covered call of this release")
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
        "Exit status: 0 if every call that was tried fails without us and passes with us, 1 if "
        "not or if none could be tried, 2 for wrong usage."
    )


def main(args: argparse.Namespace) -> int:
    """Run both sides and print what came of it. Return 0, or 1 if a row is not as it should be."""
    if args.all and args.names:
        print("flashinfer-shim prove: --all is given, and names; give one of them", file=sys.stderr)
        return 2
    if find_spec("flashinfer") is None:
        print(f"flashinfer-shim prove: {NOT_INSTALLED}", file=sys.stderr)
        return 1
    wanted = choose(args.names, everything=args.all)
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
    return 0 if proved(rows) else 1


def _name(word: str) -> str:
    if word not in NAMES and word not in FAMILIES:
        raise argparse.ArgumentTypeError(
            f"{word!r} is no patch that `flashinfer-shim coverage` lists, and none of the families "
            f"{', '.join(FAMILIES)}"
        )
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
        print(paragraph(line))
    tried = [row for row in rows if not row.skipped]
    if tried and environment is not None:
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
                for row in tried
            ],
        )
    problems: dict[str, list[str]] = {}
    for row in rows:
        for problem in row.problems:
            problems.setdefault(problem, []).append(row.name)
    for problem, names in problems.items():
        every = len(names) == len(rows) > 1
        print(paragraph(f"{'every call' if every else ', '.join(names)}: {problem}"))
    for reason in dict.fromkeys(row.skipped for row in rows if row.skipped):
        skipped = ", ".join(row.name for row in rows if row.skipped == reason)
        print(paragraph(f"Not tried, {reason}: {skipped}."))
    passed = sum(row.passed for row in tried)
    if environment is None:
        print("So nothing is proved. Next: python -c 'import flashinfer' shows the whole error.")
    elif tried:
        print(f"{passed} of {len(tried)} calls fail without us and pass with us.")
    else:
        print("No call could be tried here, so nothing is proved.")


def _header(environment: Mapping[str, Any] | None) -> list[str]:
    if environment is None:
        return ["FlashInfer could not be imported on either side."]
    capability = ".".join(map(str, environment["capability"]))
    lines = [
        f"FlashInfer {environment['flashinfer']}, torch {environment['torch']} "
        f"(CUDA {environment['torch_cuda'] or 'none'}), Python {environment['python']}",
        f"Device: {environment['device']}, compute capability {capability}"
        + (": fake tensors, no kernel runs" if environment["pretended"] else ""),
        f"Ledger with us: {_ledger(environment['ledger'])}",
    ]
    if environment["inductor"]:
        lines.append(f"Inductor does not run here: {environment['inductor']}")
    return lines


def _ledger(records: Sequence[Mapping[str, str]]) -> str:
    by_verdict: dict[str, list[str]] = {}
    for record in records:
        by_verdict.setdefault(record["verdict"], []).append(record["patch"])
    return "; ".join(f"{counted(patches)} {verdict}" for verdict, patches in by_verdict.items())
