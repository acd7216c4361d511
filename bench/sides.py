"""One function of FlashInfer by each way that it can be called: the sides of a comparison."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from names import DISPATCHER_CALL, PYTHON_CALL

if not torch.cuda.is_available():  # FlashInfer asks while it is imported
    os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", "9.0a")

import flashinfer

Function = Callable[..., Any]

#: Libraries, which take their ops along when they are collected.
_kept: list[torch.library.Library] = []


@dataclass(frozen=True)
class Written:
    """What somebody writes who registers a function of FlashInfer by hand.

    Attributes:
        name: the function's, in the package ``flashinfer``.
        schema: parameters and result of its op.
        fake: gives an empty result for the op's arguments.
        example: arguments of a call for a device.
    """

    name: str
    schema: str
    fake: Function
    example: Callable[[str], tuple[Any, ...]]

    @property
    def ours(self) -> Function:
        """The function as FlashInfer has it in this process, patched."""
        found: Function = getattr(flashinfer, self.name)
        return found

    @property
    def original(self) -> Function:
        """The function as FlashInfer defines it.

        Raises:
            SystemExit: it is not patched here, so that there is nothing to compare.
        """
        from shim.opaque.identity import original_of  # not in a process without us

        found = original_of(self.ours)
        if found is None:
            raise SystemExit(
                f"flashinfer.{self.name} is not patched: put the checkout in front of PYTHONPATH"
            )
        function: Function = found
        return function

    def by_hand(self, device: str) -> Function:
        """As an op at Library level with a written fake, as vLLM and SGLang register theirs."""
        return registered(self.name, self, self.original, device)

    def by_custom_op(self) -> Function:
        """By ``torch.library.custom_op``."""
        op: Function = torch.library.custom_op(
            f"bench::{self.name}_custom", self.original, mutates_args=(), schema=self.schema
        )
        return op


def registered(name: str, written: Written, function: Function, device: str) -> Function:
    """An op at Library level, whose kernel for that device is a Python function."""
    library: Any = torch.library.Library("bench", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(f"{name}{written.schema}")
    library.impl(name, function, device.upper())
    torch.library.register_fake(f"bench::{name}", written.fake, lib=library)
    _kept.append(library)
    op: Function = getattr(torch.ops.bench, name)
    return op


def bare(written: Written, device: str) -> dict[str, Function]:
    """The floors: what a call with these arguments costs where nothing is done."""
    result = written.fake(*written.example(device))

    def nothing(*args: object, **kwargs: object) -> Any:
        return result

    op = registered(f"{written.name}_nothing", written, nothing, device)
    return {PYTHON_CALL: nothing, DISPATCHER_CALL: op}


def _rows(device: str, columns: int) -> torch.Tensor:
    return torch.randn(4, columns, device=device).bfloat16()


RMSNORM = Written(
    "rmsnorm",
    "(Tensor input, Tensor weight) -> Tensor",
    lambda input, weight: torch.empty_like(input),
    lambda device: (_rows(device, 2048), _rows(device, 2048)[0].clone()),
)
SILU_AND_MUL = Written(
    "silu_and_mul",
    "(Tensor input) -> Tensor",
    lambda input: input.new_empty((*input.shape[:-1], input.shape[-1] // 2)),
    lambda device: (_rows(device, 4096),),
)


class Kernels:
    """In place of every kernel module of FlashInfer's: nothing is launched."""

    def __getattr__(self, name: str) -> Function:
        return lambda *args: None


def without_kernels() -> None:
    """Have FlashInfer load modules whose kernels do nothing: no GPU, no build."""
    core: Any = importlib.import_module("flashinfer.jit.core")
    kernels = Kernels()
    core.JitSpec.build_and_load = lambda self: kernels
