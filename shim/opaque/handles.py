"""Objects that are themselves and no value, such as a generator: they travel as a number.

The number is the object's address, which Dynamo takes for a constant and guards: a call with
another object has a graph of its own. The object is kept from then on, as the graph is, so that
no other object can ever have its number.
"""

from __future__ import annotations

from typing import Any

import torch

_kept: dict[int, object] = {}


def number_of(thing: object) -> int:
    """The number that stands for ``thing``. Traced by Dynamo."""
    if torch.compiler.is_dynamo_compiling():
        from torch._dynamo.comptime import comptime

        # What is traced happens when the graph runs; this happens now.
        comptime(_keep_traced)
    else:
        _kept[id(thing)] = thing
    return id(thing)


def object_of(number: int) -> Any:
    """The object that a number stands for.

    Raises:
        RuntimeError: the number comes from another process, in an exported graph.
    """
    try:
        return _kept[number]
    except KeyError:
        raise RuntimeError(
            "this graph holds the address of an object, such as a torch.Generator, of the process "
            "that traced it: trace it again in this one"
        ) from None


def _keep_traced(context: Any) -> None:
    """Keep the real object behind the ``thing`` of the :func:`number_of` that Dynamo traces."""
    thing = context.get_local("thing")._i_will_not_complain_if_bc_breaks_VariableTracker().value
    _kept[id(thing)] = thing
