"""What became of each patch: the one record that status(), check and the exit code read."""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterable
from dataclasses import dataclass


class Verdict(str, enum.Enum):
    """The state of one patch in one process."""

    APPLIED = "applied"
    PENDING = "pending"
    NOT_NEEDED = "not needed"
    REFUSED = "refused"
    DISABLED = "disabled"
    FAILED = "failed"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Record:
    """One patch: where it stands and why.

    Attributes:
        patch: the name that ``FLASHINFER_SHIM_PATCHES`` knows.
        target: ``module:attribute`` that the patch replaces.
        verdict: where it stands.
        reason: why, in one sentence.
        found: what the installed FlashInfer showed (release, signature), empty if never looked at.
        expected: what the contract asks for, empty if never looked at.
        action: what the user can do next, empty if there is nothing to do.
        before: ``repr`` of the replaced object, for applied patches.
        after: ``repr`` of the replacement, for applied patches.
        traceback: the fault, for failed patches.
    """

    patch: str
    target: str
    verdict: Verdict
    reason: str
    found: str = ""
    expected: str = ""
    action: str = ""
    before: str | None = None
    after: str | None = None
    traceback: str | None = None


class Ledger:
    """A thread-safe table of records, in the order in which the patches were first entered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, Record] = {}

    def enter(self, record: Record) -> None:
        """Write ``record`` over whatever stood for its patch."""
        with self._lock:
            self._records[record.patch] = record

    def replace(self, records: Iterable[Record]) -> None:
        """Forget everything and hold ``records``."""
        fresh = {record.patch: record for record in records}
        with self._lock:
            self._records = fresh

    def records(self) -> tuple[Record, ...]:
        """A snapshot."""
        with self._lock:
            return tuple(self._records.values())

    def verdict(self, patch: str) -> Verdict | None:
        """Where ``patch`` stands, None if it was never entered."""
        with self._lock:
            record = self._records.get(patch)
        return None if record is None else record.verdict
