"""Kernels that compute nothing, so that FlashInfer's own Python runs on CPU tensors. In children.

What is replaced launches kernels (C++ modules, CuTe DSL, cuda.tile, Triton) or asks a device that
is not there. Every other line that runs is upstream's.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import itertools
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from types import FrameType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import oracle
import torch
from ops_making import tensors_of
from torch._subclasses import FakeTensor
from torch.overrides import TorchFunctionMode

from shim.opaque.declare import Op
from shim.opaque.later import NAMESPACE
from shim.patches.ops import OPS

#: What ``pretend`` is told, from what FlashInfer is: ``10.0`` of ``10.0a``.
ARCH = os.environ["FLASHINFER_CUDA_ARCH_LIST"].rstrip("af")

#: Functions of upstream that write the sources of a module, fetch its cubins, or launch a kernel
#: by the addresses of its tensors.
MAKERS = re.compile(r"gen_\w+|setup_cubin_loader|(m_grouped|grouped_gemm)_\w+_sm\w+")

#: Cached functions of Cake that build a module and load it.
LOADERS = re.compile(r"load|load_\w+_module|_load_module")

#: Modules of FlashInfer that are imported when their kernels are called.
TRITON_KERNELS = (
    "flashinfer.triton.gemm",
    "flashinfer.triton.page",
    "flashinfer.triton.ulysses",
    "flashinfer.triton.gdn_paged",
)
#: Such of which some need NVIDIA's packages, and some are not in every release.
LATE_KERNELS = (
    "flashinfer.jit.bgmv_moe",
    "flashinfer.experimental.nvfp4_sparse_mla_decode.backend",
    "flashinfer.experimental.sm120_dsa_indexer",
    "flashinfer.experimental.qsa_nvfp4.backend",
    "flashinfer.experimental.cake_msa_icp_indexer.cake_jit",
    "flashinfer.experimental.cake_stepfun_moe.cake_jit",
    "flashinfer.experimental.kimi_k3_fp8_projection.cake_backend",
    "flashinfer.experimental.cake_moe_grouped_det_gemm.cake_backend",
    "flashinfer.fused_moe.cute_dsl.blackwell_sm12x.triton_compact",
    "flashinfer.gemm.kernels.grouped_gemm_contiguous_blackwell",
)
#: Those that need Triton when they are imported, and what they import when they are called.
IN_TRITON = (
    "flashinfer.mamba.ssd_combined",
    "flashinfer.mamba.cake_ssd_combined",
    "flashinfer.fused_moe.cute_dsl",
)

#: What modules of kernels tell of themselves.
COUNTS = ("max_active_clusters", "decode_row_sel_keys", "decode_long_words", "ctas_per_sm")

#: The constant that kernels write, one that every dtype has.
WRITTEN = 1


class Made(oracle.Stub):
    """What a kernel returns: where upstream's Python passes it on, nobody here knows what it is."""

    #: By its indices alone it would be a sequence without end.
    __iter__ = None


