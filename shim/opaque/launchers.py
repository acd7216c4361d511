"""What launches kernels, by the ways in which FlashInfer does it, and what stands for it in shadow.

Each way is one entry. A callable from a package that is on no list here is refused when it is
called, since nobody knows what it does with a tensor that has no data.
"""

from __future__ import annotations

import dataclasses
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
_HARMLESS = frozenset(
    {"torch", "numpy", "packaging", "einops", "typing_extensions", "tqdm", "typeguard"}
)
#: Packages that compile or launch kernels; upstream reaches them in the functions listed below,
#: and what little else it does with them (types, streams, pointers) concerns kernels alone.
_KERNEL_PACKAGES = frozenset({"cutlass", "cuda", "triton", "cudnn", "tvm_ffi", "pynvml"})


class UnknownLauncher(RuntimeError):
    """A function cannot be run in shadow: what it calls is on no list of launchers."""


@dataclass(frozen=True)
class Loaded:
    """One call that loads a kernel module or compiles a kernel, when made for real.

    ``getter`` is upstream's own cached function, ``args`` and ``kwargs`` what it was called with.
    ``tuned``: by the runner that upstream's AutoTuner falls back to; by its records it may choose
    another.
    """

    getter: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    tuned: bool = False

    def __str__(self) -> str:
        named = (f"{name}={value!r}" for name, value in self.kwargs)
        name = getattr(self.getter, "__name__", self.getter)
        return f"{name}({', '.join([*map(repr, self.args), *named])})"


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

    def max_active_clusters(self, *args: object, **kwargs: object) -> int:
        """What else some tell, to choose how they are launched and to size their scratch by."""
        return 1

    decode_row_sel_keys = decode_long_words = ctas_per_sm = max_active_clusters


class _Kept(_Nothing):
    """Where compiled kernels are kept, with constants for them: all is there already."""

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: object) -> Any:
        return _NOTHING

    def get(self, key: object, default: object = None) -> Any:
        """As a dict's."""
        return _NOTHING

    def __setitem__(self, key: object, value: object) -> None:
        """It would be kept for ever."""


class _Giving(_Nothing):
    """A callable, module or class that gives more of the same: a spec, a builder, a type.

    Or a number that only those know who compile kernels: of computing with it comes another.
    """

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return _GIVING

    def __int__(self) -> int:
        return 0

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __call__
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __neg__ = __call__

    def __lt__(self, other: object) -> bool:
        return False

    __le__ = __gt__ = __ge__ = __lt__


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

    def __init__(self, runner: Any, loaded: list[Loaded]) -> None:
        self._runner = runner
        self._loaded = loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def __call__(self, inputs: Any, **options: Any) -> Any:
        before = len(self._loaded)
        try:
            return self._runner(inputs, **options)
        except TypeError as fault:
            # A kernel that does nothing returns None where such a number is wanted.
            if "NoneType" not in str(fault):
                raise
            return None
        finally:
            mine = [dataclasses.replace(load, tuned=True) for load in self._loaded[before:]]
            self._loaded[before:] = mine


class _Tuner:
    """Stands for upstream's AutoTuner: no call is timed, and none of its records is touched.

    Keys of records hold sizes, which may be symbolic. Which of the runners would run makes no
    difference to what is returned.
    """

    #: In shadow nothing is tuned.
    is_tuning_mode = False

    def __init__(self, loaded: list[Loaded]) -> None:
        self._loaded = loaded

    def get(self) -> _Tuner:
        """The only one."""
        return self

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
        return _Launch(runners[0], self._loaded), -1

    def get_effective_map_to_tuning_buckets(self, config: Any, spec_idx: int = 0) -> Any:
        """The mapping without the overrides of a tuning run."""
        return config.dynamic_tensor_specs[spec_idx].map_to_tuning_buckets


