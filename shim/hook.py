"""Patch FlashInfer while it is imported, or afterwards, and take the patches back.

``engage`` is what the gate calls when FlashInfer really begins to execute: settings are read, the
installed release is judged from its files, and the gate is told after which modules to call us.
``activate``, ``deactivate`` and ``status`` are the public functions. One lock covers all of it; it
is never held while a module of FlashInfer is imported, so import locks cannot deadlock with it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from . import announce, forking, records
from .errors import ForeignFunction, ShimError
from .ledger import Ledger, Record, Verdict
from .patches import FAMILIES, NAMES
from .quiet import no_compilation
from .settings import Settings, read
from .survey import Finding, survey
from .whole import one_version

if TYPE_CHECKING:  # wrapt comes with it, so only when there is something to patch
    from .apply import Applied


class GateLike(Protocol):
    """What we need of the gate, which may be another copy's."""

    after: dict[str, Callable[[ModuleType], None]]
    handed_over: bool


class _Process:
    """What this process has done so far."""

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self.ledger = Ledger()
        #: Allowed patches by the module that they wait for; a reloaded module is patched again.
        self.wanted: dict[str, list[Finding]] = {}
        self.in_force: dict[str, Applied] = {}
        #: What deactivate() took out. To be put in again as it is, which makes valid again what was
        #: compiled with it; and while it lives, so does what was compiled without guards.
        self.resting: list[Applied] = []
        #: Patches of modules that have been executed again since, of which copies are left.
        self.earlier: list[Applied] = []
        #: What is being put in right now.
        self.begun: list[Applied] = []
        #: deactivate() was called: the gate stays installed and we do nothing.
        self.stood_down = False
        #: The blocks of disabled() that are running, each with the thread that began it.
        self.blocks: dict[object, int] = {}
        #: Whether the originals stand, for the sake of blocks; None: neither they nor the
        #: replacements stand everywhere.
        self.paused: bool | None = False

    def patches(self) -> list[Applied]:
        """All that there is to undo."""
        return [*self.in_force.values(), *self.earlier]


#: How long activate() waits for what is being compiled (seconds). Not for ever: it may be called
#: by a module that a compiling thread waits for.
_PATIENCE = 60.0
_lock = forking.lock()
_process = _Process()


def engage(gate: GateLike) -> None:
    """FlashInfer begins to execute: judge it and tell ``gate`` when to call back.

    Raises:
        ShimError: in mode ``require``, for a wrong setting or a refused patch.
    """
    with _lock:
        gate.handed_over = True
        refused = [] if _process.stood_down else _judge()
        # In one piece: another thread may be importing a module that is wanted before and after.
        gate.after = dict.fromkeys(_process.wanted, _executed)
        _tell(map(records.judged, refused))


def activate(*, again: bool = True) -> tuple[Record, ...]:
    """Patch FlashInfer in this process, whether it is imported already or not yet.

    Names that were copied before (``from flashinfer import fp4_quantize``) are rebound in every
    loaded module; a reference that cannot be reached (in a closure, a class, a partial) is
    redirected when a compiler meets it. Idempotent and thread-safe.

    Args:
        again: also after :func:`deactivate`, whose word holds otherwise.

    Returns:
        The ledger, as :func:`status` does.

    Raises:
        ShimError: in mode ``require``, for a wrong setting, a refusal or a failure.
    """
    from . import gate as own_gate
    from .location import package_directory

    gate = own_gate.install(package_directory(), "activate()")
    with no_compilation(_PATIENCE), _lock:
        if _process.stood_down and not again:
            return status()
        _finish()
        _process.stood_down = False
        if _package() is None:
            return status()
        if not _process.in_force:
            engage(gate)
        _patch_loaded()
        return status()


def deactivate() -> None:
    """Put the identical original objects back, in every loaded module. Idempotent, thread-safe.

    Waits for what is being compiled in other threads. Captured CUDA graphs and exported programs
    keep our ops. A compiled function has guards, which see that FlashInfer's functions are others
    now: its next call compiles it again, as without us. References to our functions that no module
    holds, such as a class attribute, go on being ops where they are compiled.
    """
    with no_compilation(), _lock:
        try:
            _stand_down()
        except BaseException:
            _stand_down()  # not half of it
            raise