class Kernel(oracle.Stub):
    """A kernel, or a module of them: counts its calls and writes what upstream says it writes.

    Attributes:
        calls: how many kernels ran in this process.
        writing: whether they write.
    """

    calls = 0
    writing = False

    #: By its indices alone it would be a sequence without end.
    __iter__ = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Kernel(name)

    def __getitem__(self, key: Any) -> Any:
        return self

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self.__name__ == "compile":
            return Kernel("compiled")
        if len(args) == 1 and inspect.isfunction(args[0]):
            return Kernel(args[0].__name__)  # what a decorator makes of it
        if self.__name__ == "init":
            return Kernel("object")  # of the module's, with kernels of its own
        if "workspace_size" in self.__name__:
            return 0
        if self.__name__ == "cdiv":  # of Triton, called on the host too
            return -(-args[0] // args[1])
        if self.__name__ in COUNTS:
            return 1
        # A compiled kernel may be given pointers alone.
        if self.__name__ != "compiled" and not tensors_of([*args, *options.values()]):
            return Kernel("part")  # a step on the way to a kernel
        Kernel.calls += 1
        if Kernel.writing:
            for tensor in _written(sys._getframe(1)):
                fill(tensor, WRITTEN)
        return Made("result")


Kernel.__module__ = "tvm_ffi.tests"  # to the shadow it is a kernel like any other


class Still:
    """A stream or an event, where there is no device to have any."""

    cuda_stream = 0
    device = torch.device("cuda", 0)

    def __init__(self, *args: Any, **options: Any) -> None:
        """Of whatever device."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: None


class Card:
    """What CuTe DSL knows of a card, by a driver that is not there."""

    def __init__(self, *args: Any) -> None:
        """Of whatever number."""

    def get_max_active_clusters(self, *args: Any) -> int:
        """As many as ``oracle`` says."""
        return 74

    def get_device_multiprocessor_count(self) -> int:
        """As many as ``oracle`` says."""
        return 148


class TritonFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets Triton, which does not come with a CPU build of torch, be imported as kernels."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "triton":
            return None
        self.found.add(fullname)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        made = Kernel(spec.name)
        vars(made)["__version__"] = "3.6.0"
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


class OnTheDevice(TorchFunctionMode):
    """Within it CPU tensors say that they are on a GPU, as upstream's functions ask for."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _ANSWERED:
            return _ANSWERED[func](*args, **(kwargs or {}))
        if isinstance(func, torch._ops.OpOverload) and func.namespace == NAMESPACE:
            return func(*args, **(kwargs or {}))  # a word that says cuda is a backend there
        named = {name: _on_cpu(value) for name, value in (kwargs or {}).items()}
        result = func(*map(_on_cpu, args), **named)
        unwritten = func in _UNWRITTEN and not isinstance(result, FakeTensor)
        if unwritten and (Kernel.writing or result.dtype == torch.int32):
            # The same every time, so that runs can be compared; and upstream may go by an index.
            fill(result, 0)
        return result


def _on_cpu(value: Any) -> Any:
    is_cuda = isinstance(value, (torch.device, str)) and str(value).startswith("cuda")
    return torch.device("cpu") if is_cuda else value


_tensor: Any = torch.Tensor
_ANSWERED: Mapping[object, Callable[..., Any]] = {
    _tensor.device.__get__: lambda tensor, *_: torch.device("cuda", 0),
    _tensor.is_cuda.__get__: lambda *_: True,
    _tensor.cuda: lambda tensor, *_: tensor,
    torch.device: torch.device,
}
_UNWRITTEN: Collection[object] = (
    *(torch.empty, torch.empty_like, torch.empty_strided),
    *(_tensor.new_empty, _tensor.new_empty_strided),
)


def fill(tensor: torch.Tensor, value: int) -> None:
    """Set all elements; of formats that torch cannot compute with, all bytes."""
    is_small = tensor.is_floating_point() and tensor.dtype.itemsize == 1
    (tensor.view(torch.uint8) if is_small else tensor).fill_(value)


def answer_for_the_machine() -> None:
    """Say what is there beside FlashInfer's Python, and what is not.

    CUDA's runtime library is, and cuDNN, and the compiler of cuda.tile where that is installed. The
    list of Cake's kernels lies among C++ sources, which our trees lack: it is empty.
    """
    with contextlib.suppress(ModuleNotFoundError), with_triton():
        _import_comm()
    _import_late(IN_TRITON)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("flashinfer.cudnn.linear_attention")
        _answer("_check_cudnn_frontend", lambda *args, **options: None)
    with contextlib.suppress(ModuleNotFoundError):
        cake: Any = importlib.import_module("flashinfer.jit.cake_gdn")
        cake._manifest = functools.cache(lambda: {"variants": []})
    if _is_installed("cuda.tile"):
        _answer("is_cuda_tile_available", lambda *args, **options: True)


def install(modules: Collection[str] = ()) -> None:
    """Replace the launchers in all of FlashInfer, which has been imported.

    Args:
        modules: whose functions will be called, with what those import then.
    """
    core: Any = importlib.import_module("flashinfer.jit.core")
    core.JitSpec.build_and_load = lambda *args, **options: Kernel("module")
    for package, launcher in (("cutlass.cute", "compile"), ("cuda.tile", "launch")):
        if _is_installed(package):
            setattr(importlib.import_module(package), launcher, Kernel(launcher))
    if _is_installed("cutlass.utils"):
        utils: Any = importlib.import_module("cutlass.utils")
        utils.HardwareInfo = Card
    if _is_installed("cuda.tile"):
        tune: Any = importlib.import_module("cuda.tile.tune")
        tune.exhaustive_search = _fastest
    ffi: Any = importlib.import_module("tvm_ffi")
    ffi.use_torch_stream = contextlib.nullcontext
    ffi.from_dlpack = lambda tensor, **options: tensor
    torch.cuda.is_current_stream_capturing = _is_not_capturing
    late = itertools.chain(*map(_late_imports, modules))
    _import_late([*TRITON_KERNELS, *LATE_KERNELS, *late])
    if not hasattr(torch._C, "_cuda_getCurrentRawStream"):  # a CPU build
        torch._C._cuda_getCurrentRawStream = lambda device: 0
    cuda: Any = torch.cuda
    cuda.Stream = cuda.Event = cuda.current_stream = Still
    cuda.stream = lambda stream: contextlib.nullcontext()
    cuda.init = lambda: None
    # It looks what it is given before a mode can answer for it.
    torch.Tensor.record_stream = lambda *_: None  # type: ignore[method-assign]
    capability = tuple(map(int, ARCH.split(".")))
    answers = oracle.ANSWERS | {
        "_RAW_STREAM": lambda index: 0,
        "_CAPTURING": lambda: False,
        "_use_raw_stream": lambda *args: contextlib.nullcontext(),
        "_STREAM_CONTEXT": lambda *args: contextlib.nullcontext(),
        "cluster_capacity": lambda *args: 74,
        "_control_words": lambda *args, **options: (None, None),
        "_CURRENT_DEVICE": lambda: 0,
        "_front_resident_clusters": lambda index, arch, size: 74,
        **{
            f"load_cake_{program}_module": lambda *args: Kernel("module")
            for program in (
                *("kimi_k3_latent_moe", "kimi_k3_tp12_tail", "megamoe_topk_reduce"),
                "kimi_k3_fp8_projection",
            )
        },
        **dict.fromkeys(
            ("get_num_sm", "get_device_sm_count", "device_sm_count"),
            lambda device: torch.cuda.get_device_properties(device).multi_processor_count,
        ),
        "get_compute_capability": lambda device: capability,
        "device_cc": lambda device: capability,
        "toolkit_supports": lambda program: True,
        "check_device": lambda device, class_name, archs: capability,
        "build_and_load_cute_dsl_kernel": lambda *args, **options: Kernel("compiled"),
        "compact_topk_ids": lambda *args: Kernel("compact_topk_ids")(*args),
        "get_compiled_kernel": lambda *args, **options: Kernel("compiled"),
        "exhaustive_search": _fastest,
        "_current_stream_capturing": _is_not_capturing,
        "launch_dense_gemm": lambda *args, **options: Kernel("launch")(*args, **options),
        # As upstream's are, by which the shadow knows them.
        "get_cute_dsl_compiled_masked_gemm_kernel": functools.cache(_masked_gemm),
        "cake_quant_lora_launcher": functools.cache(lambda *args: Kernel("launcher")),
        "_partition_stream_topology": lambda resources: (),
        # It wants addresses as the allocator of a GPU gives them.
        "validate_kimi_k3_fp8_projection_inputs": lambda *args, **options: None,
        "_run_la_graph": _run_graph,
        "_load_generated_program": lambda *args, **options: Kernel("program"),
        "get_cake_kda_packed_t1_module": lambda *args: Kernel("module"),
        "get_flash_kda_packed_t1_module": lambda *args: Kernel("module"),
        "get_cake_dsv4_nvfp4_rope_insert_module": functools.cache(lambda: Kernel("module")),
        "_cudnn_ops": lambda: SimpleNamespace(qsa_forward=_qsa, qsa_indexed_forward=_qsa),
        # A library that is not built tells them.
        "format_info": lambda model: {"fp4_bytes_per_token": 288, "bytes_per_token": 528},
    }
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "flashinfer":
            for made in filter(MAKERS.fullmatch, list(vars(module))):
                if isinstance(vars(module)[made], (FunctionType, functools._lru_cache_wrapper)):
                    setattr(module, made, _maker(made, name))
            for load in filter(LOADERS.fullmatch, list(vars(module))):
                if isinstance(vars(module)[load], functools._lru_cache_wrapper):
                    loader = functools.cache(lambda *args: Kernel("module"))
                    loader.__module__ = name  # the shadow takes it for upstream's
                    setattr(module, load, loader)
        if name.endswith("cake_msa_icp_indexer.cake_jit"):
            vars(module)["load"] = lambda *args, **options: Kernel("module")
    for asked, answer in answers.items():
        _answer(asked, answer)
    _run_no_pipelines()
    _do_without_sources()
    with contextlib.suppress(ImportError):  # older releases have no programs
        programs: Any = importlib.import_module("flashinfer.jit.cake_program")
        programs._load = functools.cache(lambda program, target: Kernel("module"))
    _plan_with_cudnn()
    _plan_blocks()
    _run_frost()
    _sample_with_cake()


def _plan_with_cudnn() -> None:
    """Let cuDNN, which is not here, plan grouped products."""
    try:
        core: Any = importlib.import_module("flashinfer.grouped_mm.cudnn.core")
    except ImportError:
        return
    core.cudnn = Kernel("cudnn")
    for asked in ("_check_cudnn_version", "_get_handle", "_to_cudnn_dtype"):
        _answer(asked, lambda *args: None)
    for asked in ("grouped_gemm", "block_scale_grouped_gemm"):
        asked = f"_build_cudnn_moe_{asked}_graph"
        # Beside a graph and the size of its workspace some releases return the numbers of plans.
        plans = ((),) if "plan_indices" in inspect.getsource(getattr(core, asked)) else ()
        planned = (Kernel("graph"), 0, *plans)
        _answer(asked, lambda *args, planned=planned, **options: planned)


def _plan_blocks() -> None:
    """Let Qwen's blocks be planned without the compiler of their kernels."""
    for version in (5, 8):
        try:
            api: Any = importlib.import_module(
                f"flashinfer.experimental.qwen_3_{version}_block.api"
            )
        except ImportError:
            continue
        api.prepare = functools.partial(_block_plan, api, f"Qwen3{version}BlockPlan")
        api.prepare.__module__ = api.__name__
        api.cached_plan = api.prepare


def _run_frost() -> None:
    """Let kernels be launched whose list lies among sources that our trees lack."""
    try:
        frost: Any = importlib.import_module(
            "flashinfer.fused_moe.backends.cudnn_frost.bf16.runtime"
        )
    except ImportError:
        return
    frost.workspace_size = lambda *args: 0
    frost._launch = lambda kernel, *inputs: Kernel("launch")(*inputs)
    frost.CudnnFrostGroupedGemm1SwiGLURunner._resolve = lambda *args: None


def _block_plan(api: Any, kind: str, form: str, **given: Any) -> Any:
    """A plan for what is given, of upstream's class."""
    names = ("kv_layout", "page_size", "batch_size", "geometry", "device")
    told = {name: given[name] for name in names}
    layout = {name: given[name] for name in ("geometry", "page_size")}
    k, v = api.kv_views(given["kv_cache"], given["kv_layout"], dtype=torch.bfloat16, **layout)
    lengths = ("seq_len", "token_capacity", "q_len_per_req")
    table = given.get("block_table")
    # Some of its fields have no say in what runs.
    fields: dict[str, Any] = dict.fromkeys(("max_seq_len", "decode_split_kv"))
    fields |= {"workspace_size": 0, "declaration": {}}
    if "position_tables" in given:
        fields["_position_tables"] = given["position_tables"]
    return getattr(api, kind)(
        form=form,
        dtype=torch.bfloat16,
        q_len=next(given[name] for name in lengths if given.get(name) is not None),
        num_pages=len(k),
        max_pages=0 if table is None else table.shape[1],
        table_row_stride=0 if table is None else table.stride(0),
        _block=Kernel("block"),
        _pool_shape=tuple(k.shape),
        _k_strides=tuple(k.stride()),
        _v_strides=tuple(v.stride()),
        _workspace=torch.zeros(0, dtype=torch.uint8),
        **told,
        **fields,
    )


def _sample_with_cake() -> None:
    """Let flashinfer.cake_sampling choose without the file that tells of its kernels."""
    try:
        cake = importlib.import_module("flashinfer.cake_sampling")
    except ImportError:
        return
    names = ("cluster", "ept", "stream", "threads", "items", "launch_flags", "one_launch")
    plan = SimpleNamespace(**dict.fromkeys((*names, "stage23_flags"), 1))
    for asked, answer in {
        "cake_sampling_route": lambda *args: "pipeline",
        "_slab": lambda: 1024,
        "_launch_plan": lambda *args: plan,
        "_slab_plan": lambda *args: (1, 1, False, 0),
        "load_cake_sampling_module": lambda: Kernel("module"),
    }.items():
        setattr(cake, asked, answer)


def _is_not_capturing() -> bool:
    return False


def _fastest(configs: Sequence[Any], *args: Any, **options: Any) -> SimpleNamespace:
    """What cuda.tile's search finds among ``configs`` where nothing can be timed: the first."""
    return SimpleNamespace(best=SimpleNamespace(config=configs[0]))


def _masked_gemm(**options: Any) -> Callable[..., torch.Tensor]:
    """The launcher that CuTe DSL's masked product has, without asking the card for its size."""

    def launch(c_tensor_gpu: torch.Tensor, **tensors: Any) -> torch.Tensor:
        Kernel("compiled")(c_tensor_gpu, **tensors)
        return c_tensor_gpu

    return launch


def _run_graph(*args: Any, final_state: Any = None, **options: Any) -> Any:
    """Of cuDNN: writes into its output and the state, and returns that."""
    Kernel("graph")(*args)
    return final_state


def _qsa(q: torch.Tensor, *others: Any) -> Mapping[str, torch.Tensor]:
    """What cuDNN returns, as FlashInfer documents it."""
    Kernel("qsa")(q)
    rows, heads, _dim = q.shape
    return {
        "out": q.new_empty(q.shape),
        "out_fp32": q.new_empty(q.shape, dtype=torch.float32),
        "lse": q.new_empty((heads, rows), dtype=torch.float32),
    }


def _run_no_pipelines() -> None:
    """Take runners that go on with what a kernel returns for kernels as a whole."""
    runners = sys.modules.get("flashinfer.prims_ts.moe.runner")
    for name, runner in list(vars(runners).items()) if runners else ():
        if re.fullmatch(r"PrimsTs\w+Runner", name):
            runner.forward = lambda self, inputs, **options: Kernel("forward")(*inputs)
    for kind in ("bf16", "nvfp4", "mxfp4_mxfp8", "mxfp4_bf16", "fp8_per_tensor", "fp8_block_scale"):
        # They build what a kernel is compiled from.
        _answer(f"is_prims_ts_{kind}_supported", lambda *args, **options: (True, ""))


def _maker(name: str, module: str) -> Callable[..., Any]:
    def maker(*args: Any, **options: Any) -> Any:
        if name.startswith("gen_"):
            return SimpleNamespace(
                name=name,
                build_and_load=lambda *args, **options: Kernel("module"),
                get_library_path=lambda: "",
                get_library_paths=lambda: (),
            )
        return Kernel(name)(*args, **options) if "grouped_" in name else None

    maker.__module__ = module  # the shadow takes it for upstream's
    return maker


def _do_without_sources() -> None:
    """Let a kernel be described though its C++ sources, which our trees lack, cannot be copied."""

    def forgiving(make_spec: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make_spec)
        def made(*args: Any, **options: Any) -> Any:
            try:
                return make_spec(*args, **options)
            except FileNotFoundError:
                return Kernel("spec")

        return made

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "flashinfer":
            for asked, value in list(vars(module).items()):
                if asked.startswith(("gen_", "jit_spec")) and inspect.isfunction(value):
                    setattr(module, asked, forgiving(value))


def imported(name: str) -> ModuleType:
    """A module of FlashInfer whose package may import Triton."""
    package = name.rpartition(".")[0]
    try:
        importlib.import_module(package)
    except ModuleNotFoundError:
        with with_triton():
            importlib.import_module(package)
    return importlib.import_module(name)


def _import_comm() -> None:
    """Import ``flashinfer.comm``, in which many releases look for what no CPU has.

    One of them wants cuda.tile too, and has no functions there for whom is without.
    """
    try:
        importlib.import_module("flashinfer.comm")
    except AssertionError:
        # It looks for CUDA's runtime library among those that the process has loaded.
        library: Any = ModuleType("flashinfer.comm.cuda_ipc")
        for name in ("cudart", "CudaRTLibrary", "create_shared_buffer", "free_shared_buffer"):
            setattr(library, name, Kernel(name))
        sys.modules[library.__name__] = library
        importlib.import_module("flashinfer.comm")


def _import_late(modules: Iterable[str]) -> None:
    """Import what upstream imports when it is called, where a release has it."""
    with with_triton():
        for module in modules:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)


