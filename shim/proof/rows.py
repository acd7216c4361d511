"""From what the two sides said to rows that are as they should be or not. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .children import Answers
from .examples import IN_FORCE, Example

#: Version of the JSON that ``prove --json`` prints.
SCHEMA = 1


@dataclass(frozen=True)
class Row:
    """One example, both sides.

    Attributes:
        patch, name: of the example.
        refused: whether the compiler refused the call without us.
        reason: why, in its own words.
        runs: one for each way of running the call with us, as ``compiling.Run`` says.
        problems: what is not as it should be, one sentence each.
        skipped: why there is nothing to try here, empty if there is.
    """

    patch: str
    name: str
    refused: bool
    reason: str
    runs: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    problems: Sequence[str] = field(default_factory=tuple)
    skipped: str = ""

    @property
    def passed(self) -> bool:
        """It fails without us, and all is well with us; or it cannot be tried here."""
        return not self.problems


def make_row(example: Example, without: Answers, with_us: Answers) -> Row:
    """Judge one example.

    Without us the compiler has to refuse it, or there is nothing to prove; save where the ledger
    says that FlashInfer cured the fault itself. With us the patch has to be in force, and every
    run without fault.
    """
    sides = (("without us", without), ("with us", with_us))
    results = {side: answers.results.get(example.name) for side, answers in sides}
    problems = [
        f"{side}: {answers.faults[example.name]}"
        for side, answers in sides
        if results[side] is None
    ]
    skipped = next((said["skipped"] for said in results.values() if said and said["skipped"]), "")
    if skipped:
        return Row(example.patch, example.name, False, "", problems=problems, skipped=skipped)
    before, after = results.values()
    record = after["record"] if after else None
    if before and not before["refused"] and not (record and record["verdict"] == "not needed"):
        problems.append(f"without us the compiler should refuse it, but: {before['reason']}")
    if record and record["verdict"] not in IN_FORCE:
        why_not = "; ".join(filter(None, (record["reason"], record["action"])))
        problems.append(f"patch {example.patch} is {record['verdict']}: {why_not}")
    runs = after["runs"] if after else []
    problems += [f"{run['kind']}, {run['backend']}: {run['fault']}" for run in runs if run["fault"]]
    return Row(
        example.patch,
        example.name,
        refused=bool(before and before["refused"]),
        reason=before["reason"] if before else without.faults[example.name],
        runs=runs,
        problems=problems,
    )


def proved(rows: Sequence[Row]) -> bool:
    """Whether there was something to try, and every row is as it should be."""
    return all(row.passed for row in rows) and not all(row.skipped for row in rows)


def as_json(rows: Sequence[Row], environment: Mapping[str, Any] | None) -> dict[str, Any]:
    """The object that ``prove --json`` prints: see docs/prove.md."""
    return {
        "schema": SCHEMA,
        "passed": proved(rows),
        "environment": environment,
        "rows": [asdict(row) | {"passed": row.passed} for row in rows],
    }


def describe(runs: Sequence[Mapping[str, Any]]) -> str:
    """What the runs showed, one line for those that showed the same."""
    backends: dict[str, list[str]] = {}
    for run in runs:
        backends.setdefault(_finding(run), []).append(run["backend"])
    kinds = {_finding(run): _KINDS[run["kind"]] for run in runs}
    return "\n".join(
        f"{kinds[finding]} ({', '.join(names)}): {finding}" for finding, names in backends.items()
    )


_KINDS = {
    "trace": "fake CUDA tensors",
    "values": "reference values",
    "kernels": "kernels",
    "cuda graph": "CUDA graph",
}


def _finding(run: Mapping[str, Any]) -> str:
    if run["fault"]:
        return f"failed, {run['fault']}"
    parts = []
    if run["frames"] is not None:
        parts += [f"{run['graphs']} graphs of {run['frames']} frames", f"{run['compared']} equal"]
    elif run["compared"] != "errors":
        parts += ["captured, replayed twice", f"{run['compared']} equal"]
    if run["op_calls"]:
        parts.append(f"op ran {run['op_calls']} times")
    if run["note"]:
        parts.append(run["note"])
    return ", ".join(parts)
