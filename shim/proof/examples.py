"""The calls that ``prove`` compiles. Data alone: an op by declaration brings its own.

Read by the command, which imports neither torch nor FlashInfer, and by its children.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from ..opaque.declare import MakeTensor, Op
from ..patches import FAMILIES
from ..patches.ops import OPS

#: Batch sizes in the order in which they come. A compiler may need three graphs: one for 0, one
#: for 1, and one whose batch size is symbolic.
SIZES = (32, 48, 1, 129, 200, 0, 7, 512)
MOST_FRAMES = 3

#: Verdicts with which a call is what a user of ours gets.
IN_FORCE = ("applied", "not needed")

#: Where a module that an op needs comes from.
PACKAGES = {
    "cuda.tile": "cuda-tile",
    "cudnn": "nvidia-cudnn-frontend",
    "cutlass": "nvidia-cutlass-dsl",
    "triton": "triton",
}

#: What stands for its family where nobody asks for more: on a GPU each builds a kernel module.
SAMPLES = (
    "rmsnorm",
    "silu_and_mul",
    "apply_rope_with_cos_sin_cache_inplace",
    "append_paged_kv_cache",
    "mxfp8_quantize",
    "bmm_fp8",
    "fused_topk_deepseek",
    "softmax",
    "top_k_page_table_transform",
    "merge_state",
    "single_decode_with_kv_cache",
)


@dataclass(frozen=True)
class Example:
    """One call.

    Attributes:
        patch: the patch that it shows.
        function: what is called, by its name in the module that is patched.
        arguments: makes those of a valid call for so many rows, by keyword.
        mode: what is special about it, for the table; empty where it is the patch's only call.
        also: arguments for parameters that not every release has.
        planned: whether it is a method, whose object kernels plan.
        draws: whether it draws random numbers, which no CUDA graph may replay.
        op_calls: how often the call runs an op of ours.
        on_cpu: CPU tensors, too, go through it and give the right values.
        capability: the oldest compute capability on which the kernel writes its outputs.
        newest: the newest one that has a kernel, where there is one.
        arch: the only one on which it is a valid call, where it is not one on most.
        requires: what has to be importable for it.
        collective: several cards take part in it.
        lack: what a card below ``capability`` is without, where the call can be made there all the
            same; empty where it cannot.
    """

    patch: str
    function: str
    arguments: Callable[[MakeTensor, int], Mapping[str, Any]]
    mode: str = ""
    also: Mapping[str, Any] = field(default_factory=dict)
    planned: bool = False
    draws: bool = False
    op_calls: int = 1
    on_cpu: bool = False
    capability: tuple[int, int] = (0, 0)
    newest: tuple[int, int] | None = None
    arch: str = ""
    requires: tuple[str, ...] = ()
    collective: bool = False
    lack: str = ""

    @property
    def name(self) -> str:
        """What the table and the JSON call it."""
        return f"{self.function}, {self.mode}" if self.mode else self.patch

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batch sizes in the order in which they come; nobody plans for none."""
        return tuple(m for m in SIZES if m) if self.planned else SIZES


def _fp4(mode: str, *, transposed: bool = False, **options: object) -> Example:
    def arguments(make: MakeTensor, m: int) -> dict[str, Any]:
        batch = make(m, 256)
        return {
            "input": batch.transpose(-2, -1) if transposed else batch,
            "global_scale": make(1, dtype="float32", values=(300.0,)),
            **options,
        }

    return Example(
        patch="fp4_quantize",
        function="fp4_quantize",
        arguments=arguments,
        mode=mode,
        on_cpu=True,  # by our reference
        capability=(10, 0),
        lack="FP4 conversion",
    )


def _declared(op: Op) -> Example:
    return Example(
        patch=op.name,
        function=op.path,
        arguments=op.example,
        also=op.also,
        planned=bool(op.owner),
        draws=op.draws is not None,
        capability=op.capability,
        newest=op.newest,
        arch=op.arch,
        requires=op.requires,
        collective=op.collective,
    )


#: The calls of patches that are not ops by declaration.
WRITTEN = (
    Example(
        patch="cuda_version",
        function="is_cuda_version_at_least",
        arguments=lambda make, m: {"version_str": "12.8"},
        mode="asks get_cuda_version",
        op_calls=0,
        on_cpu=True,
    ),
    _fp4("NVFP4, scales 128x4"),
    _fp4("NVFP4, scales 8x4", is_sf_8x4_layout=True),
    _fp4("NVFP4, scales linear", is_sf_swizzled_layout=False),
    _fp4("NVFP4, column-major", transposed=True),
    _fp4("MXFP4, scales 128x4", sf_vec_size=32, sf_use_ue8m0=True),
)
EXAMPLES = {
    example.name: example for example in (*WRITTEN, *(_declared(op) for op in OPS.values()))
}


def choose(words: Sequence[str] = (), *, everything: bool = False) -> tuple[Example, ...]:
    """Those of the patches and families in ``words``; without any, all or one for each family."""
    if everything:
        return tuple(EXAMPLES.values())
    if not words:
        return (*WRITTEN, *(EXAMPLES[name] for name in SAMPLES))
    patches = {patch for word in words for patch in FAMILIES.get(word, (word,))}
    return tuple(example for example in EXAMPLES.values() if example.patch in patches)


def unfit(call: Example | Op, card: tuple[int, int]) -> str:
    """Why a call cannot run on a card of this compute capability, empty if it can."""
    if call.collective:
        return "takes several cards at once"
    if card < call.capability:
        return "needs compute capability {}.{}".format(*call.capability)
    if call.newest is not None and call.newest < card:
        return "has no kernel for compute capabilities above {}.{}".format(*call.newest)
    if call.arch and call.arch != "{}.{}".format(*card):
        return f"has an example for compute capability {call.arch} alone"
    missing = [module for module in call.requires if not _importable(module)]
    packages = [
        f"{module} (pip install {PACKAGES[module]})" if module in PACKAGES else module
        for module in missing
    ]
    return f"needs {', '.join(packages)}" if packages else ""


def _importable(module: str) -> bool:
    try:
        import_module(module)
    except ImportError:
        return False
    return True
