"""Apply the patches of one module, each of them whole or not at all."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Collection, Iterable
from types import ModuleType
from typing import Any, NamedTuple

import torch

from . import replacing
from .errors import ForeignFunction
from .opaque import tracking
from .opaque.identity import original_of, without_disable
from .patches import Site
from .settings import Settings
from .survey import Finding

#: What beartype calls the code that it makes: ``<@beartype(flashinfer.norm.rmsnorm) at 0x7f...>``.
_GENERATED = re.compile(r"<(@\w+)\(")


class Applied(NamedTuple):
    """One patch in force in ``module``: ``original`` is the identical object to put back.

    ``owner`` is the module, or the class in it of which ``original`` is a method.
    ``settings`` are those that the replacement was built with. ``members`` is, by class and
    attribute, what stood there before and what does since, where it is a method.
    """

    module: ModuleType
    finding: Finding
    owner: Any
    original: Any
    replacement: Any
    settings: Settings
    members: dict[tuple[type, str], tuple[object, object]]

    def put(self) -> None:
        """Let the replacement stand where the original does."""
        kind = self.owner
        if isinstance(kind, type):
            found = replacing.methods(kind, self.original, self.replacement)
            # Before any is set: whatever comes in between, withdraw() knows of them.
            self.members.update({(kind, name): pair for name, pair in found.items()})
            for name, (_, since) in found.items():
                setattr(kind, name, since)
            if self.finding.patch.tracked:
                tracking.track(kind)
        else:
            replacing.put(self.module, self.finding.patch.function, self.replacement)

    def withdraw(self) -> None:
        """Put back what stood in a class. Modules are rebound, all at once.

        What a user has put over ours since stays.
        """
        for (kind, attribute), (before, since) in self.members.items():
            tracking.untrack(kind)
            if vars(kind).get(attribute) is since:
                setattr(kind, attribute, before)

    def resume(self) -> None:
        """Undo :meth:`withdraw`. What a user has put there since stays."""
        for (kind, attribute), (before, since) in self.members.items():
            if vars(kind).get(attribute) is before:
                setattr(kind, attribute, since)
            if self.finding.patch.tracked:
                tracking.track(kind)

    def places(self) -> list[object]:
        """What the namespaces of modules hold as long as the patch is, or can be, of any effect."""
        return [kind for kind, _ in self.members] or [self.original, self.replacement]


def prepare(
    work: Iterable[tuple[ModuleType, Finding]], settings: Settings, resting: Iterable[Applied] = ()
) -> tuple[list[Applied], list[tuple[Finding, Exception]]]:
    """Build every replacement; none is set.

    Args:
        work: modules that have been executed, each with a patch for a function of it whose
            judgement allows that.
        settings: of the process.
        resting: patches that were in force before, which have replacements already.

    Returns:
        The patches to be put in, and those that cannot be, each with a :class:`ForeignFunction`
        where somebody else has replaced the function, or whatever its builder raised.
    """
    before = {(each.finding.patch.name, id(each.original)): each for each in resting}
    done: list[Applied] = []
    faults: list[tuple[Finding, Exception]] = []
    for module, finding in work:
        try:
            # Both at once: another thread may be reloading the module.
            owner, original = replacing.resolve_owner(module, finding.patch.function)
            known = before.get((finding.patch.name, id(original)))
            replacement = _replacement(module, finding, settings, original, known)
            done.append(Applied(module, finding, owner, original, replacement, settings, {}))
        except Exception as error:
            faults.append((finding, error))
    return done, faults


def put(done: Collection[Applied], since: str | None = None) -> None:
    """Let the replacements stand in their modules, then rebind the copies of all.

    Where it raises, :func:`withdraw` undoes what was done.

    Args:
        done: what :func:`prepare` has built.
        since: name of the module, if it is one alone and has just been executed: only modules
            whose import began later can hold copies.
    """
    for entry in done:
        entry.put()
    # Aliases in the module itself, and copies that an import cycle made meanwhile. All at once:
    # to look through every namespace of a large process takes long.
    replacing.rebind(((entry.original, entry.replacement) for entry in done), since)


def withdraw(done: Collection[Applied]) -> None:
    """Put the identical originals back, in every loaded module. Idempotent."""
    for entry in done:
        entry.withdraw()
    replacing.rebind((entry.replacement, entry.original) for entry in done)


def _replacement(
    module: ModuleType,
    finding: Finding,
    settings: Settings,
    original: Any,
    before: Applied | None,
) -> Any:
    function = without_disable(original)
    _check_origin(original, finding)
    # What a switch is for is begun by its builder.
    if before is not None and before.settings == settings and not finding.patch.switch:
        return before.replacement
    replacement = finding.patch.build(
        Site(
            finding.patch.name,
            module,
            function,
            finding.release,
            finding.released,
            finding.traits,
            settings,
        )
    )
    if settings.audit:
        from . import audit

        replacement = audit.watch(finding.patch.name, replacement)
    return replacement


def _check_origin(live: Any, finding: Finding) -> None:
    """The contract judged source text; make sure that the live object is what it defines.

    Every layer counts: a user's wrapper around the function may return something else, and to
    patch it would take the wrapper away, or give its results the fake of the function within.
    """
    package = str(sys.modules["flashinfer"].__path__[0])
    layer, code = live, None
    while layer is not None:
        code = getattr(layer, "__code__", None)
        file = "" if code is None else code.co_filename
        allowed = not file or _within(file, package) or _is_torch(file) or _deprecates(file)
        if original_of(layer) is not None or not allowed:
            raise ForeignFunction(_replaced(finding.target, layer))
        layer = getattr(layer, "__wrapped__", None)
    if (
        finding.file is None
        or code is None
        or not _same_file(code.co_filename, finding.file)
        or not finding.defines(code.co_name, code.co_firstlineno)
    ):
        raise ForeignFunction(_replaced(finding.target, live))


def _replaced(target: str, function: Any) -> str:
    code = getattr(function, "__code__", None)
    if code is None:
        return f"{target} has been replaced by {function!r}"
    # Made by a decorator that an import hook puts on every function: one reason for them all.
    decorator = _GENERATED.match(code.co_filename)
    if decorator:
        module = target.partition(":")[0]
        return f"functions of {module} have been wrapped by {decorator[1]}"
    return f"{target} has been replaced by the function of {code.co_filename}:{code.co_firstlineno}"


@functools.cache
def _within(file: str, directory: str) -> bool:
    # As written, or as resolved: some installers link every file or folder to a cache.
    return any(
        path(file).startswith(os.path.join(path(directory), ""))
        for path in (os.path.abspath, os.path.realpath)
    )


def _is_torch(file: str) -> bool:
    return _within(file, os.path.dirname(torch.__file__))  # a layer of torch.compiler.disable


def _deprecates(file: str) -> bool:
    """Whether a layer there is one that upstream itself puts around: it warns, and no more."""
    return os.path.basename(file) in ("typing_extensions.py", "warnings.py", "_py_warnings.py")


@functools.cache
def _same_file(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.normcase(one) == os.path.normcase(other)
