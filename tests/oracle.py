"""FlashInfer's own Python as the judge of shapes, strides and errors.

Runs in a child process with a real, unpatched FlashInfer release on its path. FlashInfer allocates
the outputs of ``fp4_quantize`` in Python and only then hands them to a kernel. With kernels that do
nothing, upstream's code runs on CPU tensors and tells exactly what that release returns or raises.
Replaced are what launches kernels (C++ modules, CuTe DSL) and the questions to a device that is not
there; every other line that runs is upstream's.

As a script it reads a JSON list of cases (see :func:`arguments`) from stdin and prints the list of
their outcomes (see :func:`outcome`) as its last line.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import isfunction
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

Json = dict[str, Any]

#: What the device that is not there answers (a card that every backend of every release serves),
#: and the launchers of kernels that are not built.
ANSWERS: dict[str, Callable[..., Any]] = {
    "get_compute_capability": lambda device: (10, 0),
    "device_support_pdl": lambda device: False,
    "get_num_sm": lambda device: 148,
    "get_device_sm_count": lambda device: 148,
    "device_sm_count": lambda device: 148,
    "check_device": lambda device, class_name, archs: (10, 0),
    "get_seed_and_offset": lambda *args, **options: (0, 0),
    "_get_stream_cache_buf": lambda name, size, device, **options: torch.empty(
        size, dtype=torch.uint8, device=device
    ),
    "build_and_load_cute_dsl_kernel": lambda *args, **options: Stub("kernel"),
    "get_compiled_kernel": lambda *args, **options: Stub("kernel"),
    "get_max_active_clusters": lambda *args, **options: 74,
    "dsl_targets_sm12x": lambda: True,
    "_device_supports_prims_ts": lambda device: True,
}


#: Modules that fp4_quantize imports when it is called; not every release has all of them.
LAZY_MODULES = (
    "quantization/kernels/nvfp4_quantize",
    "quantization/kernels/mxfp4_quantize",
    "batch_invariant/quantization/nvfp4_api",
    "batch_invariant/quantization/nvfp4_kernel",
    "batch_invariant/quantization/mx_kernel",
)


class Stub(ModuleType):
    """Stands for a module, and for whatever is read from it, called on it or derived from it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # a package: submodules can be imported

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub(name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        if len(args) == 1 and (isfunction(args[0]) or isinstance(args[0], type)):
            return args[0]  # a decorator
        return Stub("result")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __getitem__(self, key: Any) -> Any:
        return Stub("item")

    def __or__(self, other: Any) -> Any:
        return Any  # half of an annotation

    __ror__ = __or__


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets ``cutlass`` and all beneath it be imported as stubs."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "cutlass":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def upstream() -> Callable[..., Any]:
    """The installed release's ``fp4_quantize``, able to run where there is no GPU."""
    import flashinfer
    import flashinfer.jit.core

    flashinfer.jit.core.JitSpec.build_and_load = lambda *args, **options: Stub("jit")
    sys.meta_path.append(StubFinder())  # only now: to FlashInfer itself CuTe DSL is not installed
    cute_dsl: Any = importlib.import_module("flashinfer.cute_dsl")
    cute_dsl.is_cute_dsl_available = lambda: True
    for name in LAZY_MODULES:
        if (Path(flashinfer.__file__).parent / f"{name}.py").exists():
            importlib.import_module(f"flashinfer.{name.replace('/', '.')}")
    for module in [m for name, m in sys.modules.items() if name.startswith("flashinfer")]:
        for name, answer in ANSWERS.items():
            if name in vars(module):
                setattr(module, name, answer)
    torch.Tensor.is_cuda = True  # asserted by the CuTe DSL functions
    function: Callable[..., Any] = flashinfer.fp4_quantize
    return function


def arguments(case: Json) -> Json:
    """The arguments that a case describes, by name.

    A case holds ``size``, ``stride`` and ``dtype`` of the input, optionally its ``offset``, the
    ``scale`` (size of the global scale; null for none), ``options`` (keywords) and ``environment``.
    """
    offset = case.get("offset", 0)
    reach = sum((n - 1) * step for n, step in zip(case["size"], case["stride"], strict=True)) + 1
    room = offset + (0 if 0 in case["size"] else reach)
    base = torch.empty(room, dtype=getattr(torch, case["dtype"]))
    found = {
        "input": base.as_strided(case["size"], case["stride"], offset),
        "global_scale": None if case["scale"] is None else torch.ones(case["scale"]),
        **case.get("options", {}),
    }
    if found.get("nvfp4_4over6") is not None:
        utils = importlib.import_module("flashinfer.quantization.nvfp4_quantization_utils")
        found["nvfp4_4over6"] = utils.NVFP44Over6Config(**found["nvfp4_4over6"])
    return found


@contextmanager
def environment(case: Json) -> Iterator[None]:
    """Set the environment variables of a case for as long as it runs."""
    wanted = case.get("environment", {})
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in wanted:
            del os.environ[name]


def outcome(call: Callable[[], Sequence[torch.Tensor]]) -> Json:
    """``{"tensors": [...]}``, each with all of its geometry, or ``{"error": [type, text]}``."""
    try:
        tensors = call()
    except Exception as error:
        return {"error": [type(error).__name__, str(error)]}
    return {"tensors": [geometry(tensor) for tensor in tensors]}


def geometry(tensor: torch.Tensor) -> Json:
    """Where the elements of a tensor lie; symbolic numbers become those of the example."""
    return {
        "size": [int(n) for n in tensor.size()],
        "stride": [int(n) for n in tensor.stride()],
        "offset": int(tensor.storage_offset()),
        "storage": int(tensor.untyped_storage().nbytes()),
        "dtype": str(tensor.dtype),
    }


def judge(function: Callable[..., Any], case: Json) -> Json:
    """The outcome of ``function`` for a case."""
    found = arguments(case)
    with environment(case):
        return outcome(lambda: function(**found))


def main() -> None:
    """Judge the cases on stdin."""
    function = upstream()
    print(json.dumps([judge(function, case) for case in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
