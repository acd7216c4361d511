"""Builds the replacement of a function that is an op by declaration alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..opaque.method import build as build_method
from ..opaque.op import build as build_op
from . import Site
from .ops import OPS


def build(site: Site) -> Callable[..., Any]:
    """The replacement: the original in eager code, the op where somebody watches."""
    op, release, preload = OPS[site.patch], site.release, site.settings.preload
    if op.owner:
        kind = getattr(site.module, op.owner)
        return build_method(op, kind, site.function, release=release, preload=preload)
    return build_op(op, site.function, release=release, preload=preload)
