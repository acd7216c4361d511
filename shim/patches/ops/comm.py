"""Collectives between cards, and what is fused with them."""

from __future__ import annotations

from ...opaque.declare import Op, Uncovered

OPS: tuple[Op, ...] = ()

UNCOVERED: tuple[Uncovered, ...] = ()
