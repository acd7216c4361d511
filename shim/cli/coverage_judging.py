"""What becomes of each public function: covered, traces by itself, not covered, or no forward's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from ..ledger import Verdict
from ..patches import ops
from ..survey import Finding, survey
from ..upstream import Installed
from . import coverage_rules
from .coverage_sources import Definition, take_inventory

COVERED, TRACES, NOT_COVERED, NOT_IN_FORWARD = "covered", "traces", "not_covered", "not_in_forward"
NOT_LOOKED_AT = "not looked at yet"

#: Where functions are called as others are that a declaration means.
_NAMESAKES = ("flashinfer.triton.*", "flashinfer.experimental.*", "flashinfer.*_backend*")
#: By a function that does nothing but call an op, that op.
_PASSED_ON = {each.name: each.op for passed in ops.PASSED_ON.values() for each in passed}
#: Family, status, reason and module by the name of a function that is no op for a declared reason.
_DECLARED = {
    **{
        entry.name: (family, NOT_COVERED, entry.reason, entry.module)
        for family, entries in ops.UNCOVERED.items()
        for entry in entries
    },
    **{
        entry.name: (family, TRACES, "", "")
        for family, traces in ops.TRACES.items()
        for entry in traces
    },
}


@dataclass(frozen=True)
class Public:
    """A public function or class.

    Attributes:
        name: as users know it; a method's is ``Class.method``.
        definition: where it is defined.
        exported: the dotted names under which it is exported; may be empty.
        family: the part of FlashInfer that it belongs to.
        status: one of the four words above; empty for a class, which counts for nothing.
        reason: why it is not covered, or no part of a forward; else empty.
        finding: on the patch for it, None where there is none.
    """

    name: str
    definition: Definition
    exported: tuple[str, ...]
    family: str
    status: str = ""
    reason: str = ""
    finding: Finding | None = None

    def answers_to(self, pattern: str) -> bool:
        """Whether a user who asks for ``pattern`` means this one."""
        names = {self.name, f"{self.definition.module}.{self.definition.name}", *self.exported}
        names |= {name.rpartition(".")[2] for name in self.exported}
        owner, _, method = self.name.partition(".")
        return (
            pattern == self.family
            or (pattern == owner and bool(method))
            or any(fnmatchcase(name, pattern) for name in names)
        )


@dataclass(frozen=True)
class Coverage:
    """What ``coverage`` found.

    Attributes:
        installed: the FlashInfer that was looked at.
        functions: sorted by family and name.
        classes: likewise.
        unreadable: files of the package that could not be read.
    """

    installed: Installed
    functions: tuple[Public, ...]
    classes: tuple[Public, ...]
    unreadable: tuple[str, ...]

    def only(self, patterns: Sequence[str]) -> Coverage:
        """What answers to one of ``patterns``."""

        def chosen(entries: tuple[Public, ...]) -> tuple[Public, ...]:
            return tuple(e for e in entries if any(map(e.answers_to, patterns)))

        return replace(self, functions=chosen(self.functions), classes=chosen(self.classes))


def judge(package: Path, search_path: Sequence[str], policy: str) -> Coverage:
    """Judge the FlashInfer in directory ``package``. Imports and starts nothing.

    Raises:
        OSError: the package's own ``__init__.py`` cannot be read.
    """
    installed, findings = survey(package, search_path, policy)
    inventory = take_inventory(package)
    exported = dict(inventory.exported)
    patched: dict[Definition, Finding] = {}
    for finding in findings:
        definition = _target(finding, exported)
        # A patch that a setting asks for watches its function, and makes no op of it.
        if definition is not None and not finding.patch.switch:
            patched[definition] = finding
            exported.setdefault(definition, ())
    by_op = {finding.patch.name: finding for finding in patched.values()}

    def finding_of(definition: Definition) -> Finding | None:
        return patched.get(definition) or by_op.get(_PASSED_ON.get(definition.name, ""))

    found = sorted(
        (
            _classify(definition, names, finding_of(definition), definition in inventory.decorated)
            for definition, names in exported.items()
        ),
        key=lambda public: (public.family, public.name, public.definition),
    )
    return Coverage(
        installed,
        tuple(public for public in found if not public.definition.is_class),
        tuple(public for public in found if public.definition.is_class),
        inventory.unreadable,
    )


def _target(finding: Finding, exported: Mapping[Definition, tuple[str, ...]]) -> Definition | None:
    """The function that a patch is for; None where this release has none, as the table knows it."""
    contract = finding.patch.contract
    if finding.facts is not None:
        return Definition(finding.facts.module, contract.function)
    if finding.judgement.verdict is Verdict.NOT_NEEDED:
        return None
    candidates = (Definition(module, contract.function) for module in contract.modules(None))
    return next((candidate for candidate in candidates if candidate in exported), None)


def _classify(
    definition: Definition, exported: tuple[str, ...], finding: Finding | None, decorated: bool
) -> Public:
    name, family = _called(definition, exported), coverage_rules.family(definition)
    if definition.is_class:
        return Public(name, definition, exported, family)
    if finding is not None:
        family = finding.patch.family
        status, reason = _patched(finding)
    else:
        declared = _declared(definition)
        if declared:
            family, status, reason = declared
        elif reason := coverage_rules.apart(definition):
            status = NOT_IN_FORWARD
        else:
            status, reason = NOT_COVERED, NOT_LOOKED_AT
            offered = decorated or any(name.count(".") == 1 for name in exported)
            behind = "" if offered else coverage_rules.backend(definition)
            if behind:
                status, reason = NOT_IN_FORWARD, behind
    return Public(name, definition, exported, family, status, reason, finding)


def _called(definition: Definition, exported: tuple[str, ...]) -> str:
    """The name of its own under which it is exported, else one that it is exported under."""
    names = [name.rpartition(".")[2] for name in exported]
    return definition.name if not names or definition.name in names else min(names)


def _patched(finding: Finding) -> tuple[str, str]:
    judgement = finding.judgement
    if judgement.verdict is Verdict.PENDING:
        return COVERED, ""
    if judgement.verdict is Verdict.NOT_NEEDED:
        return TRACES, ""
    return NOT_COVERED, judgement.reason


def _declared(definition: Definition) -> tuple[str, str, str] | None:
    """Family, status and reason of a function that a declaration names."""
    if definition.name not in _DECLARED:
        return None
    *found, module = _DECLARED[definition.name]
    if module:
        meant = fnmatchcase(definition.module, module)
    else:
        meant = not any(fnmatchcase(definition.module, pattern) for pattern in _NAMESAKES)
    family, status, reason = found
    return (family, status, reason) if meant else None
