"""Each way in which a program may call FlashInfer; for a child process that is audited.

On the CPU, where the reference kernel quantizes.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import torch
from flashinfer import fp4_quantize, rmsnorm
from torch import Tensor

library = torch.library.Library("framework", "FRAGMENT")  # type: ignore[no-untyped-call]
library.define("quantize(Tensor x, Tensor scale) -> Tensor")  # type: ignore[no-untyped-call]


def own(x: Tensor, scale: Tensor) -> Any:
    return fp4_quantize(x, scale)[0]


library.impl("quantize", own, "CPU")  # type: ignore[no-untyped-call]
library._register_fake(  # type: ignore[no-untyped-call]
    "quantize", lambda x, scale: x.new_empty((x.shape[0], x.shape[1] // 2), dtype=torch.uint8)
)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def switched_off(x: Tensor, scale: Tensor) -> Any:
    return fp4_quantize(x, scale)[0]


def guarded(x: Tensor, weight: Tensor) -> Any:
    if torch.compiler.is_dynamo_compiling():
        return x * weight
    return rmsnorm(x, weight)


def called_directly(x: Tensor, scale: Tensor) -> Any:
    return fp4_quantize(x, scale)[0]


def called_by_an_op(x: Tensor, scale: Tensor) -> Any:
    return torch.ops.framework.quantize(x, scale)


def called_by_a_disabled_function(x: Tensor, scale: Tensor) -> Any:
    return switched_off(x, scale) + 1


def given_up(x: Tensor, scale: Tensor) -> Any:
    for _ in range(1):
        torch._dynamo.graph_break()
        packed = fp4_quantize(x, scale)[0]
    return packed


def refused(x: Tensor, scale: Tensor) -> Any:
    return fp4_quantize(x, scale, sf_vec_size=[16])[0]


def in_a_process_of_its_own(x: Tensor, scale: Tensor) -> Any:
    return fp4_quantize(x, scale)[0]


def main() -> None:
    x, scale = torch.randn(4, 64, dtype=torch.bfloat16), torch.tensor(300.0)
    called_directly(x, scale)
    for function in (called_directly, called_by_an_op, called_by_a_disabled_function, given_up):
        compiled = torch.compile(function, backend="eager", dynamic=False)
        for size in (4, 4, 2):  # the last one is a compilation more
            compiled(x[:size], scale)
    by_itself: Any = torch.compile(fp4_quantize, backend="eager")
    by_itself(x.half(), scale)  # what was compiled alone is for another type
    torch.compile(guarded, backend="eager")(x, torch.ones(64, dtype=torch.bfloat16))
    try:
        torch.compile(refused, backend="eager", fullgraph=True)(x, scale)
    except Exception as error:
        print(type(error).__name__)
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=in_a_process_of_its_own, args=(x, scale))
    process.start()
    process.join()
    if os.fork() == 0:
        in_a_process_of_its_own(x, scale)
        os._exit(0)
    os.wait()


if __name__ == "__main__":
    main()
