"""Kernel modules and CUDA graph capture: nothing may be built or loaded while a stream records.

A build or a module load inside a capture poisons the stream (flashinfer #3172). So what an op
needs is loaded when the compiler first asks for its fake, and an op that still meets an unloaded
module under capture raises before it touches the stream.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .. import announce
from .launchers import Loaded


class Kernels:
    """The kernel modules behind one op.

    Args:
        op: its name, for messages.
        preload: load them as soon as they are known, on a machine with a GPU.
        needs: what a call with these arguments loads, where that can be told from them; without
            it, what its fakes have named so far.
    """

    def __init__(
        self,
        op: str,
        *,
        preload: bool,
        needs: Callable[[Mapping[str, Any]], Iterable[Loaded]] | None = None,
    ) -> None:
        self._op = op
        self._preload = preload
        self._needs = needs
        self._known: list[Loaded] = []
        self._done: list[Loaded] = []
        self._lock = threading.Lock()

    def will_load(self, loads: Iterable[Loaded]) -> None:
        """The op's fake was asked for and, made for real, its call makes these."""
        with self._lock:
            fresh = [load for load in loads if load not in self._known]
            self._known += fresh
        # A machine without a GPU, or a pretended one, has no context that is initialised.
        if not self._preload or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return
        if not torch.cuda.is_current_stream_capturing():
            for load in fresh:
                self._load(load)

    def before_run(self, arguments: Mapping[str, Any]) -> bool:
        """Whether a stream is capturing; if a module is not known to be loaded, RuntimeError."""
        if not any(_on_gpu(value) for value in arguments.values()):
            return False
        capturing = torch.cuda.is_current_stream_capturing()
        if capturing and not all(map(self._is_loaded, self._wanted(arguments))):
            raise RuntimeError(
                f"{self._op} runs for the first time inside a CUDA graph capture, where its kernel "
                f"module can be neither built nor loaded; call {self._op} once on any small tensor "
                "before capturing"
            )
        return capturing

    def after_run(self, arguments: Mapping[str, Any]) -> None:
        """The op ran, so what it needs is loaded."""
        if any(_on_gpu(value) for value in arguments.values()):
            self._note(self._wanted(arguments))

    def _wanted(self, arguments: Mapping[str, Any]) -> list[Loaded]:
        return self._known if self._needs is None else list(self._needs(arguments))

    def _note(self, loads: Iterable[Loaded]) -> None:
        # After every run of the op: nothing is new but after the first, and the lock is not taken.
        fresh = [load for load in loads if load not in self._done]
        if fresh:
            with self._lock:
                self._done += [load for load in fresh if load not in self._done]

    def _is_loaded(self, load: Loaded) -> bool:
        # What eager code loaded shows in upstream's cache alone, and only as a number. One module
        # stands for all where the cards are all alike.
        return load in self._done or (load.getter.cache_info().currsize and _cards_alike())

    def _load(self, load: Loaded) -> None:
        # A fault is left to the real call, which says it better.
        try:
            with _disable_current_modes():
                load.getter(*load.args, **dict(load.kwargs))
            self._note([load])
        except Exception as fault:
            announce.info(f"{self._op}: its kernel module could not be loaded early: {fault}")


def untuned(run: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Run an op inside a capture, where nothing can be timed, even within ``autotune()``.

    The tactic that was chosen before, if any, is the one that is captured.
    """
    module = sys.modules.get("flashinfer.autotuner")
    tuner = module.AutoTuner.get() if module else None
    if tuner is None or not tuner.is_tuning_mode:
        return run(**arguments)
    tuner.is_tuning_mode = False
    try:
        return run(**arguments)
    finally:
        tuner.is_tuning_mode = True


def _cards_alike() -> bool:
    cards = range(torch.cuda.device_count())
    return len({torch.cuda.get_device_capability(card) for card in cards}) == 1


def _on_gpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda
