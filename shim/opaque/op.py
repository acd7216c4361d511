"""One upstream function as an op: the replacement built from its declaration."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import torch

from . import registry, shadow
from .capture import Kernels
from .declare import Op
from .dispatch import dispatching, encoding, with_out
from .schema import from_signature


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
        fake: takes the function's arguments by keyword; without it the function runs in shadow,
            or not at all where it returns nothing.
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

    def in_shadow(**arguments: Any) -> Any:
        result, loaded = shadow.run(function, arguments)
        kernels.will_load(loaded)
        return result

    def nothing(**arguments: Any) -> None:
        # There is nothing to allocate; what it would load is of interest where it can be loaded.
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            with contextlib.suppress(Exception):  # the real call says it better
                in_shadow(**arguments)

    answer = fake or (nothing if op.returns == "()" else in_shadow)
    out = tuple(name for name in op.out if name in signature.parameters)
    functional = from_signature(
        signature, returns=op.returns, mutates=op.mutates, without=out, tensors=op.tensors
    )
    traced = encoding(
        registry.define(op.name, tag, registry.Body(functional, run_guarded, answer)),
        functional,
    )
    if out:
        writing = from_signature(
            signature,
            returns="()",
            mutates=(*op.mutates, *out),
            required=out,
            tensors=op.tensors,
        )
        body = registry.Body(writing, _silent(run_guarded), _silent(answer))
        mutating = encoding(registry.define(f"{op.name}_out", tag, body), writing)
        traced = with_out(traced, mutating, functional.names[: functional.positional], out)
    return dispatching(function, traced, eager)


def _silent(function: Callable[..., Any]) -> Callable[..., None]:
    """The function without its result, which would be one of its arguments."""

    def silent(**arguments: Any) -> None:
        function(**arguments)

    return silent
