"""Ledger records from what the survey found and what was applied, for the hook and ``check``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .ledger import Record, Verdict
from .patches import FAMILIES, PATCHES, Patch
from .survey import Finding

if TYPE_CHECKING:  # it brings wrapt along, which ``check`` does without
    from .apply import Applied

#: More patches than this are told by their families.
_FEW = 4


def unjudged(patch: Patch, verdict: Verdict, reason: str, action: str = "") -> Record:
    """A record for a patch that nobody looked at FlashInfer for."""
    target = f"{patch.contract.modules(None)[0]}:{patch.contract.function}"
    return Record(patch.name, target, verdict, reason, action=action)


def all_unjudged(verdict: Verdict, reason: str, action: str = "") -> list[Record]:
    """:func:`unjudged` for every patch."""
    return [unjudged(patch, verdict, reason, action) for patch in PATCHES]


def judged(finding: Finding) -> Record:
    """The contract's judgement as a record."""
    judgement = finding.judgement
    return Record(
        finding.patch.name,
        finding.target,
        judgement.verdict,
        judgement.reason,
        judgement.found,
        judgement.expected,
        judgement.action,
    )


def overruled(
    finding: Finding, verdict: Verdict, reason: str, action: str, traceback: str | None = None
) -> Record:
    """A patch that the contract allowed and that was not applied all the same."""
    return replace(
        judged(finding), verdict=verdict, reason=reason, action=action, traceback=traceback
    )


def applied(entry: Applied) -> Record:
    """A patch in force."""
    return replace(
        judged(entry.finding),
        verdict=Verdict.APPLIED,
        action="",
        before=repr(entry.original),
        after=repr(entry.replacement),
    )


def names(group: Sequence[Record]) -> str:
    """The patches of ``group``: by name where they are few, else how many of each family."""
    members = {record.patch for record in group}
    if len(members) <= _FEW:
        return ", ".join(record.patch for record in group)
    if len(members) == len(PATCHES):
        return f"all {len(PATCHES)} patches"
    said = []
    for family, patches in FAMILIES.items():
        chosen = [name for name in patches if name in members]
        if len(chosen) == 1:
            said.append(chosen[0])
        elif len(chosen) == len(patches):
            said.append(f"{family} ({len(patches)})")
        elif chosen:
            said.append(f"{family} ({len(chosen)} of {len(patches)})")
    return ", ".join(said)
