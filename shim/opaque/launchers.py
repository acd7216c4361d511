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

    def init(self, *args: object, **kwargs: object) -> Any:
        """Of a loaded module: an object of its, with kernels of its own."""
        return self

    def get_workspace_size(self, *args: object, **kwargs: object) -> int:
        """What a kernel that does nothing needs."""
        return 0

    get_workspace_size_in_bytes = get_workspace_size


class _Giving(_Nothing):
    """A callable, module or class that gives more of the same: a spec, a builder, a type."""

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return _GIVING


class _Package(_Giving):
    """A module of a package that launches kernels; what it knows of cards by heart is true."""

    def __init__(self, real: types.ModuleType) -> None:
        self.__dict__["_real"] = real

    def __getattr__(self, name: str) -> Any:
        if name in _KNOWN_BY_HEART:
            return getattr(self.__dict__["_real"], name)
        return super().__getattr__(name)


class _Spec(_Nothing):
    """Stands for a JitSpec and for what makes one."""

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self

    def build_and_load(self, *args: object, **kwargs: object) -> _Nothing:
        """The loaded module: its kernels do nothing."""
        return _NOTHING

    def get_library_paths(self) -> tuple[str, ...]:
        """Of the libraries that a build leaves: none."""
        return ()


class _Launch:
    """A runner, run for what it loads and returns.

    Some ask their library for numbers to choose a tactic by. Nobody has those in shadow: that far
    they have come, and all that is left to them is to launch.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def __call__(self, inputs: Any, **options: Any) -> Any:
        try:
            return self._runner(inputs, **options)
        except TypeError:
            return None


class _Tuner:
    """Stands for upstream's AutoTuner: no call is timed, and none of its records is touched.

    Keys of records hold sizes, which may be symbolic. Which of the runners would run makes no
    difference to what is returned.
    """

    #: Likewise.
    is_tuning_mode = False

    @classmethod
    def get(cls) -> _Tuner:
        """The only one."""
        return _TUNER

    def choose_one(
        self, custom_op: str, runners: Any, tuning_config: Any, inputs: Any, **_: object
    ) -> tuple[Any, int]:
        """The first runner, with the tactic that every runner falls back to.

        Raises:
            IndexError: an input has no such dimension as is tuned for.
        """
        for spec in tuning_config.dynamic_tensor_specs:
            tuned = inputs[spec.input_idx[0]]
            if isinstance(tuned, torch.Tensor):
                tuned.shape[spec.dim_idx[0]]
        return _Launch(runners[0]), -1

    def get_effective_map_to_tuning_buckets(self, config: Any, spec_idx: int = 0) -> Any:
        """The mapping without the overrides of a tuning run."""
        return config.dynamic_tensor_specs[spec_idx].map_to_tuning_buckets


_TUNER = _Tuner()


class _IntoLast:
    """A runner that works on streams of its own: into the last of its inputs, which it returns."""

    tuning_config = types.SimpleNamespace(dynamic_tensor_specs=())

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Whatever it is configured by."""

    def __call__(self, inputs: Any, **options: object) -> Any:
        return inputs[-1]


class _GivingNothing(_Nothing):
    """Builds a kernel that does nothing."""

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return _NOTHING


_GIVING_NOTHING = _GivingNothing()
_NOTHING = _Nothing()
_GIVING = _Giving()
_SPEC = _Spec()


def _workspace(name: str, size: int | None, device: torch.device, *_: object, **__: object) -> Any:
    # Upstream keeps these for ever, by name and device; in shadow nothing may be kept. A size that
    # a kernel's module would have told is None.
    return torch.empty((0 if size is None else size,), dtype=torch.uint8, device=device)


def _no_draw(*_: object, **__: object) -> tuple[int, int]:
    """Stands for what takes a seed and an offset from a generator, and moves it on."""
    return 0, 0


