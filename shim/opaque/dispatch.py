"""The function that takes the original's place: the op where somebody watches, the original else.

Somebody watches when Dynamo is tracing, or when a torch dispatch mode is active: a fake mode,
make_fx, non-strict export, AOTAutograd. Nobody does in plain eager code, which then pays for one
test and one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload

from .carry import Carrier
from .identity import take_over
from .schema import Schema


def dispatching(
    original: Callable[..., Any],
    op: OpOverload,
    schema: Schema,
    eager: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """A plain function with the identity of ``original`` that calls ``op`` where it must.

    Args:
        original: the upstream function.
        op: takes the same arguments as ``original``, carried ones as text.
        schema: of ``op``.
        eager: called instead of ``original`` where nobody watches.
    """
    traced = _encoding(op, schema) if schema.carriers else op
    untraced = original if eager is None else eager
    is_dynamo_compiling = torch.compiler.is_dynamo_compiling
    active_modes = torch._C._len_torch_dispatch_stack

    def replacement(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or active_modes():
            return traced(*args, **kwargs)
        return untraced(*args, **kwargs)

    return take_over(replacement, original)


def _encoding(op: OpOverload, schema: Schema) -> Callable[..., Any]:
    """``op`` behind the carriers. Traced by Dynamo, so plain Python throughout."""
    places: Mapping[int, Carrier] = {
        schema.names.index(name): carrier for name, carrier in schema.carriers.items()
    }
    by_name = tuple(schema.carriers.items())

    def traced(*args: Any, **kwargs: Any) -> Any:
        positional = tuple(
            places[i].encode(value) if i in places else value for i, value in enumerate(args)
        )
        named = dict(kwargs)
        for name, carrier in by_name:
            if name in named:
                named[name] = carrier.encode(named[name])
        return op(*positional, **named)

    return traced
