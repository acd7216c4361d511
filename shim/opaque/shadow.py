"""Run an upstream function for its outputs alone: its own Python, its kernels left out.

FlashInfer allocates outputs in Python and hands them to kernels. So the exact fake of a function,
in whatever release is installed, is the function itself with nothing behind the kernel calls.

The function runs in a shadow world: copies of it and of all FlashInfer functions that it reaches,
whose globals are looked up through this module. There, what launches kernels is replaced by
stand-ins that do nothing. Upstream's own objects are never touched: other threads go on calling
them, no cache of theirs ever holds a stand-in or a fake tensor, and no eager call pays for it.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import dataclasses
import functools
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from . import symbolic
from .classes import copy_class, does_something
from .identity import original_of
from .launchers import (
    NO_KERNELS,
    THRESHOLDS,
    Loaded,
    UnknownLauncher,
    concrete,
    recording,
    stand_in,
)
from .objects import copy_object, keeps_state

_UPSTREAM = "flashinfer"
_LOGGING = "flashinfer.api_logging"
#: Most of what a module holds, and the same in every world.
_PLAIN = frozenset({str, int, float, bool, bytes, type(None), torch.dtype})
_ABSENT = object()
#: What has no result for nothing; torch looks for that only where there is data.
_OF_SOMETHING = frozenset({torch.max, torch.min, torch.Tensor.max, torch.Tensor.min})


def run(
    function: Callable[..., Any], arguments: Mapping[str, Any]
) -> tuple[Any, tuple[Loaded, ...]]:
    """Call ``function`` in a new shadow world.

    Args:
        function: of FlashInfer; a plain function or a decorated one.
        arguments: by keyword; tensors are fake ones of the mode that is active.

    Returns:
        What the function returns, and the calls that would have loaded kernels.

    Raises:
        UnknownLauncher: the function reached code that may launch kernels in a way that is not
            on the list of launchers.
        Exception: whatever upstream's Python raises for these arguments.
    """
    return _in_a_world(function, arguments, _call_with_copies)


def run_method(
    method: Callable[..., Any],
    holder: object,
    arguments: Mapping[str, Any],
    call: Callable[[Callable[..., Any], Any, Mapping[str, Any]], Any],
) -> tuple[Any, tuple[Loaded, ...]]:
    """:func:`run` for a method of ``holder``, which is not touched: the world has a copy of it.

    Args:
        method: a plain function, from the class.
        holder: the object.
        arguments: the others, by keyword.
        call: calls the method with an object and such arguments.
    """

    def with_copy(world: _World, copied: Callable[..., Any], named: Mapping[str, Any]) -> Any:
        return call(copied, copy_object(holder, world.translate), named)

    return _in_a_world(method, arguments, with_copy)


def _call_with_copies(world: _World, copied: Callable[..., Any], named: Mapping[str, Any]) -> Any:
    """Call it, each of upstream's objects among the arguments, such as a workspace, copied."""
    return copied(
        **{
            name: copy_object(value, world.translate) if _is_held(value) else value
            for name, value in named.items()
        }
    )


def _is_held(value: Any) -> bool:
    is_value = isinstance(value, tuple) or dataclasses.is_dataclass(value)
    return keeps_state(value) and not is_value


_Call = Callable[["_World", Callable[..., Any], Mapping[str, Any]], Any]


def _in_a_world(
    function: Callable[..., Any], arguments: Mapping[str, Any], call: _Call
) -> tuple[Any, tuple[Loaded, ...]]:
    # It may look something up by a symbolic number, which has no hash: tie the graph to the numbers
    # that were given, and to the sizes only if need be.
    for tied in (False, True):
        try:
            return _run(function, arguments, call)
        except TypeError as fault:
            if "SymInt" not in str(fault):
                raise
        arguments = {
            name: _sized(value, int) if tied or isinstance(value, torch.SymInt) else value
            for name, value in arguments.items()
        }
    return _run(function, arguments, call)


