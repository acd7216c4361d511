"""What launches kernels, by the ways in which FlashInfer does it, and what stands for it in shadow.

Each way is one entry. A callable from a package that is on no list here is refused when it is
called, since nobody knows what it does with a tensor that has no data.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

#: Packages whose code runs in shadow as it is: they compute with fake tensors or with none.
_HARMLESS = frozenset({"torch", "numpy", "packaging", "einops", "typing_extensions", "tqdm"})
#: Packages that compile or launch kernels; upstream reaches them in the functions listed below,
#: and what little else it does with them (types, streams, pointers) concerns kernels alone.
_KERNEL_PACKAGES = frozenset({"cutlass", "cuda", "triton", "cudnn", "tvm_ffi", "pynvml"})


class UnknownLauncher(RuntimeError):
    """A function cannot be run in shadow: what it calls is on no list of launchers."""


@dataclass(frozen=True)
class Loaded:
    """One call that loads a kernel module or compiles a kernel, when made for real.

    ``getter`` is upstream's own cached function, ``args`` and ``kwargs`` what it was called with.
    """

    getter: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]


class _Nothing:
    """Takes any attribute, index or call, and does nothing; a kernel call returns None."""

    #: By its indices alone it would be a sequence without end.
    __iter__ = None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *args: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, index: object) -> Any:
        return self

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return None


class _Giving(_Nothing):
    """A callable, module or class that gives more of the same: a spec, a builder, a type."""

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return _GIVING


class _Spec(_Nothing):
    """Stands for a JitSpec and for what makes one."""

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self

    def build_and_load(self, *args: object, **kwargs: object) -> _Nothing:
        """The loaded module: its kernels do nothing."""
        return _NOTHING


_NOTHING = _Nothing()
_GIVING = _Giving()
_SPEC = _Spec()


def _workspace(name: str, size: int, device: torch.device, *_: object, **__: object) -> Any:
    # Upstream keeps these for ever, by name and device; in shadow nothing may be kept.
    return torch.empty((size,), dtype=torch.uint8, device=device)


#: JIT C++ modules: the functions that write sources and make the JitSpec.
_SPEC_MAKER = re.compile(r"gen_\w+")
#: JIT C++ modules: upstream's cached getters of the loaded module.
_MODULE_GETTER = re.compile(r"_?get_\w*module\w*")
#: CuTe DSL: upstream's cached getters of the compiled kernel. Cake: of the loaded program.
_KERNEL_GETTER = re.compile(
    r"_get_compiled_\w+|_compile_\w+|_?get_\w*_kernel\w*|load|load_\w+_module"
)
#: CuTe DSL: classes of kernels, which also choose how one is launched, by sizes.
_KERNEL_CLASS = re.compile(r"\w+Kernel")
#: Cake: classes whose instances are the programs, and what loads one.
_PROGRAMS = frozenset({"CakeProgram"})
_PROGRAM_LOADERS = frozenset({"entry", "load"})
_WORKSPACES = frozenset({"_get_cache_buf", "_get_stream_cache_buf"})


def stand_in(name: str, value: Any, loaded: list[Loaded]) -> Any | None:
    """What stands for ``value``, known as ``name``; None where it is itself or a copy of it.

    Calls of kernel getters are added to ``loaded``.
    """
    package = _package(value)
    if package == "flashinfer":
        return _upstream_stand_in(name, value, loaded)
    if package in _KERNEL_PACKAGES:
        return _GIVING
    if package is None or package in _HARMLESS or package in sys.stdlib_module_names:
        return None
    return _Refusing(package, name)


def _upstream_stand_in(name: str, value: Any, loaded: list[Loaded]) -> Any | None:
    if name in _WORKSPACES:
        return _workspace
    if type(value).__name__ in _PROGRAMS:
        return _Program(value, loaded)
    if isinstance(value, type) and _KERNEL_CLASS.fullmatch(name):
        return _GIVING
    if not isinstance(value, (types.FunctionType, functools._lru_cache_wrapper)):
        return None
    if _SPEC_MAKER.fullmatch(name):
        return _SPEC
    cached = isinstance(value, functools._lru_cache_wrapper)
    if cached and _KERNEL_GETTER.fullmatch(name):
        return _recording(value, loaded, lambda *args, **kwargs: _gotten(value))
    return None


def _gotten(getter: Any) -> Any:
    """What a kernel getter returns: a kernel, often with numbers of its launch beside it."""
    annotation = inspect.signature(getter, eval_str=True).return_annotation
    if typing.get_origin(annotation) is not tuple:
        return _NOTHING
    return tuple(1 if kind is int else _NOTHING for kind in typing.get_args(annotation))


class _Program:
    """A program of Cake whose kernels do nothing; all that it tells of itself is true."""

    def __init__(self, real: Any, loaded: list[Loaded]) -> None:
        self.__dict__["_real"] = (real, loaded)

    def __getattr__(self, name: str) -> Any:
        real, loaded = self.__dict__["_real"]
        if name not in _PROGRAM_LOADERS:
            return getattr(real, name)

        def load(target: str) -> Any:
            # Upstream's own cached function, which says later whether it was called.
            getter = vars(sys.modules[type(real).__module__])["_load"]
            loaded.append(Loaded(getter, (real, target), ()))
            return _NOTHING

        return load


def recording(
    name: str, getter: object, call: Callable[..., Any], loaded: list[Loaded]
) -> Callable[..., Any]:
    """``call``, the shadow of the cached ``getter``, noted in ``loaded`` if it loads a module."""
    if not _MODULE_GETTER.fullmatch(name):
        return call
    return _recording(getter, loaded, call)


def _recording(
    getter: object, loaded: list[Loaded], call: Callable[..., Any]
) -> Callable[..., Any]:
    def recorded(*args: Any, **kwargs: Any) -> Any:
        named = tuple((name, concrete(value)) for name, value in kwargs.items())
        loaded.append(Loaded(getter, tuple(map(concrete, args)), named))
        return call(*args, **kwargs)

    return recorded


def concrete(value: Any) -> Any:
    """What the compiler has before it, for a symbolic number; no graph is tied to it."""
    symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return value.node.hint if isinstance(value, symbolic) else value


class _Refusing:
    """Something of an unknown package: may be passed about and looked into, not called."""

    def __init__(self, package: str, name: str) -> None:
        self.__dict__["_what"] = (package, name)

    def __getattr__(self, name: str) -> Any:
        package, path = self.__dict__["_what"]
        return _Refusing(package, f"{path}.{name}")

    def __call__(self, *args: object, **kwargs: object) -> Any:
        package, path = self.__dict__["_what"]
        raise UnknownLauncher(
            f"{path} of the package {package} was called, and nothing is known of what it launches"
        )


def _package(value: Any) -> str | None:
    """The top-level package that a function, class, module or kernel object comes from."""
    kind = type(value).__module__.partition(".")[0]
    if kind in _KERNEL_PACKAGES:  # a kernel, which calls itself of the module that it stands in
        return kind
    if isinstance(value, types.ModuleType):
        origin: Any = value.__name__
    elif type(value).__name__ in _PROGRAMS:
        origin = type(value).__module__
    elif callable(value):
        origin = getattr(value, "__module__", None) or getattr(type(value), "__module__", None)
    else:
        return None
    return origin.partition(".")[0] if isinstance(origin, str) else None