class _Alone:
    """``torch.distributed`` where no other rank is: its collectives do nothing."""

    def __init__(self, real: types.ModuleType) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return _NOTHING if _COLLECTIVE.fullmatch(name) else getattr(self._real, name)


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
#: A module of kernels that cannot be imported.
NO_KERNELS = _NOTHING
_GIVING = _Giving()
_KEPT = _Kept()
_SPEC = _Spec()


def _workspace(name: str, size: int | None, device: torch.device, *_: object, **__: object) -> Any:
    # Upstream keeps these for ever, by name and device; in shadow nothing may be kept. A size that
    # a kernel's module would have told is None.
    return torch.empty((0 if size is None else size,), dtype=torch.uint8, device=device)


def _decoded(q: torch.Tensor, v: torch.Tensor, output: Any = None, **_: object) -> Any:
    return v.new_empty(v.shape, dtype=q.dtype) if output is None else output


def _prefilled(
    q: torch.Tensor,
    v: torch.Tensor,
    initial_state: Any,
    output_final_state: bool,
    cu_seqlens: Any,
    output: Any,
    state_checkpoints: Any = None,
    checkpoint_every_n_tokens: int = 0,
    **_: object,
) -> tuple[Any, ...]:
    """Output, state and checkpoints: the state is the one given, if any, advanced in place."""
    state = None
    if output_final_state and initial_state is None:
        number = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        state = q.new_empty((number, v.shape[2], v.shape[3], q.shape[3]), dtype=torch.bfloat16)
    elif output_final_state:
        state = initial_state
    result = (torch.empty_like(v) if output is None else output, state)
    return (*result, state_checkpoints) if checkpoint_every_n_tokens else result


def _advanced(*_: object, final_state: Any = None, **__: object) -> Any:
    """Of cuDNN's graphs for linear attention: the state, which they write into."""
    return final_state


def _no_draw(*_: object, **__: object) -> tuple[int, int]:
    """Stands for what takes a seed and an offset from a generator, and moves it on."""
    return 0, 0


