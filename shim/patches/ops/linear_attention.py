"""Linear attention and state space models: gated delta rules, KDA, Mamba."""

from __future__ import annotations

from ...opaque.declare import Op, Uncovered

OPS: tuple[Op, ...] = ()

UNCOVERED: tuple[Uncovered, ...] = ()
