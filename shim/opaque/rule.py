"""How Dynamo is told which calls it need not follow. Imported while it traces.

A table of Dynamo's says which class stands for a function in a trace;
``torch.compiler.substitute_in_graph`` writes into it, too. None of that is public: the names are
those of torch 2.9 to 2.14, and an error on import says that this torch has others.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.exc import UnspecializeRestartAnalysis
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.trace_rules import get_torch_obj_rule_map
from torch._dynamo.variables import (
    ConstantVariable,
    TensorVariable,
    TorchInGraphFunctionVariable,
    UserFunctionVariable,
)
from torch._dynamo.variables.tensor import SymNodeVariable

from .. import announce
from .in_graph import Straight, laters, straight
from .later import Later

_GUARD = GuardBuilder.FUNCTION_MATCH


def tell() -> bool:
    """Tell Dynamo of all functions there are; whether it has not known one."""
    table: dict[Any, Any] = get_torch_obj_rule_map()
    unknown = [function for function in list(laters) if function not in table]
    table.update((_Key(function, table), _Function) for function in unknown)
    return bool(unknown)


def begin_again() -> None:
    """Have Dynamo trace its frame from the beginning; RestartAnalysis, which it expects."""
    raise UnspecializeRestartAnalysis(restart_reason="flashinfer-shim: calls need not be followed")


class _Key:
    """Found for a function that the table does not keep alive: its module may be reloaded."""

    def __init__(self, function: Callable[..., Any], table: dict[Any, Any]) -> None:
        self._hash = hash(function)
        # The table itself: at the interpreter's end functions go after this module's names.
        self._function = weakref.ref(function, lambda _: table.pop(self, None))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or self._function() is other


class _Function(UserFunctionVariable):
    """A function of ours, in a trace."""

    @classmethod
    def create_with_source(cls, value: Any, source: Any) -> Any:
        """Of one that a trace has found; the graph is for this very function."""
        install_guard(source.make_guard(_GUARD))
        return cls(value, source=source)

    def as_python_constant(self) -> Any:
        """The function; torch's class says so of itself alone, and of none that is one of it."""
        return self.fn

    get_real_python_backed_value = as_python_constant

    def call_function(self, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Make the call of an op, or follow the function."""
        later: Any = laters[self.fn]()
        later.make()
        args = [variable.realize() for variable in args]
        kwargs = {name: variable.realize() for name, variable in kwargs.items()}
        found = _at_once(later, args, kwargs)
        if found is None:
            return super().call_function(tx, args, kwargs)
        call, given, by_position, by_keyword = found
        op = TorchInGraphFunctionVariable(call.op)
        result = op.call_function(tx, by_position, by_keyword)
        return given[call.returned] if call.returned else result


def _at_once(
    later: Later, args: list[Any], kwargs: dict[str, Any]
) -> tuple[Straight, dict[str, Any], list[Any], dict[str, Any]] | None:
    """The call that need not be followed, its arguments by parameter, and those of the op."""
    try:
        for call in straight(later):
            given = _bound(call, args, kwargs)
            if given is not None:
                return call, given, *_ordered(call, given)
    except Exception as fault:  # a variable of a torch that came later; any call can be followed
        announce.debug(f"Dynamo follows a call of an op: {type(fault).__name__}: {fault}")
    return None


def _bound(call: Straight, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments by parameter; None where it is another call."""
    try:
        given = call.signature.bind(*args, **kwargs).arguments
    except TypeError:
        return None
    for name, variable in given.items():
        kind = call.kinds.get(name)
        default = call.signature.parameters[name].default
        if not (_is(variable, default) if kind is None else _fits(variable, *kind)):
            return None
    return None if call.returned and call.returned not in given else given


def _ordered(call: Straight, given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of the op: by position as far as that goes, the others by keyword."""
    by_position: list[Any] = []
    by_keyword: dict[str, Any] = {}
    last, parted = 0, False
    for argument in call.op._schema.arguments:
        name = call.names.get(argument.name)
        parted = parted or name is None or argument.kwarg_only
        if name is None or (parted and name not in given):
            continue
        if parted:
            by_keyword[argument.name] = given[name]
        elif name in given:
            by_position.append(given[name])
            last = len(by_position)
        else:
            by_position.append(ConstantVariable.create(call.signature.parameters[name].default))
    return by_position[:last], by_keyword


def _fits(variable: Any, kind: Any, optional: bool) -> bool:
    if isinstance(variable, ConstantVariable):
        return type(variable.value) is kind or (optional and variable.value is None)
    # Exactly these: of their subclasses some stand for what is no tensor, or is another kind of it.
    if kind is torch.Tensor:
        return type(variable) is TensorVariable
    return kind is int and type(variable) is SymNodeVariable and variable.python_type() is int


def _is(variable: Any, default: Any) -> bool:
    if not isinstance(variable, ConstantVariable):
        return False
    return type(variable.value) is type(default) and bool(variable.value == default)
