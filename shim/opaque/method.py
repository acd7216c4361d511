"""Methods of objects that keep state between calls, as ops: attention wrappers and their plans.

The object stays outside the graph. It travels as a handle, a tensor of one number that is an
attribute of the object, and so an input of the graph like any other: many objects share one graph,
none is taken for another, and nothing is compiled again for the next one. When the op runs it
finds the live object by the number and calls the method, so that whatever was planned meanwhile is
seen. What the results look like depends on a few attributes of the object, which travel as text:
the compiler guards on those.

A handle is good for the process that made it. An exported program that holds one cannot be run in
another.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.utils._pytree import tree_leaves, tree_map_only

from . import shadow
from .capture import Kernels
from .carry import EXTRAS
from .declare import Op
from .dispatch import dispatching
from .identity import signature_of
from .later import promised
from .op import Body, define, with_keywords
from .registry import Tag
from .tracking import HANDLE, give_handle, has_its_own, holders

#: The op's parameters for an object's handle and for its state.
_HOLDER = "holder"
_STATE = "holder_state"

#: The one that was met last in a compiled function.
_met: Callable[[], Any] = type(None)


def build(op: Op, kind: type, method: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function that dispatches to the op of a method, which is defined here and now.

    For a method that is no patch of ours; ``options`` are those of :func:`traced`, and raised is
    what that raises.
    """
    make = functools.partial(traced, op, kind, method, **options)
    later = promised(op.name, lambda: make, at_once=True)
    return dispatching(method, later)


def traced(
    op: Op, kind: type, method: Callable[..., Any], *, release: str, preload: bool
) -> Callable[..., Any]:
    """Define the op of ``method``; gives what a compiler is to trace.

    Args:
        op: the declaration.
        kind: the class, of which objects are tracked (``tracking.py``).
        method: the plain function in it.
        release: of FlashInfer.
        preload: as in :func:`.op.traced`.

    Raises:
        Inexpressible: the method has a parameter that cannot travel.
        RuntimeError: another copy of us has defined the op.
    """
    call = _Call(method, op.keywords)

    def needs(arguments: Mapping[str, Any]) -> tuple[shadow.Loaded, ...]:
        rest = {name: value for name, value in arguments.items() if name not in (_HOLDER, _STATE)}
        holder = _find(op.name, kind, arguments[_HOLDER])
        return shadow.needed(lambda fakes: shadow.run_method(method, holder, fakes, call), rest)

    kernels = Kernels(op.name, preload=preload, needs=needs)

    def run(**arguments: Any) -> Any:
        arguments.pop(_STATE, None)
        holder = _find(op.name, kind, arguments.pop(_HOLDER))
        return _apart(call(method, holder, arguments), holder)

    def fake(**arguments: Any) -> Any:
        del arguments[_HOLDER]
        alike = _alike(kind, op.state, arguments.pop(_STATE, ""))
        if op.fake is not None:
            holder = next(alike, None)
            if holder is None:
                raise _gone(op.name)
            return op.fake(holder, **arguments)
        if op.returns == "()":
            return None
        return _in_shadow(call, method, alike, arguments, kernels)

    inner = define(op, Body(call.flat, run, fake, kernels, captured=False), Tag(release))
    return _carrying(op, inner, call)


