"""Kernel modules and CUDA graph capture: nothing may be built or loaded while a stream records.

A build or a module load inside a capture poisons the stream (flashinfer #3172). So what an op
needs is loaded when the compiler first asks for its fake, and an op that still meets an unloaded
module under capture raises before it touches the stream.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
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
    """

    def __init__(self, op: str, *, preload: bool) -> None:
        self._op = op
        self._preload = preload
        self._known: list[Loaded] = []
        self._ran = False
        self._lock = threading.Lock()

    def will_load(self, loads: Iterable[Loaded]) -> None:
        """The op's fake was asked for and, made for real, its call makes these."""
        with self._lock:
            fresh = [load for load in loads if load not in self._known]
            self._known += fresh
        # A machine without a GPU, or a pretended one, has no context that is initialised.
        if self._preload and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            for load in fresh:
                self._load(load)

    def before_run(self, arguments: Mapping[str, Any]) -> None:
        """Raise RuntimeError if a stream is capturing and a module is known not to be loaded."""
        if self._ran or not any(_on_gpu(value) for value in arguments.values()):
            return
        if torch.cuda.is_current_stream_capturing() and not self._loaded():
            raise RuntimeError(
                f"{self._op} runs for the first time inside a CUDA graph capture, where its kernel "
                f"module can be neither built nor loaded; call {self._op} once on any small tensor "
                "before capturing"
            )

    def after_run(self, arguments: Mapping[str, Any]) -> None:
        """The op ran, so what it needs is loaded."""
        self._ran = self._ran or any(_on_gpu(value) for value in arguments.values())

    def _loaded(self) -> bool:
        return all(load.getter.cache_info().currsize for load in self._known)

    def _load(self, load: Loaded) -> None:
        # A fault is left to the real call, which says it better.
        try:
            with _disable_current_modes():
                load.getter(*load.args, **dict(load.kwargs))
        except Exception as fault:
            announce.info(f"{self._op}: its kernel module could not be loaded early: {fault}")


def _on_gpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda
