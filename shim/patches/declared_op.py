"""Builds the replacement of a function that is an op by declaration alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..opaque.dispatch import dispatching
from ..opaque.later import promised
from . import Site
from .engine import when_met


def build(site: Site) -> Callable[..., Any]:
    """The replacement: the original in eager code, the op where somebody watches."""

    def traced() -> Callable[..., Any]:
        from ..opaque import method, op
        from .ops import OPS

        declared = OPS[site.patch]
        release, preload = site.release, site.settings.preload
        if declared.owner:
            kind = getattr(site.module, declared.owner)
            return method.traced(declared, kind, site.function, release=release, preload=preload)
        return op.traced(declared, site.function, release=release, preload=preload)

    later = promised(site.patch, when_met(site, traced), at_once=not site.released)
    return dispatching(site.function, later)