#: Functions of ``torch.distributed`` that wait for other ranks.
_COLLECTIVE = re.compile(
    r"all_(?:gather|reduce|to_all)\w*|reduce\w*|(?:broadcast|gather|scatter)\w*|\w*barrier"
)
#: JIT C++ modules: the functions that write sources and make the JitSpec.
_SPEC_MAKER = re.compile(r"gen_\w+")
#: JIT C++ modules: upstream's cached getters of the loaded module.
_MODULE_GETTER = re.compile(r"_?get_\w*module\w*")
#: JIT C++ modules, and programs of Cake: functions that build one and load it, with a cache of
#: their own or none.
_MODULE_LOADER = re.compile(r"load_\w+_module|_load_cake_\w+_program")
#: CuTe DSL: upstream's cached getters of the compiled kernel. Cake: of the loaded program.
_KERNEL_GETTER = re.compile(
    r"_get_compiled_\w+|_compile_\w+|_?get_\w*_kernel\w*|load|_?load_\w+_(?:module|kernel|program)"
    r"|_op"
    r"|cake_\w+_launcher"
    r"|get_cake_\w+_module"
)
#: CuTe DSL: cached getters of a dictionary that the kernel is put into when it is compiled.
_KEEPER = re.compile(r"_get_compiled_(?:decode|mtp)_kernel\w*")
#: CuTe DSL: functions that compile a kernel, and launch it on what they are given.
_LAUNCHER = re.compile(
    r"run_(?:pretranspose|nontranspose|mtp)_decode|_?(?:cp|chunk)_\w*delta_rule\w*_sm\d+"
)
#: Functions that run a prefill of KDA, by whatever program: all return the same.
_KDA_PREFILL = re.compile(r"_run_\w*kda_prefill|_run_(?:persistent|tirx|ptx)_kda")
#: Functions that ask whether tensors share memory, by addresses, which nothing has in shadow.
_OVERLAPS = re.compile(r"_storage_ranges_overlap|_overlaps_range|_check_sm120_output_overlaps")
#: Functions that refuse such tensors.
_REFUSE_OVERLAPS = frozenset({"_disjoint", "_check_output_does_not_overlap_inputs"})
#: Functions in torch that write into what they are given, and do nothing else.
_WRITERS = frozenset({"_scatter_live_rows"})
#: Functions that launch a kernel made for this size, if there is one; None if not.
_SPECIALIZED = frozenset({"try_run_gdn_fused_decode_specialized"})
#: CuTe DSL: those that keep constants for each size, and allocate what they return.
_DECODER = re.compile(r"_gated_delta_rule_\w*bf16_state(?:_mtp)?|_gated_delta_rule_t1_rubin")
#: CuTe DSL: caches of compiled kernels by what they were compiled for, which may be sizes.
_KERNEL_CACHE = re.compile(r"\w*_compile_cache")
#: CuTe DSL: classes of kernels, which also choose how one is launched, by sizes.
_KERNEL_CLASS = re.compile(r"\w+Kernel|BlockSparseAttn\w+|CuteDslSm\w+Op")
#: CuTe DSL: classes of the autotuner's runners that write into the last of their inputs.
_RUNNER_CLASS = re.compile(r"CuteDsl\w*FusedMoE\w*Runner")
#: Cake: classes whose instances are the programs, and what loads one.
_PROGRAMS = frozenset({"CakeProgram"})
_PROGRAM_LOADERS = frozenset({"entry", "load"})
#: Functions of those packages that compute a number from the name of a card.
_KNOWN_BY_HEART = frozenset({"get_smem_capacity_in_bytes"})
#: CuTe DSL: what builds or loads one kernel.
_BUILDERS = frozenset(
    {
        "build_and_load_cute_dsl_kernel",
        "_get_grouped_compiled",
        "compiled_kernel",
        "_prepare_weight_views",
    }
)
#: CuTe DSL: functions that launch all kernels of a pipeline, and return the output that they are
#: given by this name.
_PIPELINES = {"launch_sm120_moe": "scatter_output"}
#: Sizes from which on another kernel is launched: with none, no graph ends there.
THRESHOLDS = frozenset({"ONE_WARP_MIN_SEQUENCE_HEADS"})
#: Grouped products, DeepGEMM's and others: the functions that describe their tensors to the card,
#: by addresses, and launch.
_GROUPED_GEMM = re.compile(r"(m_grouped|grouped_gemm)_\w+_sm\w+")
#: Functions that prepare a loaded library.
_SETUPS = frozenset({"setup_cubin_loader"})
_WORKSPACES = frozenset({"_get_cache_buf", "_get_stream_cache_buf"})
#: Where workspaces are kept for ever, by device; in shadow nothing is.
_KEPT_BY_DEVICE = frozenset({"_WORKSPACES"})
_DRAWS = frozenset({"get_seed_and_offset"})
#: cuTile: functions that time a kernel for the sizes at hand, or take the fastest, and launch it.
#: PrimsTS: the function that does so.
_TUNED_LAUNCH = re.compile(r"_(masked|ragged)\w*_bmm_(\w*autotune\w*|launch)|launch_dense_gemm")
#: All that launch by themselves.
_LAUNCHERS = (_GROUPED_GEMM, _TUNED_LAUNCH, _LAUNCHER)
#: Functions that compile a kernel and launch it on two outputs that they are given.
_COMPILERS = frozenset({"cute_dsl_radix_filter_topk_wrapper"})
#: Functions that ask a loaded module whether it can serve a call. In shadow it can: the real call
#: will say it if not.
_CAN = frozenset({"can_implement_filtered_topk"})
#: PrimsTS: functions that look for a kernel in tables, whose caches the shadow goes without.
_LOOKUP = re.compile(r"is_prims_ts_\w+_supported")
#: Functions that choose among kernels by sizes, which makes no difference to what is returned.
_CHOOSER = re.compile(
    r"is_\w+_beneficial|get_fast_topk_clusters|_top_k_varlen_heuristic|_radix_get_chunk_config"
    r"|select_tile"
    r"|_proxy_split_k\w*|_decode_num_chunks|dense_route_available|served_route|route_stages"
    r"|resolve_route|next_n_atoms|atom_variant|_num_splits"
    r"|_should_use_oneshot"
    r"|paged_route_\w+|paged_call_withdrawn|paged_static_preferred|paged_sched_meta_admitted"
    r"|_admits|_selects|select_record"
    r"|get_(?:tile_v|vec_size)_mtp|select_cake_\w+_variant|should_use_\w+_host"
    r"|select_cake_\w+_template|(fp8|nvfp4)_blackwell_\w+"
    r"|_use_cuda_norm|_dsl_captured_arch|\w*cute_dsl_supports_arch"
    r"|_prefill_(?:block_t|workspace_size)|_select_kernel_schedule"
    r"|_backend_order|_plan_head_group|_plan_grid"
)


