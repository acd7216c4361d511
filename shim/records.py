"""Ledger records from what the survey found and what was applied, for the hook and ``check``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .ledger import Record, Verdict
from .patches import FAMILIES, PATCHES, USUAL, Patch
from .survey import Finding

if TYPE_CHECKING:  # it brings wrapt along, which ``check`` does without
    from .apply import Applied

#: More patches than this are told by their families.
_FEW = 4


def unjudged(patch: Patch, verdict: Verdict, reason: str, action: str = "") -> Record:
    """A record for a patch that nobody looked at FlashInfer for."""
    return Record(patch.name, patch.target(), verdict, reason, action=action)


def all_unjudged(verdict: Verdict, reason: str, action: str = "") -> list[Record]:
    """:func:`unjudged` for every patch."""
    return [unjudged(patch, verdict, reason, action) for patch in PATCHES]


def judged(finding: Finding) -> Record:
    """The contract's judgement as a record."""
    reason, found, expected, action = _told(finding)
    return Record(
        finding.patch.name, finding.target, finding.verdict, reason, found, expected, action
    )


def _told(finding: Finding) -> tuple[str, str, str, str]:
    """Reason, what was found and expected, and the action, or else why nobody can tell.

    Contracts are read for whoever asks, and by then their table may be gone. Where a patch stands
    is known without.
    """
    try:
        judgement = finding.judgement
    except Exception as fault:
        reason = f"no more is known of it here: {type(fault).__name__}: {fault}"
        return reason, "", "", "install flashinfer-shim again, and start the process again"
    return judgement.reason, judgement.found, judgement.expected, judgement.action


def overruled(
    finding: Finding, verdict: Verdict, reason: str, action: str, traceback: str | None = None
) -> Record:
    """A patch that the contract allowed and that was not applied all the same."""
    return replace(
        judged(finding), verdict=verdict, reason=reason, action=action, traceback=traceback
    )


def applied(entry: Applied) -> Record:
    """A patch in force."""
    reason, found, expected, _ = _told(entry.finding)
    return Record(
        entry.finding.patch.name,
        entry.finding.target,
        Verdict.APPLIED,
        reason,
        found,
        expected,
        before=repr(entry.original),
        after=repr(entry.replacement),
    )


def since_met(record: Record, reason: str | None) -> Record:
    """``record``, or where a patch in force gave a compiler no op, for ``reason``, that it did."""
    if reason is None or record.verdict is not Verdict.APPLIED:
        return record
    return replace(
        record,
        verdict=Verdict.REFUSED,
        reason=f"a compiler that met it got no op: {reason}",
        action="start the process again",
    )


def paused(entry: Applied) -> Record:
    """A patch that is in force again when ``shim.disabled()`` ends."""
    return overruled(entry.finding, Verdict.DISABLED, "shim.disabled() is running", "let it end")


def grouped(
    records: Iterable[Record], key: Callable[[Record], tuple[str, ...]]
) -> list[tuple[tuple[str, ...], list[Record]]]:
    """The records that have a key in common, by that key, in the order of the first of each."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return list(groups.items())


def names(group: Sequence[Record]) -> str:
    """The patches of ``group`` in few words, as :func:`named` has them."""
    return named([record.patch for record in group])


def counted(patches: Sequence[str]) -> str:
    """By name where they are few, else how many: for what stands below a table of them."""
    return named(patches) if len(patches) <= _FEW else f"{len(patches)} patches"


def named(patches: Sequence[str]) -> str:
    """By name where they are few, else how many of each family."""
    if len(patches) <= _FEW:
        return ", ".join(patches)
    if {*USUAL}.issubset(patches):
        return f"all {len(patches)} patches"
    said = []
    for family, whole in FAMILIES.items():
        chosen = [name for name in whole if name in patches]
        share = str(len(whole)) if len(chosen) == len(whole) else f"{len(chosen)} of {len(whole)}"
        if len(chosen) == 1:
            said.append(chosen[0])
        elif chosen:
            said.append(f"{family} ({share})")
    return ", ".join(said)
