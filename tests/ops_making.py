"""Variations of an op's example: the same call with other tensors. Runs in children.

A case is made in pytest's process (``ops_cases``) and travels as JSON; both sides, upstream's own
Python and our ops, make their tensors from it here, so they see the same call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from shim.opaque.declare import MakeTensor, Op
from shim.proof import making

Json = dict[str, Any]


class Maker:
    """Makes the tensors of examples, the same ones again for the same place, size and layout.

    For calls that write nothing: making tensors takes longer than running upstream's Python.
    """

    def __init__(self, make: MakeTensor) -> None:
        self._make = make
        self._made: dict[object, torch.Tensor] = {}

    def example(self, op: Op, case: Json) -> dict[str, Any]:
        """The arguments of the op's example as the case varies them.

        A case holds ``m``, the ``dtype`` that stands for bfloat16, the ``rank`` of tensors of m
        rows (``as it is``, ``batched``: two of them in front, or ``flat``: one row without its
        dimension), and the ``layouts`` of the tensors in the order in which the example makes
        them, over again where there are more of them. ``out`` is the layout of outputs that the
        caller gives (null: none), ``outs`` how many of them there are at most.
        """
        m, layouts = case["m"], itertools.cycle(case["layouts"])
        places = itertools.count()

        def varied(
            *size: int, dtype: str = "bfloat16", values: Sequence[float] | str | None = None
        ) -> torch.Tensor:
            if values in (None, "probabilities") and len(size) > 1 and size[0] == m:
                size = {"as it is": size, "batched": (2, *size), "flat": size[1:]}[case["rank"]]
            dtype = case["dtype"] if dtype == "bfloat16" else dtype
            layout = next(layouts)
            key = (next(places), m, size, dtype, layout)
            if key not in self._made:
                made = self._make(*size, dtype=dtype, values=values)
                self._made[key] = laid_out(made, layout, contents=values is not None)
            return self._made[key]

        return dict(op.example(varied, m))


def meaningless(
    *size: int, dtype: str = "bfloat16", values: Sequence[float] | str | None = None
) -> torch.Tensor:
    """A CPU tensor with the values that an example asks for, or whatever lies in the memory.

    No kernel will see it.
    """
    if values is None:
        return torch.empty(size, dtype=getattr(torch, dtype))
    made: torch.Tensor = making.on("cpu")(*size, dtype=dtype, values=values)
    return made


def laid_out(tensor: torch.Tensor, layout: str, *, contents: bool = False) -> torch.Tensor:
    """A tensor of the same size whose elements lie otherwise, with the same ``contents`` or none.

    A fake tensor has no contents, and no device that could be told to copy them.
    """
    if layout == "contiguous":
        return tensor  # no view of anything, as most tensors are
    stride, offset = LAYOUTS[layout](tuple(tensor.shape))
    reach = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, stride, strict=True))
    room = offset + (0 if 0 in tensor.shape else reach)
    base = torch.empty(room, dtype=tensor.dtype, device=tensor.device)
    result = base.as_strided(tensor.shape, stride, offset)
    is_fake = isinstance(tensor, torch._subclasses.FakeTensor)
    return result.copy_(tensor) if contents and not is_fake else result


def row_major(size: Sequence[int]) -> list[int]:
    """The strides of a contiguous tensor."""
    strides = [1]
    for length in reversed(size[1:]):
        strides.insert(0, strides[0] * max(length, 1))
    return strides[: len(size)]


def _sliced(size: Sequence[int]) -> tuple[list[int], int]:
    return (row_major([*size[:-1], size[-1] + 8]) if size else [], 0)


def _every_second_row(size: Sequence[int]) -> tuple[list[int], int]:
    strides = row_major(size)
    return [2 * step for step in strides[:1]] + strides[1:], 0


def _transposed(size: Sequence[int]) -> tuple[list[int], int]:
    if len(size) < 2:
        return row_major(size), 0
    strides = row_major([*size[:-2], size[-1], size[-2]])
    return [*strides[:-2], strides[-1], strides[-2]], 0


#: By name: from a size to strides and storage offset.
LAYOUTS: Mapping[str, Callable[[Sequence[int]], tuple[list[int], int]]] = {
    "behind others": lambda size: (row_major(size), 16),
    "columns of a wider one": _sliced,
    "every second row": _every_second_row,
    "every second element": lambda size: ([2 * step for step in row_major(size)], 0),
    "transposed": _transposed,
}


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in an argument or a result."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in tensors_of(item)]
    return []
