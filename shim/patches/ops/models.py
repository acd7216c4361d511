"""What is made for one model: DeepSeek, Kimi, MiniMax, Qwen."""

from __future__ import annotations

from ...opaque.declare import Op, Uncovered

OPS: tuple[Op, ...] = ()

UNCOVERED: tuple[Uncovered, ...] = ()