def _stand_down() -> None:
    _process.stood_down = True
    _process.wanted = {}
    if _process.patches():
        from . import switching

        switching.take_out(_process.patches())
        _process.resting = _process.patches()
        _process.in_force, _process.earlier = {}, []
    watching = sys.modules.get(f"{__package__}.patches.jit_watch")
    if watching is not None:  # it has replaced a function of torch's, too
        watching.withdraw()
    _process.ledger.replace(
        lambda: records.all_unjudged(
            Verdict.DISABLED, "deactivate() was called", "call activate() to patch again"
        )
    )


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Within the block FlashInfer is as without us, in eager code and to the compiler.

    For comparing: a function that is compiled within it meets upstream's own functions, with the
    graph breaks and errors that they have. After it the identical replacements stand where they
    did, so that what was compiled before it is valid again; what is called on the other side of
    its border is compiled for that side, once, as its guards see which functions are there.

    It holds for the whole process: other threads that call or compile meanwhile meet upstream's
    functions, too. Blocks may overlap and be nested; the last one to end puts the patches in
    again. They wait for what is being compiled in other threads. Modules of FlashInfer that are
    imported meanwhile are patched at the end. A copy of a function that a module has taken
    meanwhile is rebound then; keep one elsewhere, in a local variable, to have upstream's.
    A process that is forked meanwhile is in the blocks of the thread that forked, and in no others.

    Raises:
        ShimError: at the end, in mode ``require``, where a module that was imported meanwhile
            could not be patched.
    """
    block = object()
    try:
        _begin(block)
        yield
    finally:
        try:
            _end(block)
        except BaseException:
            _end(block)  # it may have been interrupted before it began
            raise


def _begin(block: object) -> None:
    with no_compilation(), _lock:
        _process.blocks[block] = threading.get_ident()
        _switch()


def _end(block: object) -> None:
    try:
        if _process.blocks.pop(block, None) is None:
            return  # it was interrupted before it began, or it is another process's
        with no_compilation(), _lock:
            _switch()
            _patch_loaded()
    except BaseException:
        # Whoever does not want to wait for a compilation does not want to be without us for ever.
        with _lock:
            _switch()
        raise


def _switch() -> None:
    """Let the originals stand while there are blocks, and otherwise the replacements."""
    pause = bool(_process.blocks)
    if _process.paused is pause:
        return
    _process.paused = None
    if _process.patches():
        from . import switching

        (switching.take_out if pause else switching.put_in)(_process.patches())
        for applied in _process.in_force.values():
            _enter(applied, records.paused if pause else records.applied)
    _process.paused = pause


def _finish() -> None:
    """End a switch, there or back, that was interrupted."""
    if _process.stood_down and _process.patches():
        _stand_down()
    _switch()


def _forked() -> None:
    """In the child after a fork: no other thread goes on there with what it was doing.

    Imports nothing, since a module that such a thread was importing is never there.
    """
    this = threading.get_ident()
    _process.blocks = {block: by for block, by in _process.blocks.items() if by == this}
    if not _lock._is_owned():  # type: ignore[attr-defined]
        _take_back(_process.begun)
        _process.begun = []
        _finish()


os.register_at_fork(after_in_child=_forked)


def status() -> tuple[Record, ...]:
    """One record for each patch: where it stands in this process and why."""
    known = _process.ledger.records()
    if known:
        engine = sys.modules.get(f"{__package__}.patches.engine")
        stood_aside: dict[str, str] = getattr(engine, "stood_aside", {})
        return tuple(records.since_met(record, stood_aside.get(record.patch)) for record in known)
    if _package() is None:
        reason, action = "FlashInfer has not been imported in this process", ""
    else:
        reason, action = "FlashInfer was imported without us in this process", "call activate()"
    return tuple(records.all_unjudged(Verdict.PENDING, reason, action))


def _judge() -> list[Finding]:
    """Read the settings and judge what is installed: fills the ledger and the wanted patches.

    Returns:
        What has to stand aside.
    """
    settings = _process.settings = read(os.environ, NAMES, FAMILIES)
    announce.set_level(settings.log)
    if announce.enabled("debug"):
        announce.debug(f"settings: {settings.summary()}")
    if settings.mode == "off":
        _process.wanted = {}
        _process.ledger.replace(
            lambda: records.all_unjudged(
                Verdict.DISABLED, "FLASHINFER_SHIM=off", "set FLASHINFER_SHIM=auto"
            )
        )
        return []
    if settings.complaints and settings.mode == "require":
        raise ShimError(f"FLASHINFER_SHIM=require: {'; '.join(settings.complaints)}")
    for complaint in settings.complaints:
        announce.warn(complaint)
    if settings.audit:
        from . import audit

        with audit.harmless():
            audit.start(settings.audit, status)
    package = _package()
    if package is None:
        raise ImportError("flashinfer is not a package with a directory")
    with one_version():  # it reads files of ours
        _, findings = survey(package, sys.path, settings.policy)
    _process.ledger.replace(lambda: _judged(findings, settings))
    if announce.enabled("debug"):
        for each in _process.ledger.records():
            announce.debug(f"{each.patch}: {each.verdict}: {each.reason}; found {each.found}")
    wanted: dict[str, list[Finding]] = {}
    allowed = [finding for finding in findings if not finding.patch.left_out(settings)]
    for finding in allowed:
        if finding.verdict is Verdict.PENDING:
            wanted.setdefault(finding.module, []).append(finding)
            # The package is executed again while its modules stay as they are.
            module = sys.modules.get(finding.module)
            if module is not None and _is_live(module, finding):
                _enter(_process.in_force[finding.patch.name])
    _process.wanted = wanted
    return [finding for finding in allowed if finding.verdict is Verdict.REFUSED]


def _judged(findings: Sequence[Finding], settings: Settings) -> Iterator[Record]:
    """The records before anything is applied."""
    for finding in findings:
        left_out = finding.patch.left_out(settings)
        if left_out:
            yield records.unjudged(finding.patch, Verdict.DISABLED, left_out)
        else:
            yield records.judged(finding)
    for finding in findings:
        finding.forget()


def _package() -> Path | None:
    """The directory of the FlashInfer that is imported or being imported, None if there is none.

    Tests and applications put other things in its place in sys.modules: None, a bare module.
    """
    path = getattr(sys.modules.get("flashinfer"), "__path__", None)
    try:
        return Path(next(iter(path))) if path is not None else None
    except (TypeError, StopIteration):
        return None


def _executed(module: ModuleType) -> None:
    """A module that patches wait for has been executed: the gate's callback."""
    with _lock:
        if _process.paused is not False:
            # What was patched in it stands no more; the rest is done at the end of the block.
            _supersede(_process.wanted.get(module.__name__, ()))
        elif not _process.stood_down:
            _patch([module], late=False)


