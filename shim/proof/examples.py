"""The calls that ``prove`` compiles. Data alone: a further function is one more entry.

Read by the command, which imports neither torch nor FlashInfer, and by its children.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

#: Batch sizes in the order in which they come. A compiler may need three graphs: one for 0, one
#: for 1, and one whose batch size is symbolic.
SIZES = (32, 48, 1, 129, 200, 0, 7, 512)
MOST_FRAMES = 3

#: In a shape: the batch size.
M = -1


@dataclass(frozen=True)
class Tensor:
    """A tensor to make.

    Attributes:
        shape: its sizes, :data:`M` for the batch size.
        dtype: its name in torch.
        transposed: the last two dimensions of a contiguous tensor of ``shape`` are swapped.
        value: of every element; normally distributed ones, always the same, if None.
    """

    shape: tuple[int, ...]
    dtype: str = "bfloat16"
    transposed: bool = False
    value: float | None = None

    @property
    def batch_dimension(self) -> int:
        """Where the batch size stands in the shape of the tensor as it is handed over."""
        place = self.shape.index(M)
        last = len(self.shape) - 1
        return 2 * last - 1 - place if self.transposed and place >= last - 1 else place


class Slot(enum.Enum):
    """Stands for an argument that is computed."""

    BATCH = "twice the batch"


@dataclass(frozen=True)
class Example:
    """One call.

    Attributes:
        patch: the patch that it shows.
        mode: what is special about it, for the table.
        target: ``module:function``, the name by which users import it.
        arguments: by position: a :class:`Tensor`, :attr:`Slot.BATCH`, or a constant.
        options: constants by keyword.
        batch: the input. It is doubled in the graph first, so that code is generated in front of
            the call, and what comes out of that is :attr:`Slot.BATCH`.
        op_calls: how often the call runs an op of ours.
        needs: least compute capability on which the kernel writes its outputs, None if any does.
        lack: what a card below that capability is without.
    """

    patch: str
    mode: str
    target: str
    arguments: tuple[object, ...]
    options: Mapping[str, object] = field(default_factory=dict)
    batch: Tensor = Tensor((M, 256))
    op_calls: int = 1
    needs: tuple[int, int] | None = None
    lack: str = ""

    @property
    def name(self) -> str:
        """What the table and the JSON call it."""
        return f"{self.target.partition(':')[2]}, {self.mode}"


def _fp4(mode: str, *, batch: Tensor = Tensor((M, 256)), **options: object) -> Example:
    return Example(
        patch="fp4_quantize",
        mode=mode,
        target="flashinfer:fp4_quantize",
        arguments=(Slot.BATCH, _GLOBAL_SCALE),
        options=options,
        batch=batch,
        needs=(10, 0),
        lack="FP4 conversion",
    )


_GLOBAL_SCALE = Tensor((1,), "float32", value=300.0)

EXAMPLES = (
    Example(
        patch="cuda_version",
        mode="asks get_cuda_version",
        target="flashinfer.jit.cpp_ext:is_cuda_version_at_least",
        arguments=("12.8",),
        op_calls=0,
    ),
    _fp4("NVFP4, scales 128x4"),
    _fp4("NVFP4, scales 8x4", is_sf_8x4_layout=True),
    _fp4("NVFP4, scales linear", is_sf_swizzled_layout=False),
    _fp4("NVFP4, column-major", batch=Tensor((M, 256), transposed=True)),
    _fp4("MXFP4, scales 128x4", sf_vec_size=32, sf_use_ue8m0=True),
)

PATCHES = tuple(dict.fromkeys(example.patch for example in EXAMPLES))
