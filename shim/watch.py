"""What FlashInfer builds and loads in this process, and what of it comes too late.

Imports neither torch nor FlashInfer: ``shim.warm()`` may be called anywhere. Nothing here is ever
the reason that a module is not loaded, but for ``FLASHINFER_SHIM_JIT=error`` inside a capture.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import announce
from .progress import progress

#: What is done about a module that comes too late.
_AHEAD = (
    "build it ahead with `flashinfer-shim prewarm`, and call what needs it once while warming up"
)


class _Process:
    """What this process has been told."""

    def __init__(self) -> None:
        self.raising = False
        self.capturing: Callable[[], bool] = bool
        #: Why it counts as warm, empty while it does not.
        self.warm = ""
        #: Modules by name; one that was merely built is not among them.
        self.loaded: set[str] = set()


@dataclass
class _Event:
    """One module: what was there before, and what became of it."""

    name: str
    library: Path | None
    prebuilt: bool
    before: int | None
    loads: bool = False
    #: As the build found it, which another process may have changed since ``before``.
    at_build: int | None = None
    built: bool = False
    by_ninja: bool = False


_process = _Process()
_current = threading.local()


def warm() -> None:
    """Say that this process has warmed up: whatever FlashInfer builds or loads from now on is late.

    With ``FLASHINFER_SHIM_JIT=warn`` or ``error`` each such module is a warning. The first CUDA
    graph capture says it as well. Idempotent; does nothing where the variable is ``off``.
    """
    warm_since("shim.warm() was called")


def warm_since(reason: str) -> None:
    """:func:`warm`, for another reason, in words that end a sentence."""
    _process.warm = _process.warm or reason


def start(*, raising: bool, capturing: Callable[[], bool]) -> None:
    """FlashInfer's functions are watched from now on.

    Args:
        raising: whether a module that is first wanted inside a capture is an error.
        capturing: tells whether a stream is capturing.
    """
    _process.raising, _process.capturing = raising, capturing


def stop() -> None:
    """They are not any more. A reference to ours that somebody has kept raises nothing."""
    _process.raising, _process.capturing = False, bool


@contextmanager
def loading(spec: Any) -> Iterator[None]:
    """Upstream loads the module of a ``JitSpec`` within it, and builds it before if need be.

    Raises:
        RuntimeError: a stream is capturing, and that is to be an error.
    """
    event = _seen(spec)
    event.loads = True
    with _watched(event), progress(f"{event.name} is being built or loaded"):
        yield


@contextmanager
def building(ninja_file: Path) -> Iterator[None]:
    """Ninja runs within it, on its own or because a module is loaded.

    Raises:
        RuntimeError: as :func:`loading` does.
    """
    alone = _of_ninja(Path(ninja_file))
    outer: _Event | None = getattr(_current, "event", None)
    if outer is None:
        with _watched(alone), progress(f"{alone.name} is being built"), _ninja(alone):
            yield
        return
    # What was installed is for other cards, so it is built after all; or nobody knows where it is.
    if outer.prebuilt or outer.library is None:
        outer.library, outer.before, outer.prebuilt = alone.library, alone.before, False
    with _ninja(outer):
        yield


@contextmanager
def _ninja(event: _Event) -> Iterator[None]:
    event.by_ninja = True
    event.at_build = _stamp(event.library)
    yield
    event.built = event.library is None or _stamp(event.library) != event.at_build


@contextmanager
def _watched(event: _Event) -> Iterator[None]:
    """Say what became of ``event`` when it ends; refuse it inside a capture if so wanted."""
    in_capture = _process.capturing()
    # Some getters upstream keep nothing and come here at each call: their module is there already.
    if in_capture and _process.raising and event.name not in _process.loaded:
        raise RuntimeError(
            f"FLASHINFER_SHIM_JIT=error: FlashInfer's module {event.name} is wanted inside a CUDA "
            "graph capture, where it can be neither built nor loaded; it was expected to be loaded "
            "before: call what needs it once before capturing; `flashinfer-shim prewarm` builds it "
            "ahead of that"
        )
    outer, _current.event = getattr(_current, "event", None), event
    begun = time.monotonic()
    fault = ""
    try:
        yield
    except BaseException as error:
        fault = type(error).__name__
        raise
    finally:
        _current.event = outer
        _tell(event, time.monotonic() - begun, in_capture=in_capture, fault=fault)


def _tell(event: _Event, seconds: float, *, in_capture: bool, fault: str) -> None:
    again = event.name in _process.loaded
    if event.loads and not fault:
        _process.loaded.add(event.name)
    done, why = ("failed", fault) if fault else _done(event)
    use = "used before in this process" if again else "first use in this process"
    line = f"FlashInfer's module {event.name}: {done} in {seconds:.1f} s ({why}; {use})"
    if again and done == "loaded":  # nobody has waited for it
        announce.info(line)
    elif in_capture:
        announce.event(f"{line}, inside a CUDA graph capture; {_AHEAD}")
    elif _process.warm:
        announce.event(f"{line}, after {_process.warm}; {_AHEAD}")
    else:
        announce.info(line)


def _done(event: _Event) -> tuple[str, str]:
    """What was done, and why."""
    if event.prebuilt:
        return "loaded", "it was installed"
    if event.by_ninja and event.library is None:
        return "built", "several modules at once"
    built = event.built or (not event.by_ninja and _stamp(event.library) != event.before)
    if built and event.before is None:
        return "built", "neither an installed package nor the cache had it"
    if built:
        return "built again", "its sources or flags are not those of what the cache had"
    if event.before is not None:
        return "loaded", "the cache had it"
    if event.by_ninja:
        return "loaded", "another process has built it meanwhile"
    return "compiled", "the cache is not used"


def _seen(spec: Any) -> _Event:
    """What there is of a JitSpec's module. Upstream's attributes, whatever they raise."""
    try:
        library = Path(spec.get_library_path())
        prebuilt = bool(getattr(spec, "is_aot", False))
        return _Event(str(spec.name), library, prebuilt, _stamp(library))
    except Exception:
        return _Event(str(getattr(spec, "name", spec)), None, False, None)


def _of_ninja(file: Path) -> _Event:
    """What a ninja file builds: one module, or those of many at once."""
    if file.name != "build.ninja":
        return _Event(file.stem, None, False, None)
    library = file.parent / f"{file.parent.name}.so"
    return _Event(file.parent.name, library, False, _stamp(library))


def _stamp(library: Path | None) -> int | None:
    """When a file was written, None where there is none."""
    try:
        return None if library is None else os.stat(library).st_mtime_ns
    except OSError:
        return None