def _patch_loaded() -> None:
    """Patch what is wanted in modules that have been executed before."""
    if _process.paused is False and not _process.stood_down:
        found = [sys.modules.get(name) for name in _process.wanted]
        modules = [module for module in found if module is not None]
        _patch([module for module in modules if not _half_imported(module)], late=True)
        for module in filter(_half_imported, modules):
            _put_off(module)
        _wake()


def _wake() -> None:
    """Of what deactivate() took out, put in what modules define no more: copies may be left."""
    resting, _process.resting = _process.resting, []
    wanted = {finding.patch.name for each in _process.wanted.values() for finding in each}
    again = {id(applied.original) for applied in _process.in_force.values()}
    rest = [a for a in resting if a.finding.patch.name in wanted and id(a.original) not in again]
    if rest:
        from . import switching

        rest = switching.still_held(rest)
        _process.earlier += rest
        switching.put_in(rest)


def _put_off(module: ModuleType) -> None:
    # The gate calls us when one that was asked for since has been executed; if any is.
    for finding in _process.wanted[module.__name__]:
        if finding.patch.name not in _process.in_force:
            reason = "its module was half imported when activate() was called"
            action = "call shim.activate() once more when FlashInfer is imported"
            record = records.overruled(finding, Verdict.PENDING, reason, action)
            _process.ledger.enter(record.patch, _as_it_is, record)


def _as_it_is(record: Record) -> Record:
    return record


def _supersede(findings: Iterable[Finding]) -> None:
    """Their module has been executed again: of the patches before only copies are left, if any."""
    before = [_process.in_force.pop(f.patch.name, None) for f in findings]
    stale = [applied for applied in before if applied is not None]
    if not stale:
        return
    from .switching import still_held

    _process.earlier += stale
    if _process.paused is False:  # or it is the originals that stand everywhere
        _process.earlier = still_held(_process.earlier)


