"""One upstream function as an op: the replacement built from its declaration."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from . import registry, shadow
from .binding import binding
from .capture import Kernels, untuned
from .declare import Count, Op
from .dispatch import (
    dispatching,
    encoding,
    naming,
    with_draws,
    with_results,
    with_writes,
)
from .identity import signature_of
from .in_graph import Straight, go_straight
from .kernel import Quick
from .later import named, promised
from .launchers import Loaded
from .remembering import remembering
from .schema import Schema, from_signature, kinds

if TYPE_CHECKING:
    from .dispatch import Inputs


def build(op: Op, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function that dispatches to the op, which is defined here and now.

    For a function that is no patch of ours; ``options`` are those of :func:`traced`, and raised is
    what that raises.
    """
    make = functools.partial(traced, op, function, **options)
    later = promised(op.name, lambda: make, at_once=True)
    return dispatching(function, later, options.get("eager"))


def traced(
    op: Op,
    function: Callable[..., Any],
    *,
    release: str,
    preload: bool,
    fake: Callable[..., Any] | None = None,
    kernels: Kernels | None = None,
    eager: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Define the op, or both that it needs; gives what a compiler is to trace.

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
    signature = with_keywords(signature_of(function), op.keywords)
    behind = kernels
    if behind is None:
        needs = _seeing(op, signature, functools.partial(_needed, function))
        behind = Kernels(op.name, preload=preload, needs=lambda arguments: needs(**arguments))
    run = function if eager is None else eager
    answer = fake or _seeing(op, signature, _answer(op, function, behind))
    if op.kept:
        run, answer = _copying(run), _copying(answer)
    plain = run is function and not op.keywords
    body = Body(signature, run, answer, behind, captured=op.captured, plain=plain)
    defined = define(op, body, registry.Tag(release, _set_variables(op.variables)))
    kind = signature.return_annotation
    if op.named:
        kind = _named_class(op.named, function)
    return naming(defined, kind) if hasattr(kind, "_fields") else defined


def _named_class(name: str, function: Callable[..., Any]) -> Any:
    """A class by its dotted name, or by the one that it has in the function's module."""
    module, _, last = name.rpartition(".")
    if not module:
        return inspect.unwrap(function).__globals__[name]
    return getattr(importlib.import_module(module), last)


def with_keywords(signature: inspect.Signature, names: tuple[str, ...]) -> inspect.Signature:
    """The signature with parameters of their own for what goes by ``**kwargs``."""
    kind = inspect.Parameter.VAR_KEYWORD
    written = [p for p in signature.parameters.values() if p.kind is not kind]
    if len(written) == len(signature.parameters):
        return signature
    named = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None) for n in names]
    return signature.replace(parameters=[*written, *named])


@dataclass(frozen=True)
class Body:
    """What an op is made of.

    Attributes:
        signature: its parameters, annotations evaluated.
        run: takes them by keyword.
        fake: likewise; the same results but for the data.
        kernels: what a call loads.
        captured: whether Inductor may put it into a CUDA graph of its own making.
        plain: whether ``run`` is a function of that very signature.
    """

    signature: inspect.Signature
    run: Callable[..., Any]
    fake: Callable[..., Any]
    kernels: Kernels
    captured: bool = True
    plain: bool = False


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
            return untuned(body.run, arguments) if capturing else body.run(**arguments)

        return run_guarded

    op_name = named(op.name)
    outs = _outs(op, signature)
    out = tuple(filter(None, outs))
    total = op.returns.count("Tensor")
    inputs = tuple(op.inputs.items())

    def register(
        name: str,
        schema: Schema,
        wrap: Callable[[Callable[..., Any]], Any],
        *,
        ordered: bool = False,
        refusal: str = "",
    ) -> OpOverload:
        whole = registry.Body(
            schema,
            wrap(guarded(refusal)),
            wrap(body.fake),
            ordered=ordered,
            captured=body.captured and not refusal,
            quick=_quick(body, schema, wrap),
        )
        return registry.define(name, tag, whole)

    def encoded(name: str, schema: Schema, wrap: Any, **options: Any) -> Callable[..., Any]:
        return encoding(register(name, schema, wrap, **options), schema, op.path)

    plain = kinds(signature, op.annotations)

    def bound(traced: Callable[..., Any], calls: Sequence[Straight] = ()) -> Callable[..., Any]:
        unless_none = [name for name in op.keywords if name in signature.parameters]
        followed = binding(op.path, signature, plain, traced, unless_none=unless_none)
        go_straight(followed, calls)
        return followed

    if op.draws is not None:
        return bound(_drawing(op, signature, encoded))
    if op.collective:
        return bound(_collective(op, signature, encoded))
    functional = from_signature(
        signature, returns=op.returns, mutates=op.mutates, without=out, annotations=op.annotations
    )
    complete = functools.partial(_complete, outs=outs, inputs=inputs, total=total)
    varied = op.results or inputs
    defined = register(op_name, functional, complete if varied else _as_it_is)
    traced = encoding(defined, functional, op.path)
    given = {name: kind for name, kind in plain.items() if name not in op.keywords}
    calls = [] if varied else _straight(defined, functional, signature, given)
    if not (out or varied):
        return bound(traced, calls)
    mutating = traced
    if out:
        writing = from_signature(
            signature,
            returns="()" if total == 1 else op.returns,
            mutates=(*op.mutates, *out),
            required=out if total == 1 else (),
            annotations=op.annotations,
        )
        into = register(f"{op_name}_out", writing, _silent if total == 1 else complete)
        mutating = encoding(into, writing, op.path)
        if total == 1 and not (varied or op.part):
            calls += _straight(into, writing, signature, given, out[0])
    count = _counting(op, signature, total)
    return bound(with_results(traced, mutating, outs, inputs, count, op.part), calls)


