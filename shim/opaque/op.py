"""One upstream function as an op: what is declared of it, and the replacement built from that."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import registry, shadow
from .capture import Kernels
from .dispatch import dispatching, encoding, with_out
from .schema import from_signature


@dataclass(frozen=True)
class Op:
    """What the engine must be told of a function; the rest it reads from the function.

    Attributes:
        name: the function's, and the op's.
        returns: as the schema language writes it; ``()`` where the function returns nothing.
        mutates: parameters whose tensors are always written into.
        out: optional outputs, in the order in which the function returns them; where the caller
            gives them they are written into and returned.
    """

    name: str
    returns: str = "Tensor"
    mutates: tuple[str, ...] = ()
    out: tuple[str, ...] = ()


def build(
    op: Op,
    function: Callable[..., Any],
    *,
    release: str,
    variant: str = "",
    preload: bool,
    fake: Callable[..., Any] | None = None,
    kernels: Kernels | None = None,
    eager: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Define the op, or both where it has outputs, and build the function that dispatches to it.

    Args:
        op: the declaration.
        function: upstream's.
        release: of FlashInfer; part of the op's name.
        variant: whatever else the function's shapes depend on in this process; likewise.
        preload: whether asking for the fake loads kernel modules on a machine with a GPU.
        fake: takes the function's arguments by keyword; without it the function runs in shadow.
        kernels: what ``fake`` would load; without it the shadow tells.
        eager: runs instead of ``function``.

    Raises:
        Inexpressible: the function has a parameter that cannot travel.
        RuntimeError: another copy of us has defined the op.
    """
    signature = inspect.signature(function, eval_str=True)
    tag = registry.Tag(release, variant)
    kernels = Kernels(op.name, preload=preload) if kernels is None else kernels
    run = function if eager is None else eager

    def run_guarded(**arguments: Any) -> Any:
        kernels.before_run(arguments)
        result = run(**arguments)
        kernels.after_run(arguments)
        return result

    def run_shadow(**arguments: Any) -> Any:
        result, loaded = shadow.run(function, arguments)
        kernels.will_load(loaded)
        return result

    answer = run_shadow if fake is None else fake
    functional = from_signature(signature, returns=op.returns, mutates=op.mutates, without=op.out)
    traced = encoding(
        registry.define(op.name, tag, registry.Body(functional, run_guarded, answer)),
        functional,
    )
    if op.out:
        writing = from_signature(
            signature, returns="()", mutates=(*op.mutates, *op.out), required=op.out
        )
        body = registry.Body(writing, _silent(run_guarded), _silent(answer))
        mutating = encoding(registry.define(f"{op.name}_out", tag, body), writing)
        traced = with_out(traced, mutating, functional.names[: functional.positional], op.out)
    return dispatching(function, traced, eager)


def _silent(function: Callable[..., Any]) -> Callable[..., None]:
    """The function without its result, which would be one of its arguments."""

    def silent(**arguments: Any) -> None:
        function(**arguments)

    return silent
