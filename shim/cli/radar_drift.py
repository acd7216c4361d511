"""What became of each patched function on the way to a release. Files are read, nothing is run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from packaging.version import Version

from ..contract import Contract, Judgement, Row
from ..definitions import Ambiguous, Definitions
from ..patches import PATCHES, RELEASES, Patch
from ..patches.ops import OPS
from ..sources import FunctionFacts, Sources
from ..survey import judge_all
from ..upstream import Installed
from .radar_signature import Change, signature_changes

#: What a patch's function has become, the gravest first.
STATUSES = (
    "gone",
    "fixed upstream",
    "ambiguous",
    "signature moved",
    "module moved",
    "body moved",
    "new",
    "unchanged",
    "absent",
)
#: Those that a maintainer need not look at.
STILL = ("unchanged", "absent")


@dataclass(frozen=True)
class Step:
    """What one release changed.

    Attributes:
        release: the first one that is so; on the way back to an older release the last one.
        changes: kinds beside those of :class:`~.radar_signature.Change`: ``module``, ``body``,
            ``gone``, ``new``, ``ambiguous`` and ``fixed``.
    """

    release: str
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Drift:
    """One patch, and its function in the release that the radar looks at.

    Attributes:
        patch: the patch.
        status: one of ``STATUSES``.
        steps: the changes on the way there, in its order.
        successor: what the function, which is gone, may be called now; empty if nothing is like it.
        tested, adapt: what a running process would make of the release under either policy.
    """

    patch: Patch
    status: str
    steps: tuple[Step, ...]
    successor: str
    tested: Judgement
    adapt: Judgement

    @property
    def moved(self) -> bool:
        """Whether anything is to be told."""
        return self.status not in STILL


@dataclass(frozen=True)
class _State:
    """A function in one release, as a row and as facts tell it."""

    module: str
    signature: str
    digest: str


def compare(target: Installed, base: str, wanted: Collection[str]) -> tuple[Drift, ...]:
    """What became of patched functions.

    Args:
        target: the release to look at; one that states no version counts as newer than all.
        base: the tested release to begin with.
        wanted: names of patches.
    """
    sources, definitions = Sources(target.package), Definitions(target.package)
    verdicts = zip(judge_all(target, "tested"), judge_all(target, "adapt"), strict=True)
    return tuple(
        _drift(patch, target, base, sources, definitions, (tested.judgement, adapt.judgement))
        for patch, (tested, adapt) in zip(PATCHES, verdicts, strict=True)
        if patch.name in wanted
    )


def _drift(
    patch: Patch,
    target: Installed,
    base: str,
    sources: Sources,
    definitions: Definitions,
    verdicts: tuple[Judgement, Judgement],
) -> Drift:
    contract = patch.contract
    release = target.release or "this source"
    steps = list(_known_steps(contract, Version(base), target.version))
    last = _last_known(contract, base, target.version)
    ambiguity, facts = _find(patch, sources, definitions)
    if ambiguity:
        steps.append(Step(release, (Change("ambiguous", ambiguity),)))
    else:
        steps += _step(release, last, _state(facts))
    if facts and _is_fixed(contract, target, facts):
        steps.append(Step(release, (Change("fixed", "upstream makes it an op, or cures it"),)))
    there = facts is not None
    status = _status(steps, there, contract.row_for(Version(base)) is not None)
    successor = (
        "" if there or ambiguity or not last else _successor(patch, last, sources, definitions)
    )
    return Drift(patch, status, tuple(_merged(steps)), successor, *verdicts)


def _find(
    patch: Patch, sources: Sources, definitions: Definitions
) -> tuple[str, FunctionFacts | None]:
    """Why the function cannot be told, or what is known of it, None if there is none."""
    contract = patch.contract
    op = OPS.get(patch.name)
    try:
        module = definitions.module(contract.function, op.module if op else "")
    except Ambiguous as error:
        return str(error), None
    if module is None:
        return "", None
    return "", sources.facts(module, contract.function, contract.companions)


def _known_steps(contract: Contract, base: Version, target: Version | None) -> Iterator[Step]:
    """The steps between the table's own releases, from ``base`` to the last on the way."""
    path = _path(base, target)
    rows = {release: contract.row_for(Version(release)) for release in path}
    for old, new in pairwise(path):
        yield from _step(new, _state(rows[old]), _state(rows[new]))


def _path(base: Version, target: Version | None) -> tuple[str, ...]:
    """The tested releases on the way, ``base`` included; the target, if it is one, is the last."""
    if target is None or target >= base:
        return tuple(r for r in RELEASES if base <= Version(r) and not _beyond(r, target))
    return tuple(r for r in reversed(RELEASES) if Version(target.public) <= Version(r) <= base)


def _beyond(release: str, target: Version | None) -> bool:
    return target is not None and Version(release) > Version(target.public)


def _last_known(contract: Contract, base: str, target: Version | None) -> _State | None:
    return _state(contract.row_for(Version(_path(Version(base), target)[-1])))


def _state(found: Row | FunctionFacts | None) -> _State | None:
    return None if found is None else _State(found.module, found.signature, found.digest)


def _step(release: str, old: _State | None, new: _State | None) -> Iterator[Step]:
    changes = tuple(_changes(old, new))
    if changes:
        yield Step(release, changes)


def _changes(old: _State | None, new: _State | None) -> Iterator[Change]:
    if old is None and new is None:
        return
    if new is None:
        yield Change("gone", "there is no such function any more")
    elif old is None:
        yield Change("new", f"there is such a function, in {new.module}", "", "", new.module)
    else:
        if old.module != new.module:
            yield Change("module", f"now in {new.module}", "", old.module, new.module)
        yield from signature_changes(old.signature, new.signature)
        if old.digest != new.digest:
            yield Change("body", "its body is another", "", old.digest, new.digest)


def _is_fixed(contract: Contract, target: Installed, facts: FunctionFacts) -> bool:
    """As the contract's probe says, unless it is the very code that the table has all the same."""
    row = contract.row_for(target.version) if target.release in RELEASES else None
    return contract.fixed(facts) and not (row and row.source == facts.source)


def _status(steps: Sequence[Step], there: bool, was_there: bool) -> str:
    kinds = {change.kind for step in steps for change in step.changes}
    if "ambiguous" in kinds:
        return "ambiguous"
    if not there:
        return "gone" if was_there else "absent"
    if "fixed" in kinds:
        return "fixed upstream"
    if not was_there:
        return "new"
    kinds -= {"gone", "new"}
    for kind, status in (("module", "module moved"), ("body", "body moved")):
        if kinds - {"module", "body"}:
            return "signature moved"
        if kind in kinds:
            return status
    return "unchanged"


def _merged(steps: Sequence[Step]) -> Iterator[Step]:
    """One step for a release of which several things are told."""
    by_release: dict[str, tuple[Change, ...]] = {}
    for step in steps:
        by_release[step.release] = (*by_release.get(step.release, ()), *step.changes)
    for release, changes in by_release.items():
        yield Step(release, changes)


def _successor(patch: Patch, last: _State, sources: Sources, definitions: Definitions) -> str:
    """The one function with the same body and parameters in the module where it was, if any."""
    contract = patch.contract
    method = contract.function.partition(".")[2]
    names = definitions.names(last.module)
    paths = [f"{name}.{method}" if method else name for name in names]
    known = {each.contract.function for each in PATCHES}
    found = []
    for path in paths:
        facts = sources.facts(last.module, path, contract.companions) if path not in known else None
        if facts and (facts.signature, facts.digest) == (last.signature, last.digest):
            found.append(path)
    return found[0] if len(found) == 1 else ""
