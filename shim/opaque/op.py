"""One upstream function as an op: the replacement built from its declaration."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from . import registry, shadow
from .capture import Kernels, untuned
from .declare import Count, Op
from .dispatch import dispatching, encoding, with_draws, with_results
from .identity import signature_of
from .schema import Schema, from_signature


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
    """Define the op, or both that it needs, and build the function that dispatches to it.

    Two are needed where it has outputs, or where a call may or may not draw random numbers.

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
    kernels = Kernels(op.name, preload=preload) if kernels is None else kernels
    signature = signature_of(function)
    body = Body(
        signature,
        function if eager is None else eager,
        fake or _seeing(op, signature, _answer(op, function, kernels)),
        kernels,
    )
    tag = registry.Tag(release, _set_variables(op.variables))
    return dispatching(function, define(op, body, tag), eager)


@dataclass(frozen=True)
class Body:
    """What an op is made of.

    Attributes:
        signature: its parameters, annotations evaluated.
        run: takes them by keyword.
        fake: likewise; the same results but for the data.
        kernels: what a call loads.
        captured: whether Inductor may put it into a CUDA graph of its own making.
    """

    signature: inspect.Signature
    run: Callable[..., Any]
    fake: Callable[..., Any]
    kernels: Kernels
    captured: bool = True


def define(op: Op, body: Body, tag: registry.Tag) -> Callable[..., Any]:
    """Define the op, or both that it needs; gives what a compiler is to trace.

    Raises:
        Inexpressible: a parameter cannot travel.
        RuntimeError: another copy of us has defined the op.
    """
    signature, kernels = body.signature, body.kernels

    def guarded(refusal: str) -> Callable[..., Any]:
        def run_guarded(**arguments: Any) -> Any:
            capturing = kernels.before_run(arguments)
            if capturing and refusal:
                raise RuntimeError(refusal)
            result = untuned(body.run, arguments) if capturing else body.run(**arguments)
            kernels.after_run(arguments)
            return result

        return run_guarded

    op_name = op.name.replace(".", "_")
    out = tuple(name for name in op.out if name is not None and name in signature.parameters)
    total = op.returns.count("Tensor")

    def register(
        name: str, schema: Schema, wrap: Callable[[Callable[..., Any]], Any], *, refusal: str = ""
    ) -> Callable[..., Any]:
        whole = registry.Body(
            schema,
            wrap(guarded(refusal)),
            wrap(body.fake),
            ordered=bool(refusal),
            captured=body.captured,
        )
        return encoding(registry.define(name, tag, whole), schema)

    if op.draws is not None:
        return _drawing(op, signature, register)
    functional = from_signature(
        signature, returns=op.returns, mutates=op.mutates, without=out, annotations=op.annotations
    )
    complete = functools.partial(_complete, outs=out, total=total)
    traced = register(op_name, functional, complete if op.results else _as_it_is)
    if not (out or op.results):
        return traced
    mutating = traced
    if out:
        writing = from_signature(
            signature,
            returns="()" if total == 1 else op.returns,
            mutates=(*op.mutates, *out),
            required=out if total == 1 else (),
            annotations=op.annotations,
        )
        mutating = register(f"{op_name}_out", writing, _silent if total == 1 else complete)
    names = functional.names[: functional.positional]
    return with_results(traced, mutating, names, out, _counting(op, signature, total))


def _drawing(
    op: Op, signature: inspect.Signature, register: Callable[..., Any]
) -> Callable[..., Any]:
    """The op whose calls all count, and a plain one for calls that are told where to begin."""
    schema = from_signature(signature, returns=op.returns, annotations=op.annotations)
    outs = tuple(name if name in signature.parameters else None for name in op.out)
    total = op.returns.count("Tensor")

    def body(function: Callable[..., Any]) -> Callable[..., Any]:
        function = _on_copies(function, outs)
        return function if total == 1 else _complete(function, outs=(), total=total)

    draws = tuple(name for name in op.draws or () if name in signature.parameters)
    refusal = (
        f"{op.name} moves on a random generator, on the host, and a CUDA graph would replay the "
        "same numbers for ever: call it outside of the capture"
    )
    if draws and all("Tensor" in str(signature.parameters[name].annotation) for name in draws):
        refusal += f", or give {' and '.join(draws)} as tensors"
    drawing = register(op.name, schema, body, refusal=refusal)
    told = register(f"{op.name}_seeded", schema, body) if draws else None
    names = schema.names[: schema.positional]
    return with_draws(drawing, told, names, draws, outs, _counting(op, signature, total))


def _counting(
    op: Op, signature: inspect.Signature, total: int
) -> Callable[[Mapping[str, Any]], Count]:
    """How many results a call has, from the arguments that it gives. Traced by Dynamo."""
    results = op.results
    plain = (type(None), bool, int, float, str)
    defaults = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if type(parameter.default) in plain
    }

    def count(given: Mapping[str, Any]) -> Count:
        return total if results is None else results({**defaults, **given})

    return count


def _on_copies(function: Callable[..., Any], outs: tuple[str | None, ...]) -> Callable[..., Any]:
    """The function on copies of its outputs: an op whose calls count may not write into any."""

    def on_copies(**arguments: Any) -> Any:
        given = {name: arguments[name] for name in outs if name and arguments.get(name) is not None}
        return function(**{**arguments, **{name: out.clone() for name, out in given.items()}})

    return on_copies


def _seeing(op: Op, signature: inspect.Signature, answer: Callable[..., Any]) -> Callable[..., Any]:
    """The fake without the arguments that concern contents."""
    assumed = {name: v for name, v in op.assumed.items() if name in signature.parameters}

    def seeing(**arguments: Any) -> Any:
        seen = {name: v for name, v in arguments.items() if name not in op.unseen}
        return answer(**seen | assumed)

    return seeing if op.unseen or assumed else answer


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

    An empty tensor stands for what a call does not return, or was given; a copy for an argument
    that it hands back.
    """

    def complete(**arguments: Any) -> tuple[torch.Tensor, ...]:
        returned = function(**arguments)
        arrived = {id(value) for value in tree_leaves(arguments)}
        results = (returned,) if isinstance(returned, torch.Tensor) else tuple(returned)
        given = {i for i, name in enumerate(outs) if arguments.get(name) is not None}
        there = {i for i, result in enumerate(results) if result is not None}
        for i in given & there:
            _deliver(results[i], arguments[outs[i]])

        def own(i: int) -> torch.Tensor:
            if i not in there - given:
                return torch.empty(0, device=results[0].device)
            result: torch.Tensor = results[i]
            return result.clone() if id(result) in arrived else result

        return tuple(map(own, range(total)))

    return complete


def _deliver(result: torch.Tensor, given: torch.Tensor) -> None:
    """See that an output that was given is written: some releases return another all the same."""
    if not isinstance(result, FakeTensor) and result.data_ptr() != given.data_ptr():
        given.copy_(result)