def _quick(body: Body, schema: Schema, wrap: Callable[..., Any]) -> Quick | None:
    """How an op calls the function at once, None where a call takes more than that."""
    if not body.plain or wrap not in (_as_it_is, _silent):
        return None
    if schema.plain.keys() != set(schema.op_names):
        return None
    defaults = {name: p.default for name, p in body.signature.parameters.items()}
    return Quick(body.run, schema.plain, defaults, returns=wrap is _as_it_is)


def _straight(
    op: OpOverload,
    schema: Schema,
    signature: inspect.Signature,
    kinds: Mapping[str, tuple[Any, bool]],
    returned: str = "",
) -> list[Straight]:
    """The calls that go to the op as they are, if there can be any.

    Args:
        op: the op.
        schema: of the op.
        signature: of the function.
        kinds: its parameters that may be given.
        returned: the output that is given, and returned; empty for an op that makes its own.
    """
    names = {argument: name for argument, name in schema.plain.items() if name in kinds}
    taken = {name: kinds[name] for name in names.values()}
    if returned:
        taken[returned] = (torch.Tensor, False)
    rest = [p for p in signature.parameters.values() if p.name not in taken]
    if any(parameter.default is inspect.Parameter.empty for parameter in rest):
        return []
    return [Straight(op, signature, names, taken, returned)]


def _outs(op: Op, signature: inspect.Signature) -> tuple[str | None, ...]:
    """The outputs by the number of the result; None where this release has no such parameter."""
    return tuple(name if name in signature.parameters else None for name in op.out)


def _drawing(
    op: Op, signature: inspect.Signature, register: Callable[..., Any]
) -> Callable[..., Any]:
    """The op whose calls all count, and a plain one for calls that are told where to begin."""
    schema = from_signature(signature, returns=op.returns, annotations=op.annotations)
    outs = _outs(op, signature)
    total = op.returns.count("Tensor")

    def body(function: Callable[..., Any]) -> Callable[..., Any]:
        function = _on_copies(function, outs)
        return function if total == 1 else _complete(function, outs=(), inputs=(), total=total)

    draws = tuple(name for name in op.draws or () if name in signature.parameters)
    refusal = (
        f"{op.name} moves on a random generator, on the host, and a CUDA graph would replay the "
        "same numbers for ever: call it outside of the capture"
    )
    if draws and all("Tensor" in str(signature.parameters[name].annotation) for name in draws):
        refusal += f", or give {' and '.join(draws)} as tensors"
    drawing = register(op.name, schema, body, ordered=True, refusal=refusal)
    told = register(f"{op.name}_seeded", schema, body) if draws else None
    return with_draws(drawing, told, draws, outs, _counting(op, signature, total))


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


def _collective(
    op: Op, signature: inspect.Signature, register: Callable[..., Any]
) -> Callable[..., Any]:
    """The op that each rank calls: it returns what is written into arguments, behind its results.

    An op that has an effect on others, which AOTAutograd keeps in order, may not write into any.
    """
    written = tuple(n for n in (*op.out, *op.mutates) if n and n in signature.parameters)
    total = op.returns.count("Tensor")
    made = total + len(written)
    returns = "Tensor" if made == 1 else f"({', '.join(['Tensor'] * made)})"
    schema = from_signature(signature, returns=returns, annotations=op.annotations)

    def body(function: Callable[..., Any]) -> Callable[..., Any]:
        return _returning_written(function, total, written, outs, op.returned)

    outs = _outs(op, signature)
    traced = register(named(op.name), schema, body, ordered=True)
    return with_writes(traced, written, outs, op.results or (lambda given: total), op.returned)


