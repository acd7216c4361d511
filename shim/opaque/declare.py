"""What the engine must be told of a function. Data alone, without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Op:
    """One function as an op; the rest the engine reads from the function itself.

    Attributes:
        name: the function's, and the op's.
        returns: as the schema language writes it; ``()`` where the function returns nothing.
        mutates: parameters whose tensors are always written into.
        out: optional outputs, in the order in which the function returns them; where the caller
            gives them they are written into and returned.
        tensors: parameters that are tensors though upstream does not annotate them.
    """

    name: str
    returns: str = "Tensor"
    mutates: tuple[str, ...] = ()
    out: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
