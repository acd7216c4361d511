"""What ``check`` found on each node of a fleet: compared, and shown as one table.

A node is a node of a Ray cluster, or a rank that torchrun started.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..ledger import Verdict
from ..records import named
from .check_node import Answer
from .check_report import SCHEMA as REPORT_SCHEMA
from .table import paragraph, print_table

#: Raised when a key of the JSON changes its meaning or goes away; new keys do not raise it.
SCHEMA = 1

#: What has to be the same everywhere: heading of its column -> its path in a node's report.
COMPARED = {
    "Python": ("python", "version"),
    "torch": ("torch", "version"),
    "FlashInfer": ("flashinfer", "version"),
    "flashinfer-shim": ("shim", "version"),
}


class CannotTell(Exception):
    """The fleet cannot be asked; the message says why, and what to do."""


@dataclass(frozen=True)
class Node:
    """One node.

    Attributes:
        name: by which a person finds it.
        id: Ray's, or the rank.
        error: why nothing is known of it, empty if something is.
        report: what ``check --json`` says there, None where there is an error.
    """

    name: str
    id: str
    error: str
    report: Mapping[str, Any] | None = None

    @property
    def fault(self) -> str:
        """Why not all enabled patches come into force there, as far as is known; empty if all."""
        if self.report is None:
            return self.error
        return str(self.report["summary"]) if self.report["exit_status"] else ""

    @property
    def verdicts(self) -> dict[str, str]:
        """Where each patch stands there."""
        patches = self.report["patches"] if self.report else ()
        return {patch["patch"]: patch["verdict"] for patch in patches}

    def value(self, heading: str) -> str:
        """What stands in that column of :data:`COMPARED`; a dash for what is not installed."""
        found: Any = self.report or {}
        for key in COMPARED[heading]:
            found = (found or {}).get(key)
        return str(found or "-")

    @property
    def loaded(self) -> str:
        """``yes`` or ``no``; a dash where nothing is known."""
        return "-" if self.report is None else "yes" if self.report["loading"]["loads"] else "no"


@dataclass(frozen=True)
class Skew:
    """What is not the same everywhere.

    Attributes:
        of: a heading of :data:`COMPARED`, or patches, in few words.
        patches: the names of those; empty for a heading.
        found: each value, with the names of its nodes.
    """

    of: str
    patches: tuple[str, ...]
    found: Mapping[str, Sequence[str]]

    @property
    def usual(self) -> str | None:
        """The value that more nodes have than have any other; None if there is no such."""
        counts = Counter({value: len(nodes) for value, nodes in self.found.items()})
        (value, most), (_, next_most) = counts.most_common(2)
        return value if most > next_most else None


@dataclass(frozen=True)
class Fleet:
    """All nodes.

    Attributes:
        nodes: those that were asked.
        gone: names of nodes that had left before, and why.
    """

    nodes: tuple[Node, ...]
    gone: Mapping[str, str]

    @property
    def answered(self) -> tuple[Node, ...]:
        """The nodes of which something is known."""
        return tuple(node for node in self.nodes if node.report is not None)

    @property
    def skew(self) -> tuple[Skew, ...]:
        """What differs between nodes: versions first, then verdicts."""
        headings = (
            Skew(heading, (), found)
            for heading in COMPARED
            if len(found := _by_value({n.name: n.value(heading) for n in self.answered})) > 1
        )
        return (*headings, *self._verdict_skew())

    def _verdict_skew(self) -> Iterator[Skew]:
        """Patches that stand alike on each node, though not on all nodes, together."""
        groups: dict[tuple[str, ...], list[str]] = {}
        nodes = self.answered
        verdicts = [node.verdicts for node in nodes]
        for patch in dict.fromkeys(name for each in verdicts for name in each):
            stands = tuple(each.get(patch, "unknown") for each in verdicts)
            if len(set(stands)) > 1:
                groups.setdefault(stands, []).append(patch)
        for stands, patches in groups.items():
            found = _by_value({n.name: word for n, word in zip(nodes, stands, strict=True)})
            # What another version of us calls its patches may belong to no family.
            yield Skew(named(patches) or ", ".join(patches), tuple(patches), found)

    @property
    def exit_status(self) -> int:
        """0: all nodes are in order and alike. 1: some are not."""
        return 0 if not self.skew and not any(node.fault for node in self.nodes) else 1


def node(name: str, identity: str, answer: Answer) -> Node:
    """Read what came back from a node."""
    if answer["error"]:
        return Node(name, identity, answer["error"])
    report = json.loads(answer["text"])
    if report["schema"] != REPORT_SCHEMA:
        return Node(
            name,
            identity,
            f"its flashinfer-shim {report['shim']['version']} reports in schema "
            f"{report['schema']}, and this one reads {REPORT_SCHEMA}: install the same everywhere",
        )
    return Node(name, identity, "", report)


def summary(fleet: Fleet) -> str:
    """The whole in one or two sentences."""
    number = len(fleet.nodes)
    wrong = [node.name for node in fleet.nodes if node.fault]
    said = []
    if wrong:
        said.append(f"{len(wrong)} of {number} not in order: {', '.join(wrong)}.")
    if fleet.skew:
        different = [skew.of for skew in fleet.skew if not skew.patches]
        patches = sum(len(skew.patches) for skew in fleet.skew)
        different += [f"the verdict on {patches} patches"] * bool(patches)
        said.append(f"Not the same everywhere: {', '.join(different)}.")
    return " ".join(said) or f"{number} of {number} in order, and alike."


def as_json(fleet: Fleet) -> str:
    """The documented form for programs; docs/fleet.md holds the schema."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "exit_status": fleet.exit_status,
            "summary": summary(fleet),
            "nodes": [
                {"node": each.name, "id": each.id, "error": each.error, "report": each.report}
                for each in fleet.nodes
            ],
            "gone": dict(fleet.gone),
            "skew": [
                {"of": skew.of, "patches": list(skew.patches), "found": dict(skew.found)}
                for skew in fleet.skew
            ],
        },
        indent=2,
    )


