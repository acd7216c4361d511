"""FlashInfer's loader and builder of modules, watched.

What breaks: nothing says that a module is built, or for how long requests have waited for it, nor
that one is about to be built or loaded inside a CUDA graph capture (flashinfer #3172). Every
release so far. Locks, flags, paths and files are upstream's: its own function runs within ours.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .. import watch
from ..opaque.identity import take_over
from . import Site


def build(site: Site) -> Callable[..., Any]:
    """The replacement: the original, watched."""
    watch.start(raising=site.settings.jit == "error", capturing=_capturing)
    _tell_of_the_first_capture()
    watched = _loading if site.patch == "jit_load" else _building
    return take_over(watched(site.function), site.function)


def _loading(original: Callable[..., Any]) -> Callable[..., Any]:
    def build_and_load(self: Any) -> Any:
        with watch.loading(self):
            return original(self)

    return build_and_load


def _building(original: Callable[..., Any]) -> Callable[..., Any]:
    def run_ninja(workdir: Path, ninja_file: Path, *args: Any, **kwargs: Any) -> None:
        with watch.building(ninja_file):
            original(workdir, ninja_file, *args, **kwargs)

    return run_ninja


def _capturing() -> bool:
    # Without a context that is initialised nothing is captured, and nothing may be asked.
    return bool(
        torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        and torch.cuda.is_current_stream_capturing()
    )


def withdraw() -> None:
    """Nothing is watched any more, and torch's function is its own. Idempotent."""
    watch.stop()
    _give_back()


_KIND: Any = torch.cuda.CUDAGraph
_BEGIN: Any = _KIND.capture_begin


def _tell_of_the_first_capture() -> None:
    """Call the process warm when it begins to capture: torch has no other way to be told of it."""
    if _KIND.capture_begin is _BEGIN:
        _KIND.capture_begin = _capture_begin


def _give_back() -> None:
    if _KIND.capture_begin is _capture_begin:
        _KIND.capture_begin = _BEGIN


def _capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
    _give_back()  # the first is all that counts
    watch.warm_since("a CUDA graph was captured")
    return _BEGIN(self, *args, **kwargs)
