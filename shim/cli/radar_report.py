"""All that ``radar`` finds, as one value, and its two forms: text for people, JSON for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..contract import Judgement
from ..ledger import Verdict
from ..patches import FAMILIES, RELEASES
from ..records import named
from .radar_drift import STATUSES, STILL, Drift, Step
from .radar_source import Source
from .table import paragraph, print_table

#: Raised when a key of the JSON changes its meaning or goes away; new keys do not raise it.
SCHEMA = 1

#: What a maintainer does about functions that moved, before the release is tested.
_ACTIONS = {
    "gone": "nothing: their rows end with the release before",
    "fixed upstream": "nothing: their rows end with the release before",
    "ambiguous": "say in their declarations which `module` is meant",
    "signature moved": "see whether example, also, mutates, out and annotations of their "
    "declarations in shim/patches/ops fit the new parameters",
    "body moved": "compare what they return: flashinfer-shim radar --run",
}
_NEW_ROW = "write a row with the new module, signature and digest"
#: The same for functions whose rows are written by hand.
_BY_HAND = dict.fromkeys(("gone", "fixed upstream"), "end its rows with the release before")


@dataclass(frozen=True)
class Opinion:
    """What the function's own Python says of its outputs, next to the older release.

    Attributes:
        verdict: ``agrees``, ``differs`` or ``not run``.
        reason: the first difference, or why it was not run; where it agrees, how many of its
            examples were not, empty if all were.
    """

    verdict: str
    reason: str = ""


_NOT_ASKED = Opinion("not run", "--run was not given")


@dataclass(frozen=True)
class Report:
    """What ``radar`` found.

    Attributes:
        source: the release that it looked at.
        base: the tested release that it compared with.
        drifts: one for each patch that was asked for.
        opinions: by patch, for what moved and is there in both; None without ``--run``.
    """

    source: Source
    base: str
    drifts: tuple[Drift, ...]
    opinions: Mapping[str, Opinion] | None

    @property
    def moved(self) -> tuple[Drift, ...]:
        """The patches of which anything is to be told."""
        return tuple(drift for drift in self.drifts if drift.moved)

    @property
    def exit_status(self) -> int:
        """0: nothing moved. 1: something did."""
        return 1 if self.moved else 0

    @property
    def is_tested(self) -> bool:
        """Whether the release is in the table."""
        return self.source.installed.release in RELEASES

    def opinion(self, drift: Drift) -> Opinion | None:
        """On a function that moved; None where there is nothing to compare."""
        if not comparable(drift):
            return None
        return _NOT_ASKED if self.opinions is None else self.opinions[drift.patch.name]


def comparable(drift: Drift) -> bool:
    """Whether the function moved, and both releases have it."""
    return drift.status in ("signature moved", "module moved", "body moved")


def as_json(report: Report) -> str:
    """The documented form for programs; docs/radar.md holds the schema."""
    here = report.source.installed
    return json.dumps(
        {
            "schema": SCHEMA,
            "exit_status": report.exit_status,
            "summary": summary(report),
            "release": here.version and str(here.version),
            "problem": here.problem,
            "origin": report.source.origin,
            "tested": report.is_tested,
            "against": report.base,
            "actions": list(_actions(report)),
            "patches": [_patch(drift, report) for drift in report.drifts],
        },
        indent=2,
    )


def _patch(drift: Drift, report: Report) -> dict[str, Any]:
    opinion = report.opinion(drift)
    return {
        "patch": drift.patch.name,
        "family": drift.patch.family,
        "function": drift.patch.contract.function,
        "status": drift.status,
        "steps": [asdict(step) for step in drift.steps],
        "successor": drift.successor or None,
        "shadow": opinion and asdict(opinion),
        "under": {"tested": _judged(drift.tested), "adapt": _judged(drift.adapt)},
    }


def _judged(judgement: Judgement) -> dict[str, str]:
    return {
        "verdict": str(judgement.verdict),
        "reason": judgement.reason,
        "action": judgement.action,
        "found": judgement.found,
        "expected": judgement.expected,
    }


def summary(report: Report) -> str:
    """The whole report in one sentence."""
    counts = Counter(drift.status for drift in report.drifts)
    said = [f"{counts[status]} {status}" for status in STATUSES if counts[status]]
    return f"FlashInfer {report.source.release} against {report.base}: {', '.join(said)}."


def print_text(report: Report) -> None:
    """The form for people: one table, what moved, what follows from it, the summary."""
    here = report.source.installed
    known = "tested" if report.is_tested else "not in the table of tested releases"
    print(paragraph(f"{report.source.origin}: FlashInfer {report.source.release}, {known}."))
    if here.problem:
        print(paragraph(f"{here.problem[0].upper()}{here.problem[1:]}."))
    print()
    columns = ("family", "patches", f"since {report.base}", "policy tested", "policy adapt")
    print_table("", columns, _rows(report.drifts))
    for status in STATUSES:
        group = [drift for drift in report.drifts if drift.status == status]
        if group and status not in STILL:
            print(f"\n{status[0].upper()}{status[1:]}:")
            for depth, line in _TOLD.get(status, _by_story)(group):
                print(paragraph(line, "    " * depth))
    _print_opinions(report)
    print()
    for line in _consequences(report):
        print(paragraph(line))
    print()
    print(paragraph(summary(report)))
    for action in _actions(report):
        print(paragraph(f"Next: {action}.", "    "))


def _rows(drifts: Sequence[Drift]) -> list[tuple[str, ...]]:
    """One row for the patches of a family that share status and verdicts."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for family in FAMILIES:
        for drift in drifts:
            if drift.patch.family == family:
                key = (family, drift.status, _word(drift.tested), _word(drift.adapt))
                groups.setdefault(key, []).append(drift.patch.name)
    return [(key[0], _members(key[0], names), *key[1:]) for key, names in groups.items()]


