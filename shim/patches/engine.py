"""What a compiler needs of us, loaded when one first meets an op: most processes need none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .. import announce
from ..opaque.later import Load
from ..whole import Changed, one_version
from . import Site

_PARTS = ("opaque.method", "opaque.op", "opaque.symbolic", "patches.fp4_op", "patches.ops")

#: By patch, why a compiler that met it was given no op. The ledger was written before.
stood_aside: dict[str, str] = {}


def when_met(site: Site, traced: Callable[[], Callable[..., Any]]) -> Load:
    """What loads the whole engine, and gives ``traced``.

    Where the package has been removed or replaced meanwhile, it is the upstream function that the
    compiler then traces, as without us; mode ``require`` raises instead.

    Args:
        site: where the op is made.
        traced: defines it, and gives what a compiler is to trace. Finds everything loaded.
    """

    def load() -> Callable[[], Callable[..., Any]]:
        try:
            with one_version(*_PARTS):
                # All at once, so that no part of it is wanted later on.
                from ..opaque import method, op, symbolic  # noqa: F401
                from . import fp4_op, ops  # noqa: F401

                site.traits()
        except Changed as fault:
            stood_aside[site.patch] = str(fault)
            if site.settings.mode == "require":
                raise
            announce.warn(f"{fault}; until then FlashInfer's own functions are what is compiled")
            return lambda: site.function
        if site.patch in ops.OPS:
            for module in ops.OPS[site.patch].modules:
                # What cannot be imported is told where it is needed; a release may not have it.
                with contextlib.suppress(Exception):
                    import_module(module)
        return traced

    return load
