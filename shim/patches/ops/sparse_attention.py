"""Attention over chosen blocks or tokens, and what scores and chooses them."""

from __future__ import annotations

from ...opaque.declare import Op, Uncovered

OPS: tuple[Op, ...] = ()

UNCOVERED: tuple[Uncovered, ...] = ()