def _run(
    function: Callable[..., Any], arguments: Mapping[str, Any], call: _Call
) -> tuple[Any, tuple[Loaded, ...]]:
    world = _World()
    name = getattr(function, "__name__", "")
    result = None
    pending = _pending()
    met = list(pending)
    try:
        with _WithoutDevice():
            result = call(world, world.translate(name, function), arguments)
    except DataDependentOutputException as fault:
        raise RuntimeError(
            f"{name} reads a number from a tensor ({fault}), which no graph can hold: give the "
            "number itself where it takes one"
        ) from fault
    finally:
        # A number that was read for a kernel alone is no output of the op. The compiler looks for
        # every new one among the outputs, and refuses the op if one is missing.
        if len(pending) > len(met):
            wanted = _unbacked(result).union(met)
            pending[:] = [symbol for symbol in pending if symbol in wanted]
    return result, tuple(world.loaded)


def _pending() -> list[Any]:
    """Symbols of numbers read from tensors that the compiler has not met yet; may be changed."""
    mode = detect_fake_mode()
    shape_env = None if mode is None else mode.shape_env
    return [] if shape_env is None else shape_env.pending_fresh_unbacked_symbols


def _unbacked(result: Any) -> set[Any]:
    """Symbols of what the sizes of the results depend on beside the inputs' sizes."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols  # it brings sympy

    kinds = (torch.Tensor, torch.SymInt, torch.SymFloat)
    found = [value for value in tree_leaves(result) if isinstance(value, kinds)]
    return set().union(*map(free_unbacked_symbols, found))


def loads(function: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[Loaded, ...]:
    """The calls that would load kernels, for the sizes that the compiler has before it.

    A function may choose its kernel by a size. Nothing of that may tie a graph to the size, as it
    would if the size were symbolic here. May raise whatever :func:`run` does.
    """
    sized = {name: _sized(value, concrete) for name, value in arguments.items()}
    return _run(function, sized, _call_with_copies)[1]


def needed(
    tell: Callable[[Mapping[str, Any]], tuple[Any, tuple[Loaded, ...]]],
    arguments: Mapping[str, Any],
) -> tuple[Loaded, ...]:
    """The calls that a real call makes to load kernels. Its tensors are not touched.

    Args:
        tell: runs the function in shadow.
        arguments: of the real call, by keyword.

    Nothing is known of a call that cannot be made in shadow.
    """
    with _disable_current_modes(), FakeTensorMode(allow_non_fake_inputs=True):
        try:
            return tell({name: _sized(value, int) for name, value in arguments.items()})[1]
        except Exception:
            return ()


def _sized(value: Any, number: Callable[[Any], Any]) -> Any:
    """An argument whose sizes are what ``number`` makes of them."""
    if isinstance(value, torch.SymInt):
        return number(value)
    if isinstance(value, (tuple, list)):
        items = (_sized(item, number) for item in value)
        return getattr(type(value), "_make", type(value))(items)
    if not isinstance(value, torch.Tensor):
        return value
    size, stride = map(number, value.size()), map(number, value.stride())
    options: Any = {"dtype": value.dtype, "device": value.device}
    return torch.empty_strided(tuple(size), tuple(stride), **options)


class _WithoutDevice(TorchFunctionMode):
    """Tensors without data lie where kernels want them, as freshly allocated ones do.

    A constant has its size and type alone: its data would be sent to the device.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options = dict(kwargs or {})
        if func is torch.Tensor.data_ptr:
            return 0
        if func in _OF_SOMETHING and len(args) == 1 and not options and args[0].numel() == 0:
            raise RuntimeError(f"{func.__name__}() of a tensor without elements")
        if func is torch.tensor and torch.device(options.get("device") or "cpu").type != "cpu":
            device = options.pop("device")
            made = func(*args, **options)
            return torch.empty(made.shape, dtype=made.dtype, device=device)
        return func(*args, **options)


