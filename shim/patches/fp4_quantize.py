"""``fp4_quantize`` as the op ``flashinfer_shim::fp4_quantize``.

What breaks: the function asks nvcc for its version, takes locks, stats files and loads a kernel
library, all from Python, on every traced call (flashinfer #2733). Every release from 0.5.0 to
0.7.4; upstream's own ``torch.ops.flashinfer.fp4_quantize`` (0.6.12 on) stays as it is and is not
used, since until 0.7.0 it passes ``enable_pdl`` by position into another parameter.

Its fake is written down rather than run in shadow: it needs no device and is the one op whose
shapes every release was held against; the shadow is the second opinion that the tests ask for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..opaque.capture import Kernels
from ..opaque.declare import Op
from ..opaque.launchers import Loaded
from ..opaque.op import build as build_op
from . import Site
from .fp4_fake import fake_fp4_quantize
from .fp4_traits import Fp4Traits
from .ops.quantization import SHAPE_VARIABLES

OP = Op(
    "fp4_quantize",
    lambda make, m: {"input": make(m, 256), "global_scale": make(1, dtype="float32")},
    returns="(Tensor, Tensor)",
    variables=SHAPE_VARIABLES,
)

#: Parameters that decide nothing in plain arithmetic: how a kernel is launched.
_LAUNCH_ONLY = ("enable_pdl", "backend")


def build(site: Site) -> Callable[..., Any]:
    """The replacement: the original in eager code, the op where somebody watches."""
    original = site.function
    signature = inspect.signature(original, eval_str=True)
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
        outputs = fake_fp4_quantize(site.traits, **(defaults | arguments))
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            kernels.will_load(needs(arguments))
        return outputs

    return build_op(
        OP,
        original,
        release=site.release,
        preload=site.settings.preload,
        at_once=not site.released,
        fake=fake,
        kernels=kernels,
        eager=_by_device(original, signature, site.traits) if site.settings.reference else None,
    )


def _takes_jit_module(arguments: Mapping[str, Any]) -> bool:
    """Whether the call runs the JIT-built C++ kernel, not a CuTe DSL or batch-invariant one."""
    return arguments.get("backend", "cuda") in ("cuda", "auto") and not arguments.get(
        "batch_invariant", False
    )


def _module_of(site: Site, device: torch.device) -> Loaded:
    major, minor = site.module.get_compute_capability(device)
    return Loaded(site.module.get_fp4_quantization_module, (f"{major}{minor}",), ())


def _by_device(
    original: Callable[..., Any], signature: inspect.Signature, traits: Fp4Traits
) -> Callable[..., Any]:
    """The reference kernel for CPU tensors, the original for all others."""
    from ..reference import quantize_fp4

    def fp4_quantize(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        if bound.arguments["input"].device.type != "cpu":
            return original(*args, **kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        for name in _LAUNCH_ONLY:
            arguments.pop(name, None)
        if arguments.pop("batch_invariant", False):
            raise NotImplementedError("the reference kernel has no batch_invariant class")
        recipe = arguments.pop("nvfp4_4over6", None)
        if recipe is not None and recipe is not signature.parameters["nvfp4_4over6"].default:
            raise NotImplementedError(f"the reference kernel has no nvfp4_4over6={recipe}")
        return quantize_fp4(
            arguments.pop("input"),
            arguments.pop("global_scale"),
            padded_columns=traits.padded_columns,
            **arguments,
        )

    return fp4_quantize
