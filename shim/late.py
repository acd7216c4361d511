"""References to an original that no namespace holds: in a closure, a class, a functools.partial.

They cannot be rebound, so Dynamo is told what to trace when it meets the original itself. Only
late activation needs this, since an early one leaves no such references.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from . import announce
from .apply import Applied

#: id of the original -> switch of its redirection; torch keeps redirections for ever, so they
#: are switched off rather than removed.
_switches: dict[int, _Switch] = {}


class _Switch:
    def __init__(self, applied: Applied) -> None:
        self.original = applied.original  # keeps the id taken
        self.replacement = applied.replacement
        self.on = True


def redirect(applied: Applied) -> None:
    """Let Dynamo trace the replacement where it meets the original."""
    known = _switches.get(id(applied.original))
    if known is not None:
        known.replacement, known.on = applied.replacement, True
        return
    original = applied.original
    if not isinstance(original, types.FunctionType):
        return  # Dynamo looks through a functools.cache object and cannot be redirected there.
    switch = _Switch(applied)
    plain = types.FunctionType(
        original.__code__,
        original.__globals__,
        original.__name__,
        original.__defaults__,
        original.__closure__,
    )
    plain.__kwdefaults__ = original.__kwdefaults__

    def substitute(*args: Any, **kwargs: Any) -> Any:
        if switch.on:
            return switch.replacement(*args, **kwargs)
        return plain(*args, **kwargs)

    try:
        torch.compiler.substitute_in_graph(original, skip_signature_check=True)(substitute)
    except Exception as fault:
        announce.info(f"{applied.finding.target}: hidden references stay as they are: {fault}")
        return
    _switches[id(original)] = switch


def withdraw(applied: Applied) -> None:
    """Let Dynamo trace the original again."""
    switch = _switches.get(id(applied.original))
    if switch is not None:
        switch.on = False
