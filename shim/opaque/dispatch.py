"""The function that takes the original's place: the op where somebody watches, the original else.

Somebody watches when Dynamo is tracing, or when a torch dispatch mode is active: a fake mode,
make_fx, non-strict export, AOTAutograd. Nobody does in plain eager code, which then pays for one
test and one call.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from .identity import take_over
from .in_graph import meeting
from .later import Later

if TYPE_CHECKING:  # of no use to a process that never compiles
    from .declare import Count, GivenBack
    from .schema import Schema

    #: By number, which argument a result is, if it is one.
    Inputs = tuple[tuple[int, GivenBack], ...]


def dispatching(
    original: Callable[..., Any],
    later: Later,
    eager: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """A plain function with the identity of ``original`` that calls an op where it must.

    Args:
        original: the upstream function.
        later: makes what takes the same arguments and calls the op.
        eager: called instead of ``original`` where nobody watches.
    """
    number = _parameters(original)
    made: Any = _maker(number)(
        later,
        original if eager is None else eager,
        meeting,
        torch.compiler.is_dynamo_compiling,
        torch._C._len_torch_dispatch_stack,
    )
    # Dynamo counts recompilations by code object: under one for all ops, whoever compiles several
    # of them by themselves would reach its limit.
    code = made.__code__.replace(co_name=getattr(original, "__name__", "replacement"))
    if number is not None:
        code = code.replace(co_varnames=original.__code__.co_varnames[:number])
        made.__defaults__ = original.__defaults__
    made.__code__ = code
    replacement: Callable[..., Any] = take_over(made, original)
    return replacement


# To hand on what came as *args and **kwargs costs more than both tests.
_SOURCE = """
def made(_later, _untraced, _meeting, _is_dynamo_compiling, _active_modes):
    def replacement({parameters}):
        if _is_dynamo_compiling():
            _meet()
            return _later.traced({parameters})
        if _active_modes():
            _later.make()
            return _later.traced({parameters})
        return _untraced({parameters})
    _meet = _meeting(replacement, _later)
    return replacement
"""
_LINES_ABOVE = sys._getframe().f_lineno - _SOURCE.count("\n") - 2


@functools.cache
def _maker(number: int | None) -> Callable[..., Any]:
    """Makes replacements of so many parameters, whatever they are called; None: of any."""
    names = ["*args", "**kwargs"] if number is None else [f"_{i}" for i in range(number)]
    source = "\n" * _LINES_ABOVE + _SOURCE.format(parameters=", ".join(names))
    namespace: dict[str, Any] = {"__name__": __name__}
    # Known by file and line, as if it stood here itself: to tracebacks, debuggers, our reports, and
    # to what measures coverage, which ends with an error where there is no such file.
    exec(compile(source, __file__, "exec"), namespace)
    made: Callable[..., Any] = namespace["made"]
    return made


def _parameters(function: Any) -> int | None:
    """How many parameters it has, if each can be given by position, and its default to an op."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return None
    if code.co_kwonlyargcount or code.co_posonlyargcount:
        return None
    # What was not given would be given, of which a compiler cannot tell that it is the default.
    plain = all(map(is_plain, function.__defaults__ or ()))
    return int(code.co_argcount) if plain else None


def is_plain(default: object) -> bool:
    """Whether it is a default that Dynamo knows again."""
    plain = (bool, int, float, str, type(None), torch.dtype)
    return default is inspect.Parameter.empty or type(default) in plain


def encoding(op: Callable[..., Any], schema: Schema, function: str) -> Callable[..., Any]:
    """``op`` behind its carriers; errors name ``function``. Traced by Dynamo, so plain Python."""
    if not schema.carriers:
        return op
    carriers = tuple(schema.carriers.items())

    def traced(**named: Any) -> Any:
        for name, carrier in carriers:
            if name in named:
                try:
                    values = carrier.encode(named.pop(name))
                except TypeError as fault:
                    raise TypeError(f"{function}(): {fault.args[0]}") from None
                for i, part in enumerate(carrier.parts):
                    named[part.name] = values[i]
        return op(**named)

    return traced


