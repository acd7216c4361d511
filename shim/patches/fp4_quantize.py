"""``fp4_quantize`` as the op ``flashinfer_shim::fp4_quantize``.

What breaks: the function asks nvcc for its version, takes locks, stats files and loads a kernel
library, all from Python, on every traced call (flashinfer #2733). Every release from 0.5.0 to
0.7.4; upstream's own ``torch.ops.flashinfer.fp4_quantize`` (0.6.12 on) stays as it is and is not
used, since it passes ``enable_pdl`` by position into another parameter until 0.7.1.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..opaque import capture, registry
from ..opaque.carry import Carrier, dataclass_carrier
from ..opaque.dispatch import dispatching
from ..opaque.schema import from_signature
from . import Site
from .fp4_fake import fake_fp4_quantize
from .fp4_traits import Fp4Traits

#: Parameters of fp4_quantize that decide nothing in plain arithmetic: how a kernel is launched.
_LAUNCH_ONLY = ("enable_pdl", "backend")


def build(site: Site) -> Callable[..., Any]:
    """The replacement: the original in eager code, the op where somebody watches."""
    original = site.function
    signature = inspect.signature(original, eval_str=True)
    schema = from_signature(
        signature, returns="(Tensor, Tensor)", carriers=_carriers(site, signature)
    )
    defaults = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if name not in schema.carriers and parameter.default is not inspect.Parameter.empty
    }
    kernels = _kernels(site)
    eager = _by_device(original, signature, site.traits) if site.settings.reference else original

    def run(**arguments: Any) -> Any:
        if _takes_jit_module(arguments):
            kernels.require_loaded((arguments["input"],))
        return eager(**arguments)

    def fake(**arguments: Any) -> Any:
        outputs = fake_fp4_quantize(site.traits, **(defaults | arguments))
        if site.settings.preload and _takes_jit_module(arguments):
            kernels.preload(arguments["input"].device)
        return outputs

    op = registry.define("fp4_quantize", registry.Body(schema, run, fake))
    return dispatching(original, op, schema, eager)


def _carriers(site: Site, signature: inspect.Signature) -> Mapping[str, Carrier]:
    recipe = signature.parameters.get("nvfp4_4over6")  # 0.7.1 on
    if recipe is None:
        return {}
    kind = site.module.NVFP44Over6Config
    return {recipe.name: dataclass_carrier(recipe.name, recipe.default, kind)}


def _takes_jit_module(arguments: Mapping[str, Any]) -> bool:
    """Whether the call runs the JIT-built C++ kernel, not a CuTe DSL or batch-invariant one."""
    return arguments.get("backend", "cuda") in ("cuda", "auto") and not arguments.get(
        "batch_invariant", False
    )


def _kernels(site: Site) -> capture.KernelModule:
    module = site.module

    def load(device: torch.device) -> object:
        major, minor = module.get_compute_capability(device)
        return module.get_fp4_quantization_module(f"{major}{minor}")

    def loaded_any() -> bool:
        return bool(module.get_fp4_quantization_module.cache_info().currsize)

    return capture.KernelModule(
        "fp4_quantize", load, loaded_any, "call fp4_quantize once on any small tensor"
    )


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