def _apart(result: Any, holder: object) -> Any:
    """A result with copies of what lies in memory that the object keeps for its calls.

    In a graph the next call may come before somebody has read what this one returned.
    """
    kept = {
        value.untyped_storage()._cdata
        for value in tree_leaves(list(vars(holder).values()))
        if isinstance(value, torch.Tensor)
    }

    def own(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone() if tensor.untyped_storage()._cdata in kept else tensor

    return tree_map_only(torch.Tensor, own, result) if kept else result


class _Call:
    """How a method is called by keyword, for it may take whatever follows by position.

    Attributes:
        flat: the signature with the object in two parts and every parameter by keyword.
        leading: how many arguments, but the object, go by position.
        extras: the name of the parameter that takes the rest of them, empty if there is none.
    """

    def __init__(self, method: Callable[..., Any], keywords: tuple[str, ...] = ()) -> None:
        signature = with_keywords(signature_of(method), keywords)
        _, *parameters = signature.parameters.values()
        plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
        flat = [
            inspect.Parameter(_HOLDER, plain, annotation=torch.Tensor),
            inspect.Parameter(_STATE, plain, annotation=str),
        ]
        self.extras = ""
        self._defaults: dict[str, Any] = {}
        for parameter in parameters:
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                self.extras = parameter.name
                parameter = inspect.Parameter(
                    parameter.name, inspect.Parameter.KEYWORD_ONLY, annotation=EXTRAS, default=()
                )
            elif parameter.kind is plain:
                self._defaults[parameter.name] = parameter.default
            flat.append(parameter)
        self.flat = inspect.Signature(flat)
        self.leading = len(self._defaults)

    def __call__(self, method: Callable[..., Any], holder: Any, named: Mapping[str, Any]) -> Any:
        rest = dict(named)
        extras = rest.pop(self.extras, ())
        if not extras:
            return method(holder, **rest)
        leading = [rest.pop(name, default) for name, default in self._defaults.items()]
        return method(holder, *leading, *extras, **rest)


def _carrying(op: Op, inner: Callable[..., Any], call: _Call) -> Callable[..., Any]:
    """``inner`` behind the object's handle and state. Traced by Dynamo, so plain Python."""
    names, leading, extras = op.state, call.leading, call.extras

    def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        _meet(self)
        if extras and len(args) > leading:
            kwargs[extras] = args[leading:]
            args = args[:leading]
        return inner(getattr(self, HANDLE), _state(self, names), *args, **kwargs)

    return traced


def _meet(holder: Any) -> None:
    """An object that is to have a handle, if it was made before it could be given one."""
    if torch.compiler.is_dynamo_compiling():
        from torch._dynamo.comptime import comptime

        # What is traced happens when the graph runs; this happens now.
        comptime(_meet_traced)
    else:
        _known(holder)


def _meet_traced(context: Any) -> None:
    """:func:`_meet` for the real object behind the ``holder`` of the call that Dynamo traces."""
    _known(context.get_local("holder")._i_will_not_complain_if_bc_breaks_VariableTracker().value)


def _known(holder: Any) -> None:
    global _met
    if not has_its_own(holder):
        give_handle(holder)
    _met = weakref.ref(holder)


def _state(holder: Any, names: tuple[str, ...]) -> str:
    """The attributes that decide what the results look like. Traced by Dynamo."""
    told = ""
    for name in names:
        value = holder
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else getattr(value, part, None)
        if isinstance(value, int) and not isinstance(value, bool):
            value = operator.index(value)  # of a symbolic number, which ties the graph to it
        told += f"{name}={value};"
    return told


def _find(name: str, kind: type, handle: torch.Tensor) -> Any:
    holder = holders.get(int(handle.item()))
    if not isinstance(holder, kind):
        raise _gone(name)
    return holder


def _gone(name: str) -> RuntimeError:
    return RuntimeError(
        f"{name} runs for an object that no longer exists, or that belongs to the process in which "
        "the graph was made"
    )


def _alike(kind: type, names: tuple[str, ...], state: str) -> Iterator[Any]:
    """The objects whose results look as those of the one that is being compiled for."""
    # All references at once: another thread may make an object meanwhile.
    references: list[Callable[[], Any]] = [_met, *holders.valuerefs()]
    for reference in references:
        holder = reference()
        if isinstance(holder, kind) and _state(holder, names) == state:
            yield holder


def _in_shadow(
    call: _Call,
    method: Callable[..., Any],
    holders: Iterator[Any],
    arguments: Mapping[str, Any],
    kernels: Kernels,
) -> Any:
    """The method in shadow, for the first object that does not reject the arguments.

    Which object it is that is being compiled for cannot be told in each case, since its handle has
    no data then; another one like it may be planned for other sizes.
    """
    fault: Exception | None = None
    for holder in holders:
        try:
            with _unguarded():
                result, loaded = shadow.run_method(method, holder, arguments, call)
        except Exception as error:
            fault = fault or error
            continue
        kernels.will_load(loaded)
        return result
    raise fault or RuntimeError(f"no object of {method.__qualname__} is alive")


def _unguarded() -> contextlib.AbstractContextManager[None]:
    """Within it, nothing that is asked of symbolic sizes ties the graph to the answer.

    What a method asks of them is whether they are those that were planned. That is for the real
    call to say each time: a graph that it was asked for would belong to one plan.
    """
    mode = detect_fake_mode()
    if mode is None or mode.shape_env is None:
        return contextlib.nullcontext()
    return mode.shape_env.suppress_guards()