class _World:
    """One shadow call: its copies, and what it would have loaded.

    A world lives for one call, so that no state that upstream keeps in a module (workspaces,
    caches) carries a fake tensor into the next.
    """

    def __init__(self) -> None:
        self.loaded: list[Loaded] = []
        self._globals: dict[int, _Globals] = {}
        self._copies: dict[int, tuple[object, Any]] = {}

    def translate(self, name: str, value: Any) -> Any:
        """What stands for ``value``, known as ``name``, in this world."""
        if type(value) in _PLAIN and name not in THRESHOLDS:
            return value
        # One of ours calls an op, whose fake would be asked for; its original allocates as well.
        value = _unlogged(original_of(value) or value)
        if isinstance(value, functools.partial):
            function = self.translate(name, value.func)
            return functools.partial(function, *value.args, **value.keywords)
        replaced = stand_in(name, value, self.loaded)
        if replaced is not None:
            return replaced
        if isinstance(value, types.FunctionType) and _is_upstream(value.__module__):
            return self._remember(value, lambda: self._copy(value))
        if isinstance(value, functools._lru_cache_wrapper):
            # Not cached: sizes may be symbolic, which cannot be hashed, and results may be fake.
            return recording(name, value, self.translate(name, value.__wrapped__), self.loaded)
        if isinstance(value, types.ModuleType) and _is_upstream(value.__name__):
            return _Module(self, value)
        if isinstance(value, type) and _is_upstream(value.__module__) and does_something(value):
            return self._remember(value, lambda: self._class(value))
        if isinstance(value, (dict, list, set)):
            return self._remember(value, lambda: self._contents(value))
        if type(value) is tuple:
            return tuple(self._item(item) for item in value)
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
            return self._remember(value, lambda: _without_data(value))
        return value

    def _contents(self, value: Any) -> Any:
        """A copy of a container: upstream's is not written into, and may hold functions."""
        kinds: dict[type, Callable[[], Any]] = {dict: _Table, set: _Set}
        kind = kinds.get(type(value))
        copied = kind() if kind else copy.copy(value)
        copied.clear()
        # In the table before it is filled, since it may hold itself.
        self._copies[id(value)] = (value, copied)
        if isinstance(value, dict):
            copied.update((key, self._item(item)) for key, item in value.items())
        elif isinstance(value, list):
            copied.extend(map(self._item, value))
        else:
            copied.update(map(self._item, value))
        return copied

    def _item(self, value: Any) -> Any:
        return self.translate(getattr(value, "__name__", ""), value)

    def _remember(self, original: Any, make: Callable[[], Any]) -> Any:
        known = self._copies.get(id(original))
        if known is None:
            known = self._copies[id(original)] = (original, make())
        return known[1]

    def _copy(self, function: types.FunctionType) -> types.FunctionType:
        namespace = self._globals.get(id(function.__globals__))
        if namespace is None:
            namespace = _Globals(self, function.__globals__)
            self._globals[id(function.__globals__)] = namespace
        closure = function.__closure__
        copied = types.FunctionType(
            function.__code__,
            namespace,
            function.__name__,
            function.__defaults__,
            None if closure is None else tuple(types.CellType() for _ in closure),
        )
        copied.__kwdefaults__ = function.__kwdefaults__
        copied.__module__ = function.__module__
        copied.__dict__.update(function.__dict__)
        # In the table before its cells are filled, since a cell may hold the function itself.
        self._copies[id(function)] = (function, copied)
        for new, old in zip(copied.__closure__ or (), closure or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty cell
                held = old.cell_contents
                new.cell_contents = self.translate(getattr(held, "__name__", ""), held)
        return copied

    def _class(self, value: type) -> type:
        def remember(copied: type) -> None:
            self._copies[id(value)] = (value, copied)

        return copy_class(value, self.translate, remember)

    def importing(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Any = (),
        level: int = 0,
    ) -> Any:
        """``__import__`` for functions that import while they run."""
        package = {"__package__": globals["__package__"]} if level and globals else None
        try:
            module = builtins.__import__(name, package, locals, fromlist, level)
        except ModuleNotFoundError as fault:
            # It comes with every build of torch for a GPU; without one no kernel runs anyway.
            if fault.name != "triton":
                raise
            return NO_KERNELS
        return self.translate(name, module)


class _Table(dict[Any, Any]):
    """A dict that also takes keys with symbolic numbers in them, which have no hash.

    Such a key is the same where its expressions are. Where upstream has stored others, one of them
    may be the same in numbers: then its TypeError is raised, as by any dict.
    """

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(_sought(key, self))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_hashable(key), value)

    def __contains__(self, key: Any) -> bool:
        return super().__contains__(_sought(key, self))

    def get(self, key: Any, default: Any = None) -> Any:
        """As a dict's."""
        return super().get(_sought(key, self), default)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """As a dict's."""
        return super().setdefault(_sought(key, self), default)


