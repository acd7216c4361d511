"""What ``prewarm`` did, as one value for each architecture, and its two forms."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..records import named
from .table import paragraph, print_table

#: Raised when a key of the JSON changes its meaning or goes away; new keys do not raise it.
SCHEMA = 1
_THERE = ("built", "present", "installed")
_STATES = (*_THERE, "missing", "failed")


@dataclass
class Module:
    """One kernel module.

    Attributes:
        module: its name in FlashInfer.
        state: ``installed`` (by flashinfer-jit-cache), ``present``, ``built``, ``missing`` or
            ``failed``.
        seconds: what its build took, or ninja to find it up to date; None where neither was done.
        ops: those that need it.
        path: the library.
        error: why it is not there, empty if it is.
    """

    module: str
    state: str
    seconds: float | None
    ops: list[str]
    path: str
    error: str


@dataclass
class Run:
    """What was done for one architecture.

    Attributes:
        arch: as it was asked for.
        flashinfer: the release, None if FlashInfer was not imported.
        cache: FlashInfer's directory for modules, None where nothing was planned.
        modules: by name.
        skipped: by op, why nothing of it was built.
        waited_for: who was waited for, empty if nobody was.
        refused: why nothing, or no more, could be done; empty if there was no reason.
    """

    arch: str
    flashinfer: str | None = None
    cache: str | None = None
    modules: dict[str, Module] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    waited_for: str = ""
    refused: str = ""

    def take(self, event: Mapping[str, Any]) -> None:
        """Write down what the child said."""
        kind = event["event"]
        if kind == "planning":
            self.flashinfer = event["flashinfer"]
        elif kind == "plan":
            self.cache, self.skipped = event["cache"], event["skipped"]
            for each in event["modules"]:
                state = "failed" if each["error"] else each["state"]
                self.modules[each["module"]] = Module(**{**each, "state": state, "seconds": None})
        elif kind == "waiting":
            self.waited_for = event["owner"]
        elif kind == "end":
            module = self.modules[event["module"]]
            module.state, module.seconds = event["state"], event["seconds"]
            module.error = event["error"]
        elif kind == "refused":
            self.refused = event["reason"]


def exit_status(runs: Sequence[Run], *, dry_run: bool) -> int:
    """0: all modules are there, or could be built. 1: something could not."""
    fine = (*_THERE, "missing") if dry_run else _THERE
    modules = [module for run in runs for module in run.modules.values()]
    refused = any(run.refused for run in runs)
    return 1 if refused or any(module.state not in fine for module in modules) else 0


def as_json(runs: Sequence[Run], *, dry_run: bool) -> str:
    """The documented form for programs; docs/prewarm.md holds the schema."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "exit_status": exit_status(runs, dry_run=dry_run),
            "dry_run": dry_run,
            "runs": [
                {**asdict(run), "modules": [asdict(each) for each in run.modules.values()]}
                for run in runs
            ],
        },
        indent=2,
    )


def print_text(runs: Sequence[Run]) -> None:
    """The form for people."""
    rows = [
        (module.module, run.arch, module.state, _seconds(module), named(module.ops))
        for run in runs
        for module in run.modules.values()
    ]
    if rows:
        print_table("", ("module", "arch", "state", "seconds", "for"), rows)
    for run in runs:
        if run.cache is not None and run.modules:
            print(paragraph(f"{run.arch}: FlashInfer {run.flashinfer}, {run.cache}"))
        for module in run.modules.values():
            if module.error:
                print(paragraph(f"{module.module}: {_last_line(module.error)}"))
        for reason in dict.fromkeys(run.skipped.values()):
            ops = [op for op, said in run.skipped.items() if said == reason]
            print(paragraph(f"{run.arch}: nothing is built for {named(ops)}: {reason}."))
        if run.refused:
            print(paragraph(f"{run.arch}: {run.refused}."))
    modules = [module for run in runs for module in run.modules.values()]
    counts = {state: sum(m.state == state for m in modules) for state in _STATES}
    said = [f"{count} {state}" for state, count in counts.items() if count]
    print(f"{', '.join(said)}." if said else "There is no module to build.")


def _seconds(module: Module) -> str:
    return "-" if module.seconds is None else f"{module.seconds:.1f}"


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    wrong = [line for line in lines if "error" in line.lower()]
    return (wrong or lines)[-1].strip()
