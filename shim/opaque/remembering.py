"""What a run in shadow came to, for the next call that looks the same to it.

A model calls one function in each of its layers, and a compiler asks for the fake of each call
several times. The answer is kept by the fake mode that asked, so for one compilation as a rule: by
then what was asked of symbolic sizes is known to it, and need not be asked again.
"""

from __future__ import annotations

import contextlib
import enum
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from .launchers import Loaded

Run = Callable[[Mapping[str, Any]], tuple[Any, tuple[Loaded, ...]]]

#: Of these nothing matters but their value.
_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})
_SYMBOLIC = (torch.SymInt, torch.SymFloat)


class _Unlike(Exception):
    """Nothing can be kept for such a call, or of such a result."""


@dataclass(frozen=True)
class _Fresh:
    """A result that the call has made."""

    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device

    def remade(self, tensors: list[FakeTensor]) -> torch.Tensor:
        """Another like it."""
        options: Any = {"dtype": self.dtype, "device": self.device}
        return torch.empty_strided(self.size, self.stride, **options)


@dataclass(frozen=True)
class _Given:
    """A result that is an argument, by its number among the tensors."""

    number: int

    def remade(self, tensors: list[FakeTensor]) -> torch.Tensor:
        """The argument of this call."""
        return tensors[self.number]


@dataclass(frozen=True)
class _Answer:
    """What a call returned, and what it would have loaded."""

    results: tuple[_Fresh | _Given | None, ...]
    spec: TreeSpec
    loaded: tuple[Loaded, ...]

    def remade(self, tensors: list[FakeTensor]) -> Any:
        """The same for these tensors."""
        made = [each and each.remade(tensors) for each in self.results]
        return tree_unflatten(made, self.spec)


def remembering(run: Run) -> Run:
    """``run``, of fake tensors, made once for all calls of a mode that look alike.

    Such have tensors of the same sizes, strides and types, where symbolic ones are the same
    expressions, and equal values otherwise. A call is made anew where an argument is an object that
    may change, or a result is neither a new tensor nor an argument, or has a size that nobody knows
    yet.
    """
    kept: weakref.WeakKeyDictionary[FakeTensorMode, dict[Any, _Answer]]
    kept = weakref.WeakKeyDictionary()

    def remembered(arguments: Mapping[str, Any]) -> tuple[Any, tuple[Loaded, ...]]:
        call = _Call()
        try:
            key = (_surroundings(), *map(call.look, arguments.items()))
            answers = kept.setdefault(call.mode(), {})
        except _Unlike:
            return run(arguments)
        known = answers.get(key)
        if known is not None:
            return known.remade(call.tensors), known.loaded
        result, loaded = run(arguments)
        with contextlib.suppress(_Unlike):
            answers[key] = call.answer(result, loaded)
        return result, loaded

    return remembered


def _surroundings() -> tuple[Any, ...]:
    """What else decides how a tensor is made that is asked for without saying more."""
    known = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.get_default_dtype(), torch.cuda.current_device() if known else None


def _expression(number: Any) -> Any:
    expression = getattr(number.node, "expr", None)
    if expression is None:
        raise _Unlike
    return expression


def _given_to(load: Loaded) -> list[Any]:
    return tree_leaves([load.args, load.kwargs])


class _Call:
    """One call: what it looks like, and which tensors it has."""

    def __init__(self) -> None:
        self.tensors: list[FakeTensor] = []
        self._numbers: dict[int, int] = {}

    def mode(self) -> FakeTensorMode:
        """Of its tensors; there must be one that has no exception to make now."""
        modes = {tensor.fake_mode for tensor in self.tensors}
        if len(modes) != 1 or torch._C._is_any_autocast_enabled():
            raise _Unlike
        return modes.pop()

    def look(self, value: Any) -> Any:
        """What of ``value`` may matter, by which it can be looked up."""
        kind = type(value)
        if kind is FakeTensor:
            return self._tensor(value)
        if kind in _PLAIN or isinstance(value, enum.Enum):
            return kind, value
        if kind in _SYMBOLIC:
            return kind, _expression(value)
        if kind is tuple or kind is list:
            return kind, *map(self.look, value)
        raise _Unlike

    def _tensor(self, tensor: FakeTensor) -> Any:
        known = self._numbers.setdefault(id(tensor), len(self.tensors))
        if known < len(self.tensors):
            return known
        if tensor.constant is not None:  # its numbers may be read
            raise _Unlike
        self.tensors.append(tensor)
        numbers = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
        return (
            tuple([n if type(n) is int else _expression(n) for n in numbers]),
            tensor.dtype,
            tensor.device,
            tensor.layout,
            tensor.requires_grad,
        )

    def answer(self, result: Any, loaded: tuple[Loaded, ...]) -> _Answer:
        """What to keep of it."""
        leaves, spec = tree_flatten(result)
        self._check_symbols(leaves)
        # A tensor would keep the mode alive, by which this is kept.
        if any(isinstance(each, torch.Tensor) for load in loaded for each in _given_to(load)):
            raise _Unlike
        stores = [tensor.untyped_storage()._cdata for tensor in self.tensors]
        results = tuple([self._result(leaf, stores) for leaf in leaves])
        return _Answer(results, spec, loaded)

    def _result(self, leaf: Any, stores: list[int]) -> _Fresh | _Given | None:
        if leaf is None:
            return None
        if type(leaf) is not FakeTensor:
            raise _Unlike
        if id(leaf) in self._numbers:
            return _Given(self._numbers[id(leaf)])
        store, offset = leaf.untyped_storage()._cdata, leaf.storage_offset()
        if store in stores or type(offset) is not int or offset or leaf.layout != torch.strided:
            raise _Unlike
        stores.append(store)
        return _Fresh(tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype, leaf.device)

    def _check_symbols(self, leaves: list[Any]) -> None:
        """Each call has to have new symbols for what is not known before it is made."""
        shape_env = self.mode().shape_env
        if shape_env is None:
            return
        from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

        # While none are noted, what the answer depends on is not known to others.
        if shape_env._suppress_guards_tls() or any(
            free_unbacked_symbols(each)
            for each in (*self.tensors, *leaves)
            if isinstance(each, torch.Tensor)
        ):
            raise _Unlike
