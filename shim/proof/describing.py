"""What a function returns for its example, in words that two releases can be compared by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ..opaque import shadow
from ..opaque.declare import MakeTensor
from .comparing import one_line
from .compiling import Call

#: Batch sizes that padding rules tell apart.
SIZES = (1, 32, 129)


def outputs(call: Call, make: MakeTensor) -> list[list[str]]:
    """For each batch size the results in order, or ``raises`` and the error.

    Args:
        call: the example with FlashInfer's function, which is run in shadow.
        make: makes tensors without data, in a fake mode that is active.
    """
    found = []
    for m in SIZES:
        try:
            result, _ = shadow.run(call.function, call.arguments(make, m))
            found.append(list(_described(result)))
        except Exception as error:
            found.append(["raises", one_line(error)])
    return found


def _described(result: Any) -> Iterator[str]:
    if isinstance(result, (tuple, list)):
        for each in result:
            yield from _described(each)
    elif isinstance(result, Tensor):
        kind = str(result.dtype).removeprefix("torch.")
        size, stride = list(map(int, result.size())), list(map(int, result.stride()))
        offset = f" offset {int(result.storage_offset())}" if result.storage_offset() else ""
        yield f"{kind}{size} strides {stride}{offset} on {result.device.type}"
    else:
        yield type(result).__name__
