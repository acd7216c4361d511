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
    op = OPS[site.patch]
    options: dict[str, Any] = {
        "release": site.release,
        "preload": site.settings.preload,
        "at_once": not site.released,
    }
    if op.owner:
        return build_method(op, getattr(site.module, op.owner), site.function, **options)
    return build_op(op, site.function, **options)
