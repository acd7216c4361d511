"""Does what is installed match what a patch was written for? Pure: facts in, judgement out.

A version range alone patches the wrong object for months, a signature alone misses a changed
body, so a contract asks for all three: a release of the table, the module and signature of that
release's row, and the digest of the bodies that the patch relies on. On top of them a probe of
the source says whether the fault that the patch cures is still there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import Version

from .ledger import Verdict
from .sources import FunctionFacts
from .upstream import Installed

#: Decorators with which users keep the compiler out of a function by hand. Whoever followed that
#: advice has edited site-packages; we look through the edit (full-graph mode rejects it anyway).
DISABLING = frozenset(
    {"torch.compiler.disable", "torch._dynamo.disable", "_dynamo.disable", "compiler.disable"}
)


_version = functools.cache(Version)


@functools.cache
def _public(version: Version) -> Version:
    return Version(version.public)


class Row(NamedTuple):
    """One run of consecutive releases in which a function stays as it is.

    Attributes:
        since, until: first and last release of the run, both included.
        module: where the function is defined.
        signature: its parameters and defaults, without annotations.
        digest, source: see :class:`~shim.sources.FunctionFacts`; without ``source`` the digest
            alone decides.
        traits: what the patch needs to know of this run, in a type of the patch's own.
    """

    since: str
    until: str
    module: str
    signature: str
    digest: str
    source: str = ""
    traits: Any = None

    def covers(self, version: Version) -> bool:
        """Whether ``version`` (without its local part) lies in the run."""
        return _version(self.since) <= _public(version) <= _version(self.until)


@dataclass(frozen=True, eq=False)
class Contract:
    """What a patch was written for.

    Attributes:
        function: name of the function in its module.
        companions: functions of the same module whose bodies belong to the digest.
        rows: the runs of releases, oldest first.
        fixed: probe; given the facts, whether upstream has cured the fault itself.
        faulty: probe; given the facts, whether the fault that the patch cures is visible.
    """

    function: str
    companions: tuple[str, ...]
    rows: tuple[Row, ...]
    fixed: Callable[[FunctionFacts], bool]
    faulty: Callable[[FunctionFacts], bool]

    @functools.cache  # noqa: B019  (contracts live as long as the process)
    def row_for(self, version: Version | None) -> Row | None:
        """The row whose run covers ``version``."""
        if version is None:
            return None
        return next((row for row in self.rows if row.covers(version)), None)

    def modules(self, version: Version | None) -> tuple[str, ...]:
        """Where to look for the function: the row's module, or every known one, newest first."""
        row = self.row_for(version)
        if row is not None:
            return (row.module,)
        return tuple(dict.fromkeys(row.module for row in reversed(self.rows)))


class Judgement(NamedTuple):
    """The contract's word on one installation.

    ``verdict`` is ``pending`` where the patch may be applied, else ``refused`` or ``not needed``.
    ``row`` is the row to patch by. The texts mean what they mean in :class:`~shim.ledger.Record`;
    the reason does not name the function, so that functions which share it can share a line.
    """

    verdict: Verdict
    reason: str
    found: str
    expected: str
    action: str
    row: Row | None


