"""Attention by the kernels of one backend each: CuTe DSL, tile schedulers, Cake, cuDNN."""

from __future__ import annotations

from ...opaque.declare import Op, Uncovered

OPS: tuple[Op, ...] = ()

UNCOVERED: tuple[Uncovered, ...] = ()