def print_text(fleet: Fleet) -> None:
    """The form for people: a row for each node, what differs, what is wrong where."""
    columns = ("node", *COMPARED, "loaded", "patches")
    rows = [_row(node) for node in fleet.nodes]
    print_table("", columns, rows, wrong=_wrong_cells(fleet, columns))
    for paragraphs in (_skews(fleet), _faults(fleet), _gone(fleet), [summary(fleet)]):
        if paragraphs:
            print()
        for text in paragraphs:
            print(paragraph(text))


def _row(node: Node) -> tuple[str, ...]:
    return (node.name, *map(node.value, COMPARED), node.loaded, _stand(node))


def _stand(node: Node) -> str:
    """How many patches stand where, in the words of ``check``."""
    if node.report is None:
        return "unknown"
    waits = "will apply" if node.report["loading"]["loads"] else "would apply"
    counts = Counter(node.verdicts.values())
    return ", ".join(
        f"{counts[verdict]} {waits if verdict is Verdict.PENDING else verdict}"
        for verdict in Verdict
        if counts[verdict]
    )


def _wrong_cells(fleet: Fleet, columns: Sequence[str]) -> set[tuple[int, int]]:
    """Cells that are not as they are elsewhere, and the last one of a node that is not in order."""
    usual = {skew.of: skew.usual for skew in fleet.skew if not skew.patches}
    different = {
        (row, columns.index(heading))
        for row, node in enumerate(fleet.nodes)
        for heading, value in usual.items()
        if node.report is not None and node.value(heading) != value
    }
    faulty = {(row, len(columns) - 1) for row, node in enumerate(fleet.nodes) if node.fault}
    return different | faulty


def _skews(fleet: Fleet) -> list[str]:
    return [
        f"{skew.of}: "
        + "; ".join(f"{value} on {', '.join(nodes)}" for value, nodes in skew.found.items())
        + "."
        for skew in fleet.skew
    ]


def _faults(fleet: Fleet) -> list[str]:
    """What is wrong, with the nodes that it is said of."""
    said = {node.name: node.fault for node in fleet.nodes if node.fault}
    return [f"{', '.join(nodes)}: {text.rstrip('.')}." for text, nodes in _by_value(said).items()]


def _gone(fleet: Fleet) -> list[str]:
    return [
        f"Left before, and not asked: {', '.join(nodes)} ({why})."
        for why, nodes in _by_value(fleet.gone).items()
    ]


def _by_value(values: Mapping[str, str]) -> dict[str, list[str]]:
    """Each value, with the keys that have it."""
    found: dict[str, list[str]] = {}
    for key, value in values.items():
        found.setdefault(value, []).append(key)
    return found
