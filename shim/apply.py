"""Apply the patches of one module: all of them or none."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from . import replacing
from .opaque.identity import without_disable
from .patches import Site
from .settings import Settings
from .survey import Finding


class ForeignFunction(Exception):
    """The live object is not the function that the module's source defines."""


@dataclass(frozen=True)
class Applied:
    """One patch in force: ``original`` is the identical object to put back."""

    finding: Finding
    original: Any
    replacement: Any


def apply(
    module: ModuleType, findings: Iterable[Finding], settings: Settings, *, everywhere: bool
) -> list[Applied]:
    """Build every replacement, then set every one; on a fault put back what was set.

    Args:
        module: has been executed.
        findings: patches for functions of this module whose judgement allows them.
        settings: of the process.
        everywhere: rebind copies in all modules, not in FlashInfer's alone.

    Raises:
        ForeignFunction: somebody else has replaced a function; nothing is changed.
        Exception: whatever a builder raises; nothing is changed.
    """
    prepared = [_prepare(module, finding, settings) for finding in findings]
    prefix = "" if everywhere else "flashinfer"
    done: list[Applied] = []
    try:
        for entry in prepared:
            done.append(entry)
            replacing.put(module, entry.finding.patch.contract.function, entry.replacement)
            # Aliases in the module itself, and copies that an import cycle made meanwhile.
            replacing.rebind(entry.original, entry.replacement, prefix)
    except BaseException:
        for entry in reversed(done):
            replacing.rebind(entry.replacement, entry.original)
        raise
    return done


def _prepare(module: ModuleType, finding: Finding, settings: Settings) -> Applied:
    original = replacing.resolve(module, finding.patch.contract.function)
    function = without_disable(original)
    _check_origin(function, finding)
    traits = finding.judgement.row.traits if finding.judgement.row else None
    replacement = finding.patch.build(Site(module, function, finding.release, traits, settings))
    return Applied(finding, original, replacement)


def _check_origin(function: Callable[..., Any], finding: Finding) -> None:
    """The contract judged source text; make sure that the live function came from it."""
    facts = finding.facts
    code = getattr(inspect.unwrap(function), "__code__", None)
    if (
        facts is None
        or code is None
        or not _same_file(code.co_filename, facts.path)
        or not facts.first_line <= code.co_firstlineno <= facts.last_line
    ):
        where = f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)
        raise ForeignFunction(f"{finding.target} has been replaced by the function of {where}")


def _same_file(one: str, other: os.PathLike[str]) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.normcase(one) == os.path.normcase(os.fspath(other))
