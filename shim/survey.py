"""Judge every patch against one installed FlashInfer, from files alone.

Where a file is the released one, that is all that a process which imports FlashInfer has to know.
What a contract would say of each function in it is worked out for whoever asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import matrix
from .ledger import Verdict
from .patches import PATCHES, RELEASES, Patch
from .patches.files import compare
from .upstream import Installed, distribution_version, installed

if TYPE_CHECKING:  # loaded where a file is not the released one, or somebody asks
    from .contract import Judgement, Row
    from .sources import FunctionFacts, Sources


class Finding:
    """One patch, what its function looks like here, and the contract's word on it.

    Attributes:
        patch: the patch.
        verdict: of ``judgement``.
    """

    __slots__ = ("_found", "_intact", "_look", "patch", "verdict")

    def __init__(self, patch: Patch, look: _Look) -> None:
        self.patch = patch
        self._look = look
        self._intact = look.files.get(patch.name)
        self._found: tuple[FunctionFacts | None, Judgement] | None = None
        self.verdict = look.verdict(patch) or self.judgement.verdict

    @property
    def release(self) -> str:
        """The installed FlashInfer's, local part included; empty where it could not be told."""
        return str(self._look.here.version or "")

    @property
    def released(self) -> bool:
        """Whether the function is the very code that the release has in the table."""
        return self._intact is not None or bool(self.facts and self.facts.released)

    @property
    def module(self) -> str:
        """Where the function was found, empty where it was not."""
        if self._intact is not None:
            return self._intact[0]
        return self.facts.module if self.facts else ""

    @property
    def file(self) -> str | None:
        """The one that it was found in."""
        if self._intact is not None:
            return self._intact[1]
        return str(self.facts.path) if self.facts else None

    @property
    def target(self) -> str:
        """``module:function``; see :meth:`~shim.patches.Patch.target`."""
        try:
            module = self.module
        except Exception:  # to look for it takes contracts, whose table may be gone
            module = ""
        return self.patch.target(module)

    @property
    def facts(self) -> FunctionFacts | None:
        """What the source says of the function, None if it was not found."""
        return self._judged()[0]

    @property
    def judgement(self) -> Judgement:
        """The contract's word on it."""
        return self._judged()[1]

    def defines(self, name: str, line: int) -> bool:
        """Whether a function called ``name`` whose code begins on ``line`` of the file is this."""
        if self._intact is not None:
            return name == self.patch.function.rpartition(".")[2]
        return self.facts is not None and self.facts.defines(name, line)

    def forget(self) -> None:
        """Let go of the texts that this finding and the others of its survey were made of."""
        self._look.forget()

    def traits(self) -> Any:
        """What the patch needs to know of this run of releases."""
        row = self.judgement.row
        return None if row is None else row.traits

    def _judged(self) -> tuple[FunctionFacts | None, Judgement]:
        if self._found is None:
            self._found = self._look.judge(self.patch)
        return self._found


class _Look:
    """What the findings of one survey share.

    Args:
        here: the installed FlashInfer.
        policy: ``tested`` or ``adapt``.
        refusal: why nothing is patched with this torch, and what to do about it.
    """

    def __init__(self, here: Installed, policy: str, refusal: tuple[str, str] | None) -> None:
        self.here = here
        self._policy = policy
        self._refusal = refusal
        self._sources: Sources | None = None
        #: See :func:`~shim.patches.files.compare`; of a release that is not tested, empty.
        self.files = compare(here.package, here.release)

    def verdict(self, patch: Patch) -> Verdict | None:
        """That of :meth:`judge` where it follows from the files alone, else None."""
        if not self.files:
            return None
        if patch.name not in self.files:
            return Verdict.NOT_NEEDED
        if self.files[patch.name] is None:
            return None
        return Verdict.REFUSED if self._refusal else Verdict.PENDING

    def judge(self, patch: Patch) -> tuple[FunctionFacts | None, Judgement]:
        """What the source says of a patch's function, and the contract's word on it."""
        from .contract import judge

        facts = self._facts(patch)
        judgement = judge(patch.contract, self.here, facts, releases=RELEASES, policy=self._policy)
        if self._refusal and judgement.verdict is Verdict.PENDING:
            reason, action = self._refusal
            judgement = judgement._replace(verdict=Verdict.REFUSED, reason=reason, action=action)
        return facts, judgement

    def forget(self) -> None:
        """Let go of the texts that were read."""
        self._sources = None

    def _facts(self, patch: Patch) -> FunctionFacts | None:
        contract, intact = patch.contract, self.files.get(patch.name)
        row = contract.row_for(self.here.version)
        if row is not None and intact is not None:
            return _of_row(row, patch.function, Path(intact[1]))
        if self._sources is None:
            from .sources import Sources

            self._sources = Sources(self.here.package)
        known = {row.source: (row.signature, row.digest)} if row and row.source else {}
        for module in contract.modules(self.here.version):
            facts = self._sources.facts(module, patch.function, contract.companions, known)
            if facts is not None:
                return facts
        return None


def survey(
    package: Path, search_path: Sequence[str], policy: str
) -> tuple[Installed, tuple[Finding, ...]]:
    """Look at the FlashInfer in directory ``package``. Imports and starts nothing."""
    here = installed(package, search_path)
    torch = distribution_version("torch", search_path)
    return here, judge_all(here, policy, matrix.refusal(here.release, torch, policy))


def judge_all(
    here: Installed, policy: str, refusal: tuple[str, str] | None = None
) -> tuple[Finding, ...]:
    """Every contract's word on a FlashInfer.

    Args:
        here: the FlashInfer.
        policy: ``tested`` or ``adapt``.
        refusal: why nothing is patched with the torch beside it, and what to do about it; None if
            nothing is known against it.
    """
    look = _Look(here, policy, refusal)
    findings = tuple(Finding(patch, look) for patch in PATCHES)
    look.forget()
    return findings


def _of_row(row: Row, function: str, path: Path) -> FunctionFacts:
    """What a row says of its function, in a file that is the released one byte for byte."""
    from .sources import FunctionFacts

    return FunctionFacts(
        module=row.module,
        name=function,
        path=path,
        signature=row.signature,
        digest=row.digest,
        source=row.source,
        released=True,
    )
