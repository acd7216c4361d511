"""One upstream function as an op: the replacement built from its declaration."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

import torch

from . import registry, shadow
from .capture import Kernels
from .declare import Op
from .dispatch import dispatching, encoding, with_results
from .schema import Schema, from_signature

#: An attribute that upstream's decorator of checks, ``backend_requirement``, gives a function.
_MARK_OF_CHECKS = "is_backend_supported"


def build(
    op: Op,
    function: Callable[..., Any],
    *,
    release: str,
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
        preload: whether asking for the fake loads kernel modules on a machine with a GPU.
        fake: takes the function's arguments by keyword; without it the declared one answers, or
            the function in shadow, or nothing where it returns nothing.
        kernels: what ``fake`` would load; without it the shadow tells.
        eager: runs instead of ``function``.

    Raises:
        Inexpressible: the function has a parameter that cannot travel.
        RuntimeError: another copy of us has defined the op.
    """
    signature = _signature(function)
    tag = registry.Tag(release, _set_variables(op.variables))
    kernels = Kernels(op.name, preload=preload) if kernels is None else kernels
    run = function if eager is None else eager

    def run_guarded(**arguments: Any) -> Any:
        kernels.before_run(arguments)
        result = run(**arguments)
        kernels.after_run(arguments)
        return result

    answer = fake or _answer(op, function, kernels)
    out = tuple(name for name in op.out if name in signature.parameters)
    total = op.returns.count("Tensor")

    def define(name: str, schema: Schema, body: Callable[[Callable[..., Any]], Any]) -> Any:
        defined = registry.Body(schema, body(run_guarded), body(answer))
        return encoding(registry.define(name, tag, defined), schema)

    functional = from_signature(
        signature, returns=op.returns, mutates=op.mutates, without=out, annotations=op.annotations
    )
    complete = functools.partial(_complete, outs=out, total=total)
    traced = define(op.name, functional, complete if op.results else _as_it_is)
    if not (out or op.results):
        return dispatching(function, traced, eager)
    mutating = traced
    if out:
        writing = from_signature(
            signature,
            returns="()" if total == 1 else op.returns,
            mutates=(*op.mutates, *out),
            required=out if total == 1 else (),
            annotations=op.annotations,
        )
        mutating = define(f"{op.name}_out", writing, _silent if total == 1 else complete)
    names = functional.names[: functional.positional]
    count = op.results or (lambda arguments: total)
    return dispatching(function, with_results(traced, mutating, names, out, count), eager)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """The function's, and the keyword that upstream's checks of arguments take beside it."""
    signature = inspect.signature(function, eval_str=True)
    if not hasattr(function, _MARK_OF_CHECKS):
        return signature
    skip = inspect.Parameter(
        "skip_check", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool
    )
    return signature.replace(parameters=[*signature.parameters.values(), skip])


def _answer(op: Op, function: Callable[..., Any], kernels: Kernels) -> Callable[..., Any]:
    """The fake that the declaration asks for; it also tells what the call would load."""

    def in_shadow(**arguments: Any) -> Any:
        result, loaded = shadow.run(function, arguments)
        kernels.will_load(loaded)
        return result

    def by_rule(**arguments: Any) -> Any:
        # What a call would load is of interest where it can be loaded.
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            with contextlib.suppress(Exception):  # the real call says it better
                kernels.will_load(shadow.loads(function, arguments))
        return None if op.fake is None else op.fake(**arguments)

    return by_rule if op.fake or op.returns == "()" else in_shadow


def _set_variables(beginnings: tuple[str, ...]) -> str:
    """The environment variables that choose shapes, as they stand now.

    They belong to the op's name: a graph that Inductor kept was traced under one setting of them.
    """
    names = sorted(name for name in os.environ if beginnings and name.startswith(beginnings))
    return " ".join(f"{name}={os.environ[name]}" for name in names)


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _silent(function: Callable[..., Any]) -> Callable[..., None]:
    """The function without its result, which would be one of its arguments."""

    def silent(**arguments: Any) -> None:
        function(**arguments)

    return silent


def _complete(
    function: Callable[..., Any], *, outs: tuple[str, ...], total: int
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The function with always ``total`` results, none of them an argument.

    An empty tensor stands for what a call does not return, or was given.
    """

    def complete(**arguments: Any) -> tuple[torch.Tensor, ...]:
        returned = function(**arguments)
        results = (returned,) if isinstance(returned, torch.Tensor) else tuple(returned)
        given = {i for i, name in enumerate(outs) if arguments.get(name) is not None}
        return tuple(
            results[i]
            if i < len(results) and i not in given
            else torch.empty(0, device=results[0].device)
            for i in range(total)
        )

    return complete