def _patch(modules: Sequence[ModuleType], *, late: bool) -> None:
    """Patch modules: late, long after they were executed, or one of them right after that."""
    settings = _process.settings
    work = [
        (module, finding)
        for module in modules
        for finding in _process.wanted.get(module.__name__, [])
        if not _done(module, finding, late=late)
    ]
    if settings is None or not work:
        return
    try:
        done, faults = _put(work, settings, late=late)
    except Exception as error:
        done, faults = [], [(finding, error) for _, finding in work]
    if announce.enabled("info"):
        entered = map(records.applied, done)
        by_module = records.grouped(entered, lambda r: (r.target.partition(":")[0], r.reason))
        for (name, reason), group in by_module:
            functions = ", ".join(record.target.partition(":")[2] for record in group)
            announce.info(f"patched in {name}: {functions}: {reason}")
    _tell([_enter_fault(*fault) for fault in faults])


def _put(
    work: Sequence[tuple[ModuleType, Finding]], settings: Settings, *, late: bool
) -> tuple[list[Applied], list[tuple[Finding, Exception]]]:
    """Apply patches and write that down; all of it, or nothing where anything raises."""
    with one_version("apply", "late", "switching"):
        from . import apply, switching  # noqa: F401
        from .late import note_early, redirect

    done, faults = apply.prepare(work, settings, _process.resting)
    _process.begun = done
    try:
        apply.put(done, None if late else work[0][0].__name__)
        _supersede(applied.finding for applied in done)
        for applied in done:
            _process.in_force[applied.finding.patch.name] = applied
            _enter(applied)
        for applied in done:
            (redirect if late else note_early)(applied)
    except BaseException:
        _take_back(done)
        raise
    finally:
        _process.begun = []
    return done, faults


def _take_back(begun: Collection[Applied]) -> None:
    """Undo what :func:`_put` has begun to put in."""
    if begun:
        from . import switching

        switching.take_out(begun)
    for applied in begun:
        finding = applied.finding
        _process.in_force.pop(finding.patch.name, None)
        _process.ledger.enter(finding.patch.name, records.judged, finding)


def _done(module: ModuleType, finding: Finding, *, late: bool) -> bool:
    """Whether the patch is in force in this module.

    Where the module was not executed again, something else in its place is a user's, put over
    ours: it stays.
    """
    applied = _process.in_force.get(finding.patch.name)
    return applied is not None and (
        _is_live(module, finding) or (late and applied.module is module)
    )


def _is_live(module: ModuleType, finding: Finding) -> bool:
    applied = _process.in_force.get(finding.patch.name)
    if applied is None:
        return False
    from .replacing import resolve

    try:
        return resolve(module, finding.patch.function) is applied.replacement
    except AttributeError:
        return False


def _half_imported(module: ModuleType) -> bool:
    # Still executing, in this thread or another: a loader that is gated will call us.
    return bool(getattr(module.__spec__, "_initializing", False))


def _enter(applied: Applied, record: Callable[[Applied], Record] = records.applied) -> None:
    """Put a patch that was applied into the ledger."""
    _process.ledger.enter(applied.finding.patch.name, record, applied)


def _enter_fault(finding: Finding, error: Exception) -> Record:
    """Put a patch that could not be applied into the ledger."""
    if isinstance(error, ForeignFunction):
        record = records.overruled(
            finding,
            Verdict.REFUSED,
            str(error),
            "import flashinfer before the library that replaces it, or accept its version",
        )
    else:
        record = records.overruled(
            finding,
            Verdict.FAILED,
            f"{type(error).__name__}: {error}",
            "report it with the traceback in shim.status(); "
            f"FLASHINFER_SHIM_PATCHES=-{finding.patch.name} leaves it out",
            "".join(traceback.format_exception(error)),
        )
    _process.ledger.enter(record.patch, _as_it_is, record)
    return record


def _tell(standing_aside: Iterable[Record]) -> None:
    """One line for all patches that the same reason stops. In mode ``require`` raise."""
    groups = records.grouped(standing_aside, lambda record: (str(record.verdict), record.reason))
    for (verdict, reason), group in groups:
        actions = {record.action for record in group}
        action = actions.pop() if len(actions) == 1 else "shim.status() says what to do about each"
        line = f"FlashInfer is left as it is ({records.names(group)} {verdict}): {reason}; {action}"
        if _process.settings is not None and _process.settings.mode == "require":
            raise ShimError(f"FLASHINFER_SHIM=require: {line}")
        # Of one reason once: what comes in its way may come in the way of each module.
        announce.warn(line, about=f"{verdict} {reason}")