class _Set(set[Any]):
    """A set that takes such members, likewise."""

    def __contains__(self, member: Any) -> bool:
        return super().__contains__(_sought(member, self))

    def add(self, member: Any) -> None:
        """As a set's."""
        super().add(_hashable(member))


class _Expression(str):
    """What a key with symbolic numbers reads."""


def _hashable(key: Any) -> Any:
    if type(key) is str or not any(isinstance(part, torch.SymInt) for part in tree_leaves(key)):
        return key
    return _Expression(key)


def _sought(key: Any, stored: Collection[Any]) -> Any:
    found = _hashable(key)
    if found is not key and not all(isinstance(other, _Expression) for other in stored):
        hash(key)
    return found


class _Globals(dict[str, Any]):
    """The globals of a module, translated as they are looked up; what is set stays here.

    The interpreter looks up a function's globals by ``__getitem__`` where they are not exactly a
    dict. The body of a class within a function reads the dict itself, and an assignment writes
    into it: so the real values are stored too, and what was stored since is found.
    """

    def __init__(self, world: _World, real: dict[str, Any]) -> None:
        super().__init__(real)
        changed = {"__import__": world.importing, **symbolic.BUILTINS}
        super().__setitem__("__builtins__", vars(builtins) | changed)
        self._world = world
        self._real = real
        self._initial = dict(self)

    def __getitem__(self, name: str) -> Any:
        stored = self.get(name, _ABSENT)
        set_here = stored is not self._initial.get(name, _ABSENT)
        if not set_here and name in self._real and name != "__builtins__":
            return self._world.translate(name, self._real[name])
        if stored is _ABSENT:
            raise KeyError(name)
        return stored


class _Module(types.ModuleType):
    """A module of FlashInfer seen from the shadow world."""

    def __init__(self, world: _World, real: types.ModuleType) -> None:
        super().__init__(real.__name__)
        self.__dict__["_shadow"] = (world, real)

    def __getattr__(self, name: str) -> Any:
        world, real = self.__dict__["_shadow"]
        return world.translate(name, getattr(real, name))


def _without_data(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that upstream keeps in a module, as the active fake mode sees it."""
    mode = detect_fake_mode()
    return mode.from_tensor(tensor, static_shapes=True) if mode else tensor


def _unlogged(value: Any) -> Any:
    """The function within upstream's wrappers that log its calls, trace them or warn of them.

    A call in shadow is none: the real one is logged.
    """
    while isinstance(value, types.FunctionType) and hasattr(value, "__wrapped__"):
        if value.__globals__.get("__name__") != _LOGGING:
            break
        value = value.__wrapped__
    return value


def _is_upstream(module: str | None) -> bool:
    return (module or "").partition(".")[0] == _UPSTREAM


__all__ = ["Loaded", "UnknownLauncher", "loads", "needed", "run", "run_method"]
