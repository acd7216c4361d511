"""Kernel modules and CUDA graph capture: nothing may be built or loaded while a stream records.

A build or a module load inside a capture poisons the stream (flashinfer #3172). So what an op
needs is loaded when the compiler first asks for its fake, and a call under capture that would load
something all the same raises before it touches the stream.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import gc
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .. import announce
from .launchers import Loaded

#: What is equal, in a key of a cache, to what the real call has there. Of other things (a class of
#: a package that launches kernels, an object) the shadow has its own.
_VALUES = (str, bytes, int, float, type(None), torch.dtype, torch.device, enum.Enum)

#: Attributes of upstream's AutoTuner that hold what was tuned, in one release or another.
_RECORDS = ("profiling_cache", "_file_configs", "_managed_stores")


def capturing() -> bool:
    """Whether the current stream records a CUDA graph."""
    # What has no context has no stream to ask of.
    return (
        torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        and torch.cuda.is_current_stream_capturing()
    )


class Kernels:
    """The kernel modules behind one op.

    Args:
        op: its name, for messages.
        preload: load them as soon as they are known, on a machine with a GPU.
        needs: what a call with these arguments loads, where that can be told.
    """

    def __init__(
        self,
        op: str,
        *,
        preload: bool,
        needs: Callable[[Mapping[str, Any]], Iterable[Loaded]],
    ) -> None:
        self._op = op
        self._preload = preload
        self._needs = needs
        self._tried: dict[str, object] = {}

    def will_load(self, loads: Iterable[Loaded]) -> None:
        """The op's fake was asked for and, made for real, its call makes these."""
        # A machine without a GPU, or a pretended one, has no context that is initialised.
        if not self._preload or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return
        if not torch.cuda.is_current_stream_capturing():
            for load in loads:
                self._load(load)

    def before_run(self, arguments: Mapping[str, Any]) -> bool:
        """Whether a stream is capturing; RuntimeError if this very call would load a module."""
        if not capturing() or not any(map(_on_gpu, arguments.values())):
            return False
        for load in self._needs(arguments):
            if not (is_loaded(load) or (load.tuned and _has_records())):
                raise RuntimeError(
                    f"inside a CUDA graph capture, where a kernel module can be neither built nor "
                    f"loaded, this call of {self._op} runs for the first time and wants one "
                    f"({load}): call {self._op} once with such arguments before capturing"
                )
        return True

    def _load(self, load: Loaded) -> None:
        # Without a lock, which a fork might leave held.
        this = object()
        if self._tried.setdefault(str(load), this) is not this:
            return
        # A fault is left to the real call, which says it better.
        try:
            with _disable_current_modes():
                load.getter(*load.args, **dict(load.kwargs))
        except Exception as fault:
            announce.info(f"{self._op}: its kernel module could not be loaded early: {fault}")


def is_loaded(load: Loaded) -> bool:
    """Whether upstream's cache holds what this call gives. The call itself would load it.

    Where its arguments are not all values, whatever the cache holds counts for it.
    """
    arguments = (*load.args, *dict(load.kwargs).values())
    cached = _cache_of(load.getter)
    if cached is None or not all(map(_is_value, arguments)):
        return bool(load.getter.cache_info().currsize)
    # A cache of the same kind tells the key.
    typed = load.getter.cache_parameters()["typed"]
    alike = functools.lru_cache(None, typed)(lambda *args, **kwargs: None)
    alike(*load.args, **dict(load.kwargs))
    return set(_cache_of(alike) or ()) <= cached.keys()


def _cache_of(getter: Any) -> dict[Any, Any] | None:
    """What a cached function keeps, by key. It shows that to the garbage collector alone."""
    found = [
        held
        for held in gc.get_referents(getter)
        if type(held) is dict and held is not getattr(getter, "__dict__", None)
    ]
    known = isinstance(getter, functools._lru_cache_wrapper) and len(found) == 1
    return found[0] if known else None


def _is_value(argument: Any) -> bool:
    if isinstance(argument, (tuple, frozenset)):
        return all(map(_is_value, argument))
    return isinstance(argument, _VALUES) or dataclasses.is_dataclass(argument)


def untuned(run: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Run an op inside a capture, where nothing can be timed, even within ``autotune()``.

    The tactic that was chosen before, if any, is the one that is captured.
    """
    tuner = _tuner()
    if tuner is None or not tuner.is_tuning_mode:
        return run(**arguments)
    tuner.is_tuning_mode = False
    try:
        return run(**arguments)
    finally:
        tuner.is_tuning_mode = True


def _tuner() -> Any | None:
    """Upstream's AutoTuner, if it is there already."""
    module = sys.modules.get("flashinfer.autotuner")
    return module.AutoTuner.get() if module else None


def _has_records() -> bool:
    """Whether the tuner may choose another runner than the one that it falls back to."""
    tuner = _tuner()
    return os.environ.get("FLASHINFER_AUTOTUNER_LOAD_FROM_FILE") == "1" or any(
        getattr(tuner, name, None) for name in _RECORDS
    )


def _on_gpu(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_on_gpu, value))
    return isinstance(value, torch.Tensor) and value.is_cuda
