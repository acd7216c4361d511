"""``fp4_quantize`` as the op ``flashinfer_shim::fp4_quantize``.

What breaks: the function asks nvcc for its version, takes locks, stats files and loads a kernel
library, all from Python, on every traced call (flashinfer #2733). Every release so far;
upstream's own ``torch.ops.flashinfer.fp4_quantize`` (0.6.12 on) stays as it is and is not used,
since until 0.7.0 it passes ``enable_pdl`` by position into another parameter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..opaque.dispatch import dispatching
from ..opaque.later import promised
from . import Site
from .engine import when_met

if TYPE_CHECKING:  # until a compiler meets the op nothing of it is needed
    from .fp4_traits import Fp4Traits

#: Parameters that decide nothing in plain arithmetic: how a kernel is launched.
_LAUNCH_ONLY = ("enable_pdl", "backend")


def build(site: Site) -> Callable[..., Any]:
    """The replacement: the original in eager code, the op where somebody watches."""
    eager = _by_device(site.function, site.traits()) if site.settings.reference else None

    def traced() -> Callable[..., Any]:
        from . import fp4_op

        return fp4_op.traced(site, eager)

    later = promised(site.patch, when_met(site, traced), at_once=not site.released)
    return dispatching(site.function, later, eager)


def _by_device(original: Callable[..., Any], traits: Fp4Traits) -> Callable[..., Any]:
    """The reference kernel for CPU tensors, the original for all others."""
    from ..reference import quantize_fp4

    signature = inspect.signature(original, eval_str=True)

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
