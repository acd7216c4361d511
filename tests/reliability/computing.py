"""FlashInfer on the CPU, for children: its kernels compute, so that every result can be checked.

Two functions, which are asked for wherever their modules stand by now; all else of FlashInfer is
as released. The device is a pretended one.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import child_side

child_side.pretend()
core: Any = importlib.import_module("flashinfer.jit.core")
flashinfer: Any = importlib.import_module("flashinfer")

import torch  # noqa: E402

from shim.opaque.identity import original_of  # noqa: E402

Model = Callable[[], torch.Tensor]

ROWS, HIDDEN = 4, 64
OPTIONS = {"enable_pdl": False}  # there is no card to ask what it can do
#: The modules of the two functions.
MODULES = ("flashinfer.norm", "flashinfer.activation")


class Kernels:
    """In place of FlashInfer's modules: what their kernels compute, by torch."""

    def rmsnorm(self, out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *_: object) -> None:
        out.copy_(torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6))

    def silu_and_mul(self, out: torch.Tensor, x: torch.Tensor, *_: object) -> None:
        gate, up = x.chunk(2, dim=-1)
        out.copy_(torch.nn.functional.silu(gate) * up)


core.JitSpec.build_and_load = lambda self: Kernels()


def rmsnorm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = flashinfer.norm.rmsnorm(x, weight, **OPTIONS)
    return result


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = flashinfer.activation.silu_and_mul(x, **OPTIONS)
    return result


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    """Always the same."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, HIDDEN, generator=generator), torch.rand(HIDDEN, generator=generator)


def ours() -> list[bool]:
    """Of each of the two functions, whether it is our replacement by now."""
    return [
        original_of(function) is not None
        for function in (flashinfer.norm.rmsnorm, flashinfer.activation.silu_and_mul)
    ]


def replacements() -> list[str]:
    """Where a loaded module of FlashInfer, or a class in one, holds a replacement of ours."""
    found = []
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == "flashinfer":
            for name, value in list(vars(module).items()):
                members = vars(value).items() if isinstance(value, type) else ()
                for path, held in ((name, value), *((f"{name}.{n}", m) for n, m in members)):
                    if original_of(held) is not None:
                        found.append(f"{module_name}:{path}")
    return sorted(found)