def _returning_written(
    function: Callable[..., Any],
    total: int,
    written: tuple[str, ...],
    outs: tuple[str | None, ...],
    returned: Callable[[Mapping[str, Any]], str] | None,
) -> Callable[..., Any]:
    """The function on copies of what it writes into; they are its last results, ``total`` first.

    An empty tensor stands for what a call does not return, was not given, or returns of what it was
    given to write into.
    """

    def returning_written(**arguments: Any) -> Any:
        held = {n: arguments[n] for n in written if arguments.get(n) is not None}
        # One tensor may be given for two parameters.
        once = {id(tensor): _copy(tensor) for tensor in held.values()}
        copies = {n: once[id(tensor)] for n, tensor in held.items()}
        given = {**arguments, **copies}
        result = function(**given)
        name = returned(arguments) if returned else ""
        if name and result is not None and result is not given[name]:
            raise RuntimeError(f"the call did not return the {name} that it was given")
        alone = result is None or isinstance(result, torch.Tensor)
        results = [result] if alone else list(result)
        results += [None] * (total - len(results))
        put_back = [i for i, out in enumerate(outs) if out in copies]
        for i, each in enumerate(results[:total]):
            if name or i in put_back or any(each is copy for copy in copies.values()):
                results[i] = None
            elif any(each is argument for argument in arguments.values()):
                results[i] = _copy(each)  # an op may not return its input
        results[total:] = [copies.get(name) for name in written]
        one = next(v for v in tree_leaves(arguments) if isinstance(v, torch.Tensor))
        made = tuple(one.new_empty(0) if each is None else each for each in results)
        return made[0] if len(made) == 1 else made

    return returning_written


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, whatever they are: upstream may ask for them."""
    return tensor.new_empty_strided(tensor.size(), tensor.stride()).copy_(tensor)


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
    run = remembering(functools.partial(shadow.run, function))
    loads = remembering(lambda arguments: (None, shadow.loads(function, arguments)))

    def in_shadow(**arguments: Any) -> Any:
        result, loaded = run(arguments)
        kernels.will_load(loaded)
        return result

    def by_rule(**arguments: Any) -> Any:
        # What a call would load is of interest where it can be loaded.
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            with contextlib.suppress(Exception):  # the real call says it better
                kernels.will_load(loads(arguments)[1])
        return None if op.fake is None else op.fake(**arguments)

    return by_rule if op.fake or op.returns == "()" else in_shadow


def _needed(function: Callable[..., Any], /, **arguments: Any) -> tuple[Loaded, ...]:
    return shadow.needed(lambda fakes: shadow.run(function, fakes), arguments)


def _copying(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a copy of its result, unless that is an argument."""

    def copying(**arguments: Any) -> Any:
        result = function(**arguments)
        given = any(result is value for value in arguments.values())
        return result if given else result.clone()

    return copying


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
    function: Callable[..., Any], *, outs: tuple[str | None, ...], inputs: Inputs, total: int
) -> Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]:
    """The function with always ``total`` results, none of them an argument.

    An empty tensor stands for what a call does not return, or was given; a copy for an argument
    that it hands back.
    """

    def complete(**arguments: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
        returned = function(**arguments)
        arrived = {id(value) for value in tree_leaves(arguments)}
        results = _flat(returned)
        given = {i: name for i, name in enumerate(outs) if name and arguments.get(name) is not None}
        there = {i for i, result in enumerate(results) if result is not None}
        for i in given.keys() & there:
            _deliver(results[i], arguments[given[i]])
        apart = there - given.keys()
        apart -= {i for i, given_back in inputs if given_back(arguments) is not None}

        def own(i: int) -> torch.Tensor:
            if i not in apart:
                return torch.empty(0, device=results[0].device)
            result: torch.Tensor = results[i]
            return result.clone() if id(result) in arrived else result

        made = tuple(map(own, range(total)))
        return made[0] if total == 1 else made

    return complete


def _flat(returned: Any) -> tuple[Any, ...]:
    if returned is None or isinstance(returned, torch.Tensor):
        return (returned,)
    return tuple(result for item in returned for result in _flat(item))


def _deliver(result: torch.Tensor, given: torch.Tensor) -> None:
    """See that an output that was given is written: some releases return another all the same."""
    if not isinstance(result, FakeTensor) and result.data_ptr() != given.data_ptr():
        given.copy_(result)