def stand_in(name: str, value: Any, loaded: list[Loaded]) -> Any | None:
    """What stands for ``value``, known as ``name``; None where it is itself or a copy of it.

    Calls of kernel getters are added to ``loaded``.
    """
    if name in THRESHOLDS:
        return 0
    if name in _KEPT_BY_DEVICE:
        return {}
    if _KERNEL_CACHE.fullmatch(name) and not callable(value):
        return _KEPT
    package = _package(value)
    if isinstance(value, types.ModuleType) and value.__name__ == "torch.distributed":
        return _Alone(value)
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
    if _LOOKUP.fullmatch(name):
        return lambda *args, **kwargs: (True, "")
    if name in _SETUPS | _REFUSE_OVERLAPS | _WRITERS | _SPECIALIZED or any(
        pattern.fullmatch(name) for pattern in _LAUNCHERS
    ):
        return _NOTHING
    if _DECODER.fullmatch(name):
        return _decoded
    if _KDA_PREFILL.fullmatch(name):
        return _prefilled
    if name == "_run_la_graph":
        return _advanced
    if _OVERLAPS.fullmatch(name):
        return lambda *args, **kwargs: False
    if name in _BUILDERS:
        return _GIVING_NOTHING
    if name in _PIPELINES:
        return lambda **arguments: arguments[_PIPELINES[name]]
    if name == "AutoTuner":
        return _Tuner(loaded)
    if type(value).__name__ in _PROGRAMS:
        return _Program(value, loaded)
    if isinstance(value, type):
        return _class_stand_in(name, value)
    if not isinstance(value, (types.FunctionType, functools._lru_cache_wrapper)):
        return None
    if _SPEC_MAKER.fullmatch(name):
        return _SPEC
    if _CHOOSER.fullmatch(name):
        return _choosing(value)
    cached = isinstance(value, functools._lru_cache_wrapper)
    if cached and _KEEPER.fullmatch(name):
        return lambda *args, **kwargs: _KEPT
    if cached and _KERNEL_GETTER.fullmatch(name):
        return _recording(value, loaded, lambda *args, **kwargs: _gotten(value))
    return _GIVING_NOTHING if _MODULE_LOADER.fullmatch(name) else None


def _class_stand_in(name: str, value: type) -> Any | None:
    for_kernels = any(_package(base) in _KERNEL_PACKAGES for base in value.__bases__)
    if for_kernels or _KERNEL_CLASS.fullmatch(name):
        return _GIVING
    return _IntoLast if _RUNNER_CLASS.fullmatch(name) else None


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


def loads_module(load: Loaded) -> bool:
    """Whether the call loads a C++ module, which upstream builds from files; else, a kernel."""
    return bool(_MODULE_GETTER.fullmatch(getattr(load.getter, "__name__", "")))


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