@contextlib.contextmanager
def with_triton() -> Iterator[None]:
    """Within it Triton can be imported; torch is not to find one."""
    finder = TritonFinder()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in finder.found & sys.modules.keys():
            del sys.modules[name]


def _late_imports(module: str) -> Iterator[str]:
    """The experimental modules of FlashInfer that functions of ``module`` import."""
    loaded = sys.modules[module]
    for function in ast.walk(ast.parse(inspect.getsource(loaded))):
        for node in ast.walk(function) if isinstance(function, ast.FunctionDef) else ():
            if isinstance(node, ast.ImportFrom) and "experimental" in (node.module or ""):
                name = "." * node.level + (node.module or "")
                package = importlib.util.resolve_name(name, loaded.__package__)
                yield package
                yield from (f"{package}.{alias.name}" for alias in node.names)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even its package
        return False


def _answer(asked: str, answer: Callable[..., Any]) -> None:
    """Replace a function of FlashInfer wherever one of its modules has it."""
    # The shadow runs what is FlashInfer's, and refuses what it does not know.
    answer.__module__ = "flashinfer.utils"
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "flashinfer" and asked in vars(module):
            setattr(module, asked, answer)


@contextlib.contextmanager
def writing(do: bool = True) -> Iterator[None]:
    """Within it kernels write a constant, and what nobody has written holds zeros; or neither."""
    before, Kernel.writing = Kernel.writing, do
    try:
        yield
    finally:
        Kernel.writing = before