def with_results(
    functional: Callable[..., Any],
    writing: Callable[..., Any],
    outs: tuple[str | None, ...],
    inputs: Inputs,
    count: Callable[[Mapping[str, Any]], Count],
    part: Callable[[Mapping[str, Any], Any], Any] | None = None,
) -> Callable[..., Any]:
    """Choose between two ops by whether the caller gives outputs; return what the function would.

    An op may not return its input, so what was given is put back among the results.

    Args:
        functional: takes no outputs and returns all results.
        writing: takes outputs too, and returns something in place of each that it was given.
        outs: the function's outputs, in the order of the results.
        inputs: results that may be arguments given back.
        count: how many results a call has, from its arguments, and in what form (``declare.py``).
        part: what is returned of an output that was given, where it is not all of it.
    """

    def traced(**named: Any) -> Any:
        given, whole = {}, dict(named)
        for i, name in enumerate(outs):
            if name is None:
                continue
            value = named.pop(name, None)
            if value is None:
                whole.pop(name, None)
            else:
                given[i] = value
        wanted = count(whole)
        made = writing(**whole) if given else functional(**named)
        if isinstance(made, torch.Tensor):
            made = (made,)
        if part is not None:
            given = {i: part(named, value) for i, value in given.items()}
        for i, given_back in inputs:
            argument = given_back(named)
            if i not in given and argument is not None:
                given[i] = argument
        results = [given[i] if i in given else made[i] for i in range(_number(wanted))]
        return _as_wanted(results, wanted)

    return traced


def naming(traced: Callable[..., Any], kind: Callable[..., Any]) -> Callable[..., Any]:
    """``traced`` with its results in a named tuple. Traced by Dynamo."""

    def named(*args: Any, **kwargs: Any) -> Any:
        return kind(*traced(*args, **kwargs))

    return named


def with_draws(
    drawing: Callable[..., Any],
    told: Callable[..., Any] | None,
    draws: tuple[str, ...],
    outs: tuple[str | None, ...],
    count: Callable[[Mapping[str, Any]], Count],
) -> Callable[..., Any]:
    """Choose between two ops by whether the call moves on a generator.

    Neither writes into an argument: outputs that the caller gives are written from here.

    Args:
        drawing: the op whose calls all count.
        told: the op for calls that are told where in which sequence to begin, by ``draws``.
        draws: parameters of the function.
        outs: its outputs, in the order of the results.
        count: how many results a call has, from its arguments, and in what form.
    """

    def traced(**named: Any) -> Any:
        moves = told is None or any(named.get(name) is None for name in draws)
        made = drawing(**named) if moves else told(**named)  # type: ignore[misc]
        results = [made] if isinstance(made, torch.Tensor) else list(made)
        for i, name in enumerate(outs):
            out = None if name is None else named.get(name)
            if out is not None:
                # As an op: the method wants a device guard, which a pretended device has not.
                torch.ops.aten.copy_.default(out, results[i])
                results[i] = out
        wanted = count(named)
        return _as_wanted(results[: _number(wanted)], wanted)

    return traced


def with_writes(
    collective: Callable[..., Any],
    written: tuple[str, ...],
    outs: tuple[str | None, ...],
    count: Callable[[Mapping[str, Any]], Count],
    returned: Callable[[Mapping[str, Any]], str] | None,
) -> Callable[..., Any]:
    """Write into arguments what an op that may not do so returns.

    Args:
        collective: the op; returns what is written behind its results.
        written: the parameters that are written into, in the order of what is returned for them.
        outs: its outputs among them, in the order of the results.
        count: how many results a call has, from its arguments, and in what form.
        returned: the argument that is returned, if it is one.
    """

    def traced(**named: Any) -> Any:
        made = collective(**named)
        results = [made] if isinstance(made, torch.Tensor) else list(made)
        first = len(results) - len(written)
        for i, name in enumerate(written):
            if named.get(name) is not None:
                torch.ops.aten.copy_.default(named[name], results[first + i])
        if returned is not None:
            name = returned(named)
            return named[name] if name else results[0]
        for i, out in enumerate(outs):
            if out is not None and named.get(out) is not None:
                results[i] = named[out]
        wanted = count(named)
        number = _number(wanted)
        return _as_wanted(results[:number], wanted) if number else None

    return traced


def _number(wanted: Count) -> int:
    if isinstance(wanted, int):
        return wanted
    if isinstance(wanted[0], bool):
        return len(wanted)
    number = 0
    for group in wanted:
        if isinstance(group, int):
            return group
        number += group[0]
    return number


def _as_wanted(results: list[torch.Tensor], wanted: Count) -> Any:
    if isinstance(wanted, tuple) and isinstance(wanted[0], bool):
        return tuple([results[i] if wanted[i] else None for i in range(len(wanted))])
    if isinstance(wanted, list):
        return results
    if isinstance(wanted, int):
        return results[0] if wanted == 1 else tuple(results)
    groups = []
    for group in wanted:
        if isinstance(group, int):
            return (*results, *[None] * (wanted[1] - len(results)))  # type: ignore[operator]
        groups.append(tuple(results[: group[0]]))
        results = results[group[0] :]
    return tuple(groups)
