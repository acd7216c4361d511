"""Judge every patch against one installed FlashInfer, from files alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from . import matrix
from .contract import Judgement, Row, judge
from .ledger import Verdict
from .patches import PATCHES, RELEASES, Patch
from .patches.files import released_digest
from .upstream import FunctionFacts, Installed, Sources, distribution_version, installed


@dataclass(frozen=True)
class Finding:
    """One patch, what its function looks like here, and the contract's word on it.

    ``release`` is the installed FlashInfer's, empty where it could not be told.
    """

    patch: Patch
    release: str
    facts: FunctionFacts | None
    judgement: Judgement

    @property
    def target(self) -> str:
        """``module:function``; the newest known module where the function was not found."""
        contract = self.patch.contract
        module = self.facts.module if self.facts else contract.modules(None)[0]
        return f"{module}:{contract.function}"


def survey(
    package: Path, search_path: Sequence[str], policy: str
) -> tuple[Installed, tuple[Finding, ...]]:
    """Look at the FlashInfer in directory ``package``. Imports and starts nothing."""
    here = installed(package, search_path)
    findings = judge_all(here, policy)
    torch = distribution_version("torch", search_path)
    refusal = matrix.refusal(here.release, torch, policy)
    if refusal:
        findings = tuple(_refused(finding, *refusal) for finding in findings)
    return here, findings


def judge_all(here: Installed, policy: str) -> tuple[Finding, ...]:
    """Every contract's word on a FlashInfer, whatever torch is beside it."""
    sources = Sources(here.package)
    findings = []
    for patch in PATCHES:
        facts = _facts(patch, here, sources)
        judgement = judge(patch.contract, here, facts, releases=RELEASES, policy=policy)
        findings.append(Finding(patch, str(here.version or ""), facts, judgement))
    return tuple(findings)


def _refused(finding: Finding, reason: str, action: str) -> Finding:
    if finding.judgement.verdict is not Verdict.PENDING:
        return finding
    judgement = replace(finding.judgement, verdict=Verdict.REFUSED, reason=reason, action=action)
    return replace(finding, judgement=judgement)


def _facts(patch: Patch, here: Installed, sources: Sources) -> FunctionFacts | None:
    contract = patch.contract
    row = contract.row_for(here.version)
    if row is not None and sources.digest(row.module) == released_digest(row.module, here.release):
        return _of_row(row, contract.function, sources.path(row.module))
    known = {row.source: (row.signature, row.digest)} if row and row.source else {}
    for module in contract.modules(here.version):
        facts = sources.facts(module, contract.function, contract.companions, known)
        if facts is not None:
            return facts
    return None


def _of_row(row: Row, function: str, path: Path | None) -> FunctionFacts | None:
    """What a row says of its function, in a file that is the released one byte for byte.

    FlashInfer's import waits for us, and to look for hundreds of functions takes longer than to
    compare a few dozen files.
    """
    if path is None:
        return None
    return FunctionFacts(
        module=row.module,
        name=function,
        path=path,
        signature=row.signature,
        digest=row.digest,
        source=row.source,
        released=True,
    )