def _written(frame: FrameType | None) -> list[torch.Tensor]:
    """The arguments of the running functions of upstream that are said to be written into.

    Upstream says it by decorators that register nothing, since it switched that off, but were put
    there by those who know the kernels: an opinion that is not ours. Where it says nothing of a
    function that is an op, the declaration of the op does.
    """
    found: list[torch.Tensor] = []
    while frame is not None:
        code = frame.f_code
        if frame.f_globals.get("__name__", "").partition(".")[0] == "flashinfer":
            op = _op(code.co_name, frame.f_globals["__name__"])
            declared = (*op.mutates, *filter(None, op.out)) if op else ()
            names = _registrations(code.co_filename).get(code.co_firstlineno, declared)
            held = frame.f_locals
            by_keyword = held.get("kwargs", {}) if op and op.keywords else {}
            for name in names:
                found += tensors_of(by_keyword.get(name, held.get(name)))
        frame = frame.f_back
    return found


@functools.cache
def _op(function: str, module: str) -> Op | None:
    """The op of a function; of those that share its name the one for its module, if any."""
    named = [op for op in OPS.values() if op.path == function and fnmatchcase(module, op.module)]
    return named[0] if named else OPS.get(function)


@functools.cache
def _registrations(filename: str) -> Mapping[int, tuple[str, ...]]:
    """By the line on which a function of the file begins, the ``mutates_args`` it has."""
    with open(filename, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    found: dict[int, tuple[str, ...]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and "register_custom_op" in ast.dump(decorator.func):
                first = min(each.lineno for each in node.decorator_list)
                found[first] = _mutated(decorator)
    return found


def _mutated(decorator: ast.Call) -> tuple[str, ...]:
    values = [k.value for k in decorator.keywords if k.arg == "mutates_args"]
    names = ast.literal_eval(values[0]) if values else ()
    return (names,) if isinstance(names, str) else tuple(names)
