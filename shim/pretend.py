"""A pretended CUDA device, for child processes of ``prove`` and of the tests. Never in a user's.

A CPU build of torch can trace CUDA code: fake tensors take ``device="cuda"`` and no kernel runs.
What it cannot do is answer what device there is. These stand-ins answer, before FlashInfer is
imported, so that FlashInfer chooses its paths as it would on that device.
"""

from __future__ import annotations

import contextlib
import os
import types
from typing import Any

import torch

_sym: Any = torch  # sym_min and sym_max have no types

#: sm_120: the newest architecture that every covered release knows.
DEFAULT_ARCH = "12.0"
_PRETENDED_CUDA = "13.0"
#: How many multiprocessors the cards of an architecture have, by its major number.
_PROCESSORS = {9: 132, 10: 148, 12: 188}


def pretend(arch: str = DEFAULT_ARCH) -> None:
    """Stand in for one CUDA device of compute capability ``arch`` (``"12.0"``).

    To be called before torch._dynamo is imported. Sets FLASHINFER_CUDA_ARCH_LIST
    too, which FlashInfer reads while it is imported, and, where torch is a CPU build,
    ``torch.version.cuda``.

    Raises:
        ValueError: ``arch`` is not of the form ``major.minor``.
    """
    major_text, _, minor_text = arch.partition(".")
    try:
        capability = (int(major_text), int(minor_text))
    except ValueError:
        raise ValueError(f"architecture {arch!r} is not of the form major.minor, as 12.0") from None
    properties = types.SimpleNamespace(
        name=f"pretended sm_{capability[0]}{capability[1]}",
        major=capability[0],
        minor=capability[1],
        multi_processor_count=_PROCESSORS.get(capability[0], 132),
        total_memory=80 << 30,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=227 << 10,
        shared_memory_per_multiprocessor=228 << 10,
        L2_cache_size=50 << 20,
        is_integrated=False,
        gcnArchName="",
    )
    suffix = {9: "a", 10: "a"}.get(capability[0], "f" if capability[0] >= 12 else "")
    os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", f"{arch}{suffix}")
    stand_ins = {
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda device=None: capability,
        "get_device_properties": lambda device=None: properties,
        "get_device_name": lambda device=None: properties.name,
        "is_current_stream_capturing": lambda: False,
        "current_stream": lambda device=None: types.SimpleNamespace(cuda_stream=0),
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "current_blas_handle": lambda: 0,
        "device": lambda device: contextlib.nullcontext(),
        "nvtx": types.SimpleNamespace(range=lambda name: contextlib.nullcontext()),
        # The compiler takes device properties for a constant if they are of the type so called.
        "_CudaDeviceProperties": types.SimpleNamespace,
    }
    vars(torch.cuda.nvtx)["range"] = lambda *args, **kwargs: contextlib.nullcontext()
    has_device = torch.cuda.is_available()
    for name, stand_in in stand_ins.items():
        setattr(torch.cuda, name, stand_in)
    if torch.version.cuda is None:
        torch.version.cuda = _PRETENDED_CUDA
    if not has_device:
        _do_without_a_device_guard()


def _do_without_a_device_guard() -> None:
    """Let indexing, ``contiguous``, ``copy_`` and ``cuda`` work on fake CUDA tensors.

    Without a device there is no device guard for them. Plain slices, whole numbers and None become
    the narrow, select and unsqueeze that they are, a tensor the index that it is, a contiguous copy
    the clone that it is; what is on the device stays there; all else is left.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    fake: Any = FakeTensor
    indexed, assigned = fake.__getitem__, fake.__setitem__
    packed, copied, moved = fake.contiguous, fake.copy_, fake.cuda

    def getitem(self: Any, index: Any) -> Any:
        items = index if isinstance(index, tuple) else (index,)
        if self.device.type == "cuda" and isinstance(index, torch.Tensor):
            return torch.ops.aten.index.Tensor(self, [index])
        if self.device.type != "cuda" or not all(map(_is_plain, items)):
            return indexed(self, index)
        result, dim = self, 0
        for item in _spelled_out(items, self.dim()):
            if item is None:
                result = result.unsqueeze(dim)
                dim += 1
            elif isinstance(item, slice):
                size = result.shape[dim]
                start = 0 if item.start is None else _from_front(item.start, size)
                stop = size if item.stop is None else _from_front(item.stop, size)
                stop = _sym.sym_min(stop, size)
                result = result.narrow(dim, start, _sym.sym_max(stop - start, 0))
                dim += 1
            else:
                result = result.select(dim, item)
        return result

    def setitem(self: Any, index: Any, value: Any) -> None:
        items = index if isinstance(index, tuple) else (index,)
        if self.device.type != "cuda" or not all(map(_is_plain, items)):
            assigned(self, index, value)
        elif isinstance(value, torch.Tensor):
            copy(getitem(self, index), value)
        else:
            torch.ops.aten.fill_.Scalar(getitem(self, index), value)

    def contiguous(self: Any, memory_format: Any = torch.contiguous_format) -> Any:
        if self.device.type != "cuda" or self.is_contiguous(memory_format=memory_format):
            return packed(self, memory_format=memory_format)
        return torch.ops.aten.clone.default(self, memory_format=memory_format)

    def copy(self: Any, source: Any, non_blocking: bool = False) -> Any:
        if self.device.type != "cuda":
            return copied(self, source, non_blocking)
        return torch.ops.aten.copy_.default(self, source)

    def cuda(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self if self.device.type == "cuda" else moved(self, *args, **kwargs)

    fake.__getitem__, fake.__setitem__ = getitem, setitem
    fake.contiguous, fake.copy_, fake.cuda = contiguous, copy, cuda


def _from_front(bound: Any, size: Any) -> Any:
    return _sym.sym_max(size + bound, 0) if isinstance(bound, int) and bound < 0 else bound


def _spelled_out(items: tuple[Any, ...], dims: int) -> tuple[Any, ...]:
    """What an index says of each dimension, without an ellipsis."""
    if ... not in items:
        return items
    at = items.index(...)
    more = dims - sum(item is not None and item is not ... for item in items)
    return (*items[:at], *[slice(None)] * more, *items[at + 1 :])


def _is_plain(item: Any) -> bool:
    if isinstance(item, slice):
        bounds = (item.start, item.stop)
        plain = (b is None or isinstance(b, int) or not (b < 0) for b in bounds)
        return item.step is None and all(plain)
    whole = isinstance(item, (int, torch.SymInt)) and not isinstance(item, bool)
    return item is None or item is ... or whole