def _members(family: str, names: Sequence[str]) -> str:
    whole = len(FAMILIES[family])
    if len(names) == 1:
        return names[0]
    return f"{whole} patches" if len(names) == whole else f"{len(names)} of {whole}"


def _word(judgement: Judgement) -> str:
    return "will apply" if judgement.verdict is Verdict.PENDING else str(judgement.verdict)


#: How far in, and the text.
_Line = tuple[int, str]


def _by_story(drifts: Sequence[Drift]) -> Iterator[_Line]:
    """Functions that went through the same, and the releases in order."""
    stories: dict[tuple[str, ...], list[str]] = {}
    for drift in drifts:
        stories.setdefault(tuple(_story(drift)), []).append(drift.patch.name)
    for story, names in stories.items():
        yield 1, f"{', '.join(names)}:"
        yield from ((2, line) for line in story)


def _story(drift: Drift) -> Iterator[str]:
    for step in drift.steps:
        said = [change.text for change in step.changes if change.kind != "body"]
        if said:
            yield f"{step.release}: {'; '.join(said)}"
    bodies = _bodies(drift.steps)
    if bodies:
        yield f"another body: {', '.join(bodies)}"
    if drift.successor:
        yield f"{drift.successor} has the same body and parameters"


def _bodies(steps: Sequence[Step]) -> list[str]:
    return [step.release for step in steps if any(c.kind == "body" for c in step.changes)]


def _with_releases(drifts: Sequence[Drift]) -> Iterator[_Line]:
    """Functions whose bodies changed in the same releases."""
    groups: dict[str, list[str]] = {}
    for drift in drifts:
        groups.setdefault(", ".join(_bodies(drift.steps)), []).append(drift.patch.name)
    for releases, names in groups.items():
        yield 1, f"{releases}: {', '.join(names)}"


def _by_release(drifts: Sequence[Drift]) -> Iterator[_Line]:
    """Functions by the last release that changed whether they are there."""
    groups: dict[str, list[str]] = {}
    for drift in drifts:
        releases = [s.release for s in drift.steps for c in s.changes if c.kind in ("new", "gone")]
        also = f" (perhaps {drift.successor} now)" if drift.successor else ""
        groups.setdefault(releases[-1], []).append(drift.patch.name + also)
    for release, names in groups.items():
        yield 1, f"{release}: {', '.join(names)}"


_TOLD = {"body moved": _with_releases, "new": _by_release, "gone": _by_release}


def _print_opinions(report: Report) -> None:
    """What their own Python says of what moved."""
    groups: dict[tuple[str, str], list[str]] = {}
    for drift in report.drifts:
        opinion = report.opinion(drift)
        if opinion:
            key = (opinion.verdict, opinion.reason)
            groups.setdefault(key, []).append(drift.patch.name)
    if groups:
        print("\nWhat those that moved return, by their own Python:")
    for (verdict, reason), names in groups.items():
        because = f", {reason}" if reason else ""
        print(paragraph(f"{verdict}{because}: {named(names)}", "    "))


def _consequences(report: Report) -> Iterator[str]:
    """What a running process would do under each policy, each reason once."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for drift in report.drifts:
        verdicts = {"tested": drift.tested, "adapt": drift.adapt}
        said = {name: (_word(each), each.reason) for name, each in verdicts.items()}
        if said["tested"] == said["adapt"]:
            said = {"tested or adapt": said["tested"]}
        for policy, words in said.items():
            groups.setdefault((policy, *words), []).append(drift.patch.name)
    for policy, word, reason in sorted(groups, key=lambda group: group[0], reverse=True):
        names = groups[policy, word, reason]
        yield f"FLASHINFER_SHIM_POLICY={policy}: {named(names)} {word}: {reason}."


def _actions(report: Report) -> Iterator[str]:
    """What makes the release a tested one."""
    if report.is_tested:
        return
    release = report.source.installed.release
    if release is None:
        yield "give a source that states its release"
        return
    for status in STATUSES:
        group = [drift for drift in report.drifts if drift.status == status]
        declared = [d.patch.name for d in group if not d.patch.rows]
        if declared and status in _ACTIONS:
            yield f"{named(declared)} ({status}): {_ACTIONS[status]}"
    for drift in report.moved:
        patch = drift.patch
        if patch.rows:
            what = _BY_HAND.get(drift.status, _NEW_ROW)
            yield f"{patch.name} ({drift.status}): {what}, in shim/patches/{patch.rows}.py"
    yield f"make release RELEASE={release}, which writes the rows; then make test"