def judge(
    contract: Contract,
    installed: Installed,
    facts: FunctionFacts | None,
    *,
    releases: tuple[str, ...],
    policy: str,
) -> Judgement:
    """Judge one patch.

    Args:
        contract: of the patch.
        installed: the FlashInfer that an import gives.
        facts: on the contract's function there, None if it was not found.
        releases: the tested releases, oldest first.
        policy: ``tested`` or ``adapt``.
    """
    found = _found(installed, facts)
    row = contract.row_for(installed.version) if installed.release in releases else None
    expected = _expected(row) if row else f"one of the tested releases {_span(releases)}"
    released = f"release {installed.release} is in the table and its code is the released code"

    def refuse(reason: str, action: str) -> Judgement:
        return Judgement(Verdict.REFUSED, reason, found, expected, action, None)

    if installed.problem:
        return refuse(
            installed.problem, "reinstall flashinfer-python so that one release is stated"
        )
    if row is not None and facts is not None and facts.rebound:
        return refuse(_rebound(facts), f"reinstall flashinfer-python=={installed.release}")
    if row is not None and facts is not None and facts.released:
        return Judgement(Verdict.PENDING, released, found, expected, "", row)
    if facts is not None and contract.fixed(facts):
        reason = f"as FlashInfer {installed.release} has it, it can be compiled"
        return Judgement(Verdict.NOT_NEEDED, reason, found, expected, "", row)
    if row is None and installed.release in releases:
        reason = f"release {installed.release} has no such function"
        return Judgement(Verdict.NOT_NEEDED, reason, found, expected, "", None)
    if row is None and policy == "adapt" and facts is None and _gone(contract, releases):
        reason = f"there is no such function, as there is none in {releases[-1]} (adapt)"
        return Judgement(Verdict.NOT_NEEDED, reason, found, expected, "", None)
    if facts is None and not installed.readable and (row is not None or policy == "adapt"):
        return refuse(
            sources_missing(installed.package), f"reinstall flashinfer-python=={installed.release}"
        )
    if row is None:
        return _judge_unknown(contract, installed, facts, found, expected, policy, refuse)
    if facts is None:
        return refuse(
            f"{row.module} has no such function",
            f"reinstall flashinfer-python=={installed.release}",
        )
    if facts.signature == row.signature and facts.digest == row.digest:
        return Judgement(Verdict.PENDING, released, found, expected, "", row)
    changed = "signature" if facts.signature != row.signature else "body"
    if policy == "adapt" and changed == "body" and contract.faulty(facts):
        reason = "its body was changed but its signature fits (adapt)"
        return Judgement(Verdict.PENDING, reason, found, expected, "", row)
    return refuse(
        f"its {changed} is not the one that {installed.release} released",
        f"reinstall flashinfer-python=={installed.release}"
        + ("" if changed == "signature" else ", or set FLASHINFER_SHIM_POLICY=adapt"),
    )


def _judge_unknown(
    contract: Contract,
    installed: Installed,
    facts: FunctionFacts | None,
    found: str,
    expected: str,
    policy: str,
    refuse: Callable[[str, str], Judgement],
) -> Judgement:
    """A release that the table does not hold: only ``adapt`` goes on, by the newest fitting row."""
    if policy != "adapt":
        return refuse(
            f"release {installed.release} is not in the table of tested releases",
            "upgrade flashinfer-shim, or set FLASHINFER_SHIM_POLICY=adapt to patch what still fits",
        )
    if facts is None:
        modules = ", ".join(contract.modules(installed.version))
        return refuse(f"there is no such function in {modules}", "upgrade flashinfer-shim")
    if facts.rebound:
        return refuse(_rebound(facts), "upgrade flashinfer-shim")
    fitting = [row for row in contract.rows if row.signature == facts.signature]
    if not fitting or not contract.faulty(facts):
        lost = "signature is" if not fitting else "body is"
        return refuse(
            f"its {lost} unlike that of any tested release, so adapt cannot vouch for it",
            "upgrade flashinfer-shim",
        )
    row = fitting[-1]
    reason = f"release {installed.release} is not tested but its signature fits {row.until} (adapt)"
    return Judgement(Verdict.PENDING, reason, found, expected, "", row)


def sources_missing(package: Path) -> str:
    """What there is to say of a package that lies in a zip, or in ``.pyc`` files alone."""
    return f"the source files (.py) of {package} are not there to be read"


def _rebound(facts: FunctionFacts) -> str:
    return f"line {facts.rebound} of {facts.path} puts something else in its place"


def _gone(contract: Contract, releases: tuple[str, ...]) -> bool:
    """Whether the newest release of the table lacks the function."""
    return contract.row_for(Version(releases[-1])) is None


def _span(releases: tuple[str, ...]) -> str:
    return f"{releases[0]} to {releases[-1]}"


def _expected(row: Row) -> str:
    return f"{row.module} ({row.signature}) body {row.digest}"


def _found(installed: Installed, facts: FunctionFacts | None) -> str:
    release = str(installed.version) if installed.version else "an unknown release"
    if facts is None:
        return release
    edited = [name for name in facts.decorators if name in DISABLING]
    note = f", edited: @{edited[0]}" if edited else ""
    return f"{release}: {facts.module} ({facts.signature}) body {facts.digest}{note}"
