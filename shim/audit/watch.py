"""A replacement that notes who calls it, and then does what the replacement does."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from ..opaque.identity import take_over
from . import stack
from .recorder import harmless, note


def watch(patch: str, replacement: Callable[..., Any]) -> Callable[..., Any]:
    """``replacement``, with its calls noted under the name ``patch``.

    A call from FlashInfer's own code within another call that is noted is not.
    """
    is_dynamo_compiling = torch.compiler.is_dynamo_compiling
    note_trace = _at_trace_time(functools.partial(_note_trace, patch))

    def watched(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            note_trace()
            return replacement(*args, **kwargs)
        if getattr(_thread, "calling", False):
            return replacement(*args, **kwargs)
        _note_call(patch)
        _thread.calling = True
        try:
            return replacement(*args, **kwargs)
        finally:
            _thread.calling = False

    # As for replacements: Dynamo counts recompilations by code object.
    watched.__code__ = watched.__code__.replace(co_name=replacement.__name__)
    return take_over(watched, replacement)


_thread = threading.local()


def _at_trace_time(call: Callable[[], None]) -> Callable[[], None]:
    """``call`` as something that Dynamo calls for real while it traces, and does not trace."""

    def constant() -> None:
        call()

    constant._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return constant


def _note_trace(patch: str) -> None:
    with harmless():
        origin, compilation = stack.of_trace()
        note(patch, origin, once=compilation)


def _note_call(patch: str) -> None:
    with harmless():
        modes = torch._C._len_torch_dispatch_stack()
        origin = stack.of_call(sys._getframe(2), stack.MODE if modes else stack.EAGER)
        if origin is not None:
            note(patch, origin)
