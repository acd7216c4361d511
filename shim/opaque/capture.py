"""Kernel modules and CUDA graph capture: nothing may be built or loaded while a stream records.

A build or a module load inside a capture poisons the stream (flashinfer #3172). So a module is
loaded when the compiler first asks for the op's fake, and an op that still meets an unloaded
module under capture raises before it touches the stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .. import announce


class KernelModule:
    """The kernel module behind an op, one for each device architecture.

    Args:
        op: name of the op, for messages.
        load: builds and loads the module for a device; upstream's cached getter.
        loaded_any: whether that getter has ever returned a module.
        remedy: what a user can call to load it.
    """

    def __init__(
        self,
        op: str,
        load: Callable[[torch.device], object],
        loaded_any: Callable[[], bool],
        remedy: str,
    ) -> None:
        self._op = op
        self._load = load
        self._loaded_any = loaded_any
        self._remedy = remedy
        self._tried: set[torch.device] = set()
        self._lock = threading.Lock()

    def require_loaded(self, tensors: Iterable[Any]) -> None:
        """Raise RuntimeError if a stream is capturing and no module was loaded before."""
        if self._loaded_any() or not any(_on_gpu(tensor) for tensor in tensors):
            return
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"{self._op} runs for the first time inside a CUDA graph capture, where its kernel "
                f"module can be neither built nor loaded; {self._remedy} before capturing"
            )

    def preload(self, device: torch.device) -> None:
        """Load the module now if this machine has the device. A fault is left to the real call."""
        if device.type != "cuda" or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return
        with self._lock:
            if device in self._tried:
                return
            self._tried.add(device)
        try:
            with _disable_current_modes():
                self._load(device)
        except Exception as fault:
            announce.info(f"{self._op}: its kernel module could not be loaded early: {fault}")


def _on_gpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda
