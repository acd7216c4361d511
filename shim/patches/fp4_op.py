"""The op of ``fp4_quantize``: its declaration, its written fake, and what a call loads.

The fake is written down rather than run in shadow: it needs no device and is the one op whose
shapes every release was held against; the shadow is the second opinion that the tests ask for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..opaque import op
from ..opaque.capture import Kernels
from ..opaque.declare import Op
from ..opaque.launchers import Loaded
from . import Site
from .fp4_fake import fake_fp4_quantize
from .ops.quantization import SHAPE_VARIABLES

OP = Op(
    "fp4_quantize",
    lambda make, m: {"input": make(m, 256), "global_scale": make(1, dtype="float32")},
    returns="(Tensor, Tensor)",
    variables=SHAPE_VARIABLES,
)


def traced(site: Site, eager: Callable[..., Any] | None) -> Callable[..., Any]:
    """Define the op; gives what a compiler is to trace.

    Args:
        site: of the patch.
        eager: runs in place of the function.
    """
    traits = site.traits()
    signature = inspect.signature(site.function, eval_str=True)
    defaults = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if parameter.default is not inspect.Parameter.empty and name != "nvfp4_4over6"
    }

    def needs(arguments: Mapping[str, Any]) -> list[Loaded]:
        if not _takes_jit_module(arguments):
            return []
        return [_module_of(site, arguments["input"].device)]

    kernels = Kernels("fp4_quantize", preload=site.settings.preload, needs=needs)

    def fake(**arguments: Any) -> Any:
        outputs = fake_fp4_quantize(traits, **(defaults | arguments))
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            kernels.will_load(needs(arguments))
        return outputs

    return op.traced(
        OP,
        site.function,
        release=site.release,
        preload=site.settings.preload,
        fake=fake,
        kernels=kernels,
        eager=eager,
    )


def _takes_jit_module(arguments: Mapping[str, Any]) -> bool:
    """Whether the call runs the JIT-built C++ kernel, not a CuTe DSL or batch-invariant one."""
    return arguments.get("backend", "cuda") in ("cuda", "auto") and not arguments.get(
        "batch_invariant", False
    )


def _module_of(site: Site, device: torch.device) -> Loaded:
    major, minor = site.module.get_compute_capability(device)
    return Loaded(site.module.get_fp4_quantization_module, (f"{major}{minor}",), ())
