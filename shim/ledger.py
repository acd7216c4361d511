"""What became of each patch: the one record that status(), check and the exit code read."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from . import forking

T = TypeVar("T")


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
    """A thread-safe table of records, in the order in which the patches were first entered.

    Most processes never read it, so it holds what makes the records.
    """

    def __init__(self) -> None:
        self._lock = forking.lock()
        self._all: Callable[[], Iterable[Record]] | None = None
        self._entered: dict[str, tuple[Callable[[Any], Record], Any]] = {}
        self._records: dict[str, Record] = {}

    def enter(self, patch: str, record: Callable[[T], Record], what: T) -> None:
        """Let what ``record`` makes of ``what`` take the place of whatever stood for ``patch``."""
        with self._lock:
            self._entered[patch] = (record, what)

    def replace(self, records: Callable[[], Iterable[Record]]) -> None:
        """Forget everything and hold what ``records`` gives when it is called."""
        with self._lock:
            self._all, self._entered, self._records = records, {}, {}

    def records(self) -> tuple[Record, ...]:
        """A snapshot."""
        with self._lock:
            if self._all is not None:
                self._records = {record.patch: record for record in self._all()}
                self._all = None
            while self._entered:
                patch, (record, what) = next(iter(self._entered.items()))
                self._records[patch] = record(what)
                del self._entered[patch]
            return tuple(self._records.values())
