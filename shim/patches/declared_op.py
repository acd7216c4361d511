"""Builds the replacement of a function that is an op by declaration alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..opaque.op import build as build_op
from . import Site
from .ops import OPS


def build(site: Site) -> Callable[..., Any]:
    """The replacement: the original in eager code, the op where somebody watches."""
    return build_op(
        OPS[site.patch], site.function, release=site.release, preload=site.settings.preload
    )
