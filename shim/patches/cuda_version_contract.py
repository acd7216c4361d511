"""When ``flashinfer.jit.cpp_ext.get_cuda_version`` is the function that we know.

It retires when upstream stops starting a process in it: the probe ``fixed`` sees that.
"""

from __future__ import annotations

from ..contract import Contract, Row
from ..sources import FunctionFacts
from .releases import RELEASES

#: All that a body may mention which answers from torch alone.
_TORCH_ALONE = frozenset({"torch", "version", "cuda", "Version", "RuntimeError"})


def _faulty(facts: FunctionFacts) -> bool:
    return "check_output" in facts.names


def _fixed(facts: FunctionFacts) -> bool:
    constant = any(name.endswith("assume_constant_result") for name in facts.decorators)
    return constant or facts.names <= _TORCH_ALONE


CONTRACT = Contract(
    function="get_cuda_version",
    companions=("get_cuda_path",),
    rows=(
        Row("0.5.0", RELEASES[-1], "flashinfer.jit.cpp_ext", signature="", digest="51363e21d8f4"),
    ),
    fixed=_fixed,
    faulty=_faulty,
)
CONTRACTS = {"cuda_version": CONTRACT}
