"""What the processes of an audit left, as one value, and its two forms: text, and JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..records import named
from .audit_findings import COMPILED, Call, Finding, find
from .table import paragraph, print_table

#: Raised when a key of the JSON changes its meaning or goes away; new keys do not raise it.
SCHEMA = 1

_NOBODY = (
    "No process has imported FlashInfer with flashinfer-shim loaded, or FLASHINFER_SHIM is off.",
    "flashinfer-shim check --deep",
)


@dataclass(frozen=True)
class Audit:
    """All processes together.

    Attributes:
        processes: what each wrote, the first one first.
        calls: how often each kind of call was noted, by what the call is.
        findings: what does not reach the compiler, and why.
        unreadable: files that could not be read.
    """

    processes: tuple[Mapping[str, Any], ...]
    calls: Mapping[Call, int]
    findings: tuple[Finding, ...]
    unreadable: tuple[str, ...]

    def calls_of(self, patch: str) -> list[tuple[Call, int]]:
        """Those of one function."""
        return [(call, times) for call, times in self.calls.items() if call.patch == patch]

    @property
    def patches(self) -> list[str]:
        """The functions that were called, by the names of their patches."""
        return sorted({call.patch for call in self.calls})


def merge(directory: Path) -> Audit:
    """Read what processes have left in ``directory``."""
    processes, unreadable = [], []
    for file in sorted(directory.glob("*.json"), key=lambda path: path.stem.partition("-")[2]):
        try:
            process = json.loads(file.read_text(encoding="utf-8"))
            processes.append({**process, "calls": [Call(**call) for call in process["calls"]]})
        except (OSError, ValueError, KeyError, TypeError):
            unreadable.append(str(file))
    calls: Counter[Call] = Counter()
    for process in processes:
        for call in process["calls"]:
            calls[call.alone] += call.times
    return Audit(tuple(processes), calls, tuple(find(processes, calls)), tuple(unreadable))


def as_json(audit: Audit, command: Sequence[str] | None, status: int) -> str:
    """The documented form for programs; docs/audit.md holds the schema."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "command": command,
            "exit_status": status,
            "processes": [
                {**_only(process, _PROCESS), "calls": sum(c.times for c in process["calls"])}
                for process in audit.processes
            ],
            "functions": [_function(audit, patch) for patch in audit.patches],
            "findings": [asdict(finding) for finding in audit.findings],
            "unreadable": list(audit.unreadable),
        },
        indent=2,
    )


_PROCESS = (
    *("pid", "parent", "command", "python", "torch", "flashinfer", "activated_by", "ended"),
)


def _only(process: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: process.get(key) for key in keys}


def _function(audit: Audit, patch: str) -> dict[str, Any]:
    calls = audit.calls_of(patch)
    return {
        "patch": patch,
        "target": next(
            process["patches"][patch]["target"]
            for process in audit.processes
            if patch in process["patches"]
        ),
        "compilations": sum(times for call, times in calls if call.how in COMPILED),
        "calls": [{**call.as_json(), "times": times} for call, times in calls],
    }


def print_text(audit: Audit) -> None:
    """The form for people."""
    print("\nflashinfer-shim audit")
    if not audit.processes:
        print(f"{_NOBODY[0]}\n    Next: {_NOBODY[1]}.")
        return
    print_table("", ("process", "FlashInfer", "activated by", "ended"), list(_processes(audit)))
    print()
    if audit.calls:
        columns = ("function", "compilations", "in eager", "in other ops", "outside the graph")
        print_table("", columns, [_row(audit, patch) for patch in audit.patches])
    else:
        print("None of FlashInfer's functions that we patch was called.")
    if audit.calls and not audit.findings:
        print("\nEach call that a compiled function makes is in its graph.")
    for finding in audit.findings:
        print()
        print(paragraph(f"{finding.text}."))
        if finding.action:
            print(f"    Next: {finding.action}.")
    for file in audit.unreadable:
        print(f"\n{file} cannot be read.")


def _processes(audit: Audit) -> Iterator[tuple[str, ...]]:
    for process in audit.processes:
        command = " ".join(" ".join(process["command"]).split())
        ended = "yes" if process["ended"] else "no: killed, or still running"
        release, door = process.get("flashinfer"), process.get("activated_by")
        yield (f"{process['pid']} {_short(command)}", release or "-", door or "-", ended)


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def _row(audit: Audit, patch: str) -> tuple[str, ...]:
    by_how: Counter[str] = Counter()
    for call, times in audit.calls_of(patch):
        by_how[call.column] += times
    columns = ("compilations", "eager", "op", "outside")
    return (named([patch]), *(str(by_how[column] or "-") for column in columns))
