"""``check --deep``: start children that import FlashInfer, and read their ledgers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..limited import run
from ..records import named
from .check_warnings import Warn

#: Importing torch and FlashInfer from a cold disk on a busy machine takes a minute or two.
TIMEOUT_S = 300

#: The first capability whose hardware converts to FP4. Below it FlashInfer's kernels return
#: without having written their outputs.
FP4_SINCE = (10, 0)

_RUN = "import runpy; runpy.run_path({script!r}, {{'REPORT': {report!r}}})"
_SPAWN = (
    "import multiprocessing, runpy, sys; "
    "process = multiprocessing.get_context('spawn').Process("
    "target=runpy.run_path, args=({script!r}, {{'REPORT': {report!r}}})); "
    "process.start(); process.join(); sys.exit(process.exitcode)"
)

#: How each child is started. timeit is the module of the standard library that runs any
#: statement, so that nothing has to be put on the children's path for -m.
KINDS = {
    "python -c": ["-c", _RUN],
    "multiprocessing spawn": ["-c", _SPAWN],
    "python -m": ["-m", "timeit", "-n", "1", "-r", "1", _RUN],
}


@dataclass(frozen=True)
class ChildReport:
    """What one child said.

    Attributes:
        kind: how it was started, a key of ``KINDS``.
        error: why it has nothing to say, empty if it has.
        flashinfer: the file that FlashInfer was imported from.
        shim: directory of the copy of ours that was loaded, None if none was.
        activated_by: the door by which it came in.
        fault: traceback of an error that we kept from FlashInfer's import, None if there was none.
        capabilities: compute capability of each GPU that it saw.
        patches: for each patch its ``verdict``, ``reason``, ``action`` and ``traceback``, and
            whether the module that it is for was ``imported``; empty where we were not loaded.
    """

    kind: str
    error: str = ""
    flashinfer: str | None = None
    shim: str | None = None
    activated_by: str | None = None
    fault: str | None = None
    capabilities: tuple[str, ...] = ()
    patches: dict[str, dict[str, Any]] | None = None

    def verdict(self, patch: str) -> str:
        """Where ``patch`` stands there, a dash if nothing is known."""
        return str((self.patches or {}).get(patch, {}).get("verdict") or "-")

    def as_wanted(self, enabled: Sequence[str]) -> bool:
        """Whether FlashInfer was imported, with the ``enabled`` patches in force where they can be.

        FlashInfer does not import all of its modules by itself: a patch may be waiting for one.
        """
        return not self.error and not self.fault and all(map(self._stands, enabled))

    def _stands(self, patch: str) -> bool:
        record = (self.patches or {}).get(patch, {})
        waits = record.get("verdict") == "pending" and not record["imported"]
        return waits or record.get("verdict") in ("applied", "not needed")

    def as_json(self) -> dict[str, Any]:
        """As docs/check.md has it."""
        return {
            "kind": self.kind,
            "error": self.error,
            "flashinfer": self.flashinfer,
            "shim": self.shim,
            "activated_by": self.activated_by,
            "fault": self.fault,
            "capabilities": list(self.capabilities),
            "patches": self.patches or {},
        }

    @property
    def loads_us(self) -> str:
        """``yes``, ``no``, or a dash where nobody knows."""
        return "-" if self.error else "yes" if self.shim else "no"

    def verdicts(self, patches: Sequence[str]) -> str:
        """Where ``patches`` stand: one word, or how many stand where."""
        counts = Counter(map(self.verdict, patches))
        if len(counts) == 1:
            return next(iter(counts))
        return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())

    def notes(self) -> Iterator[str]:
        """What went wrong there, one sentence for each reason."""
        if self.error:
            yield self.error
        elif self.fault:
            yield _last_line(self.fault)
        stopped: dict[str, list[str]] = {}
        for name, patch in (self.patches or {}).items():
            if patch["verdict"] in ("refused", "failed"):
                stopped.setdefault(f"{patch['verdict']}: {patch['reason']}", []).append(name)
        for reason, group in stopped.items():
            yield f"{named(group)} {reason}"


def start_children() -> tuple[ChildReport, ...]:
    """Start one child of each kind, one after the other, in this environment."""
    script = str(Path(__file__).with_name("check_child.py"))
    reports = []
    with tempfile.TemporaryDirectory(prefix="flashinfer-shim-") as scratch:
        for number, (kind, arguments) in enumerate(KINDS.items()):
            _progress(kind)
            report = os.path.join(scratch, f"{number}.json")
            *options, code = arguments
            command = [sys.executable, *_flags(), *options]
            command.append(code.format(script=script, report=report))
            reports.append(_start(kind, command, Path(report)))
    return tuple(reports)


def gpu_warnings(children: Sequence[ChildReport]) -> tuple[Warn, ...]:
    """A warning where a GPU was seen that cannot do FP4."""
    seen = sorted({each for child in children for each in child.capabilities})
    old = [each for each in seen if tuple(map(int, each.split("."))) < FP4_SINCE]
    if not old:
        return ()
    return (
        Warn(
            "no_fp4_hardware",
            f"a GPU of compute capability {', '.join(old)} has no FP4 conversion: there "
            "fp4_quantize returns without having written its outputs",
            "use it for shapes and graph capture only, or a GPU of capability 10.0 or newer",
        ),
    )


def _start(kind: str, command: Sequence[str], report: Path) -> ChildReport:
    try:
        status, said = run(command, TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return ChildReport(kind, f"still importing FlashInfer after {TIMEOUT_S} s, ended")
    if status or not report.is_file():
        reason = _last_line(said) or "it said nothing"
        return ChildReport(kind, f"exit status {status}: {reason}")
    found = json.loads(report.read_text(encoding="utf-8"))
    return ChildReport(kind, **{**found, "capabilities": tuple(found["capabilities"])})


def _flags() -> list[str]:
    """The flags of this interpreter that say what is found and run, as spawn hands them on."""
    if sys.flags.isolated:
        return ["-I"]
    given = {
        "-E": sys.flags.ignore_environment,
        "-P": getattr(sys.flags, "safe_path", False),  # since Python 3.11
        "-S": sys.flags.no_site,
        "-s": sys.flags.no_user_site,
    }
    return [flag for flag, is_set in given.items() if is_set]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _progress(kind: str) -> None:
    if sys.stderr.isatty():
        print(f"Importing FlashInfer in a child process: {kind} ...", file=sys.stderr)