#: JIT C++ modules: the functions that write sources and make the JitSpec.
_SPEC_MAKER = re.compile(r"gen_\w+")
#: JIT C++ modules: upstream's cached getters of the loaded module.
_MODULE_GETTER = re.compile(r"_?get_\w*module\w*")
#: JIT C++ modules: functions that build one and load it.
_MODULE_LOADER = re.compile(r"load_\w+_module")
#: CuTe DSL: upstream's cached getters of the compiled kernel. Cake: of the loaded program.
_KERNEL_GETTER = re.compile(
    r"_get_compiled_\w+|_compile_\w+|_?get_\w*_kernel\w*|load|load_\w+_module|_op"
)
#: CuTe DSL: classes of kernels, which also choose how one is launched, by sizes.
_KERNEL_CLASS = re.compile(r"\w+Kernel|CuteDslSm\w+Op")
#: CuTe DSL: classes of the autotuner's runners that write into the last of their inputs.
_RUNNER_CLASS = re.compile(r"CuteDsl\w*FusedMoE\w*Runner")
#: Cake: classes whose instances are the programs, and what loads one.
_PROGRAMS = frozenset({"CakeProgram"})
_PROGRAM_LOADERS = frozenset({"entry", "load"})
#: Functions of those packages that compute a number from the name of a card.
_KNOWN_BY_HEART = frozenset({"get_smem_capacity_in_bytes"})
#: CuTe DSL: what builds or loads one kernel.
_BUILDERS = frozenset(
    {"build_and_load_cute_dsl_kernel", "compiled_kernel", "_prepare_weight_views"}
)
#: CuTe DSL: functions that launch all kernels of a pipeline, and return the output that they are
#: given by this name.
_PIPELINES = {"launch_sm120_moe": "scatter_output"}
#: DeepGEMM: the functions that describe their tensors to the card, by addresses, and launch.
_DEEP_GEMM = re.compile(r"m_grouped_\w+_sm\w+")
#: Functions that prepare a loaded library.
_SETUPS = frozenset({"setup_cubin_loader"})
_WORKSPACES = frozenset({"_get_cache_buf", "_get_stream_cache_buf"})
_DRAWS = frozenset({"get_seed_and_offset"})
#: Functions that compile a kernel and launch it on two outputs that they are given.
_COMPILERS = frozenset({"cute_dsl_radix_filter_topk_wrapper"})
#: Functions that ask a loaded module whether it can serve a call. In shadow it can: the real call
#: will say it if not.
_CAN = frozenset({"can_implement_filtered_topk"})
#: Functions that choose among kernels by sizes, which makes no difference to what is returned.
_CHOOSER = re.compile(
    r"is_\w+_beneficial|get_fast_topk_clusters|_top_k_varlen_heuristic|_radix_get_chunk_config"
    r"|select_tile"
)


def stand_in(name: str, value: Any, loaded: list[Loaded]) -> Any | None:
    """What stands for ``value``, known as ``name``; None where it is itself or a copy of it.

    Calls of kernel getters are added to ``loaded``.
    """
    package = _package(value)
    if package == "flashinfer":
        return _upstream_stand_in(name, value, loaded)
    if package in _KERNEL_PACKAGES and name not in _KNOWN_BY_HEART:
        return _Package(value) if isinstance(value, types.ModuleType) else _GIVING
    if (
        package is None
        or package in _HARMLESS | _KERNEL_PACKAGES
        or package in sys.stdlib_module_names
    ):
        return None
    return _Refusing(package, name)


def _upstream_stand_in(name: str, value: Any, loaded: list[Loaded]) -> Any | None:
    if name in _WORKSPACES:
        return _workspace
    if name in _DRAWS:
        return _no_draw
    if name in _COMPILERS:
        return lambda *args, **kwargs: (None, None)
    if name in _CAN:
        return lambda: True
    if name in _SETUPS or _DEEP_GEMM.fullmatch(name):
        return _NOTHING
    if name in _BUILDERS:
        return _GIVING_NOTHING
    if name in _PIPELINES:
        return lambda **arguments: arguments[_PIPELINES[name]]
    if name == "AutoTuner":
        return _Tuner
    if type(value).__name__ in _PROGRAMS:
        return _Program(value, loaded)
    if isinstance(value, type) and _KERNEL_CLASS.fullmatch(name):
        return _GIVING
    if isinstance(value, type) and _RUNNER_CLASS.fullmatch(name):
        return _IntoLast
    if not isinstance(value, (types.FunctionType, functools._lru_cache_wrapper)):
        return None
    if _SPEC_MAKER.fullmatch(name):
        return _SPEC
    if _CHOOSER.fullmatch(name):
        return _choosing(value)
    cached = isinstance(value, functools._lru_cache_wrapper)
    if cached and _KERNEL_GETTER.fullmatch(name):
        return _recording(value, loaded, lambda *args, **kwargs: _gotten(value))
    # What a cached getter calls; the getter is noted.
    return _GIVING_NOTHING if _MODULE_LOADER.fullmatch(name) else None


def _choosing(chooser: Callable[..., Any]) -> Callable[..., Any]:
    def choosing(*args: Any, **kwargs: Any) -> Any:
        return chooser(*map(concrete, args), **{k: concrete(v) for k, v in kwargs.items()})

    return choosing


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
    """A value with the numbers that the compiler has before it; no graph is tied to them."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.hint
    if isinstance(value, (tuple, list)):
        return getattr(type(value), "_make", type(value))(map(concrete, value))
    if not isinstance(value, torch.Tensor):
        return value
    size, stride = map(concrete, value.size()), map(concrete, value.stride())
    return value.new_empty_strided(tuple(size), tuple(stride))


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
