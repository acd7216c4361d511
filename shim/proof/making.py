"""Makes the tensors of an op's example: on a device, or fake ones where there is none."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..opaque.declare import MakeTensor

#: As many numbers are drawn for one tensor at most; a larger one, a whole weight, repeats them.
_DRAWN = 1 << 20


def on(device: str, seed: int = 0) -> MakeTensor:
    """Tensors on ``device``; what no values are given for is drawn, the same for the same seed."""
    generator = torch.Generator(device="cpu").manual_seed(seed)

    def make(
        *size: int, dtype: str = "bfloat16", values: Sequence[float] | str | None = None
    ) -> torch.Tensor:
        kind: torch.dtype = getattr(torch, dtype)
        if values == "range":
            return torch.arange(size[0], dtype=kind).expand(size).contiguous().to(device)
        if values == "probabilities":
            return torch.rand(size, generator=generator).softmax(-1).to(kind).to(device)
        if values is not None:
            return torch.tensor(values, dtype=kind, device=device).reshape(size)
        if not kind.is_floating_point:
            return torch.zeros(size, dtype=kind, device=device)
        count = math.prod(size)
        drawn = torch.randn(min(count, _DRAWN), generator=generator).to(kind).to(device)
        return drawn.repeat(-(-count // max(len(drawn), 1)))[:count].reshape(size)

    return make


def arguments_of(
    function: Callable[..., Any], arguments: Mapping[str, Any], also: Mapping[str, Any]
) -> dict[str, Any]:
    """An example's arguments, and those in ``also`` for which this release has a parameter."""
    parameters = inspect.signature(function).parameters if also else ()
    return {**arguments, **{name: also[name] for name in also if name in parameters}}


def fake(device: str = "cuda") -> MakeTensor:
    """Tensors without data, within a fake mode."""

    def make(*size: int, dtype: str = "bfloat16", values: object = None) -> torch.Tensor:
        return torch.empty(*size, dtype=getattr(torch, dtype), device=device)

    return make
