"""When FlashInfer builds and loads its modules in the functions that we know.

They retire when upstream itself says what it builds and loads, when, and why.
"""

from __future__ import annotations

from ..contract import Contract, Row
from ..sources import FunctionFacts
from .releases import RELEASES

_LOAD = {"module": "flashinfer.jit.core", "signature": "self"}
_BUILD = {"module": "flashinfer.jit.cpp_ext", "signature": "workdir, ninja_file, verbose"}
_BUILD_IN_JOBS = {**_BUILD, "signature": "workdir, ninja_file, verbose, max_jobs=None"}


def _fixed(facts: FunctionFacts) -> bool:
    return False


def _loads(facts: FunctionFacts) -> bool:
    return {"lock_path", "load"} <= facts.names


def _builds(facts: FunctionFacts) -> bool:
    return "subprocess" in facts.names


#: All that FlashInfer loads from a file, whatever has compiled it.
LOAD = Contract(
    function="JitSpec.build_and_load",
    companions=(),
    rows=(
        Row("0.5.0", "0.6.15.post1", **_LOAD, digest="b42e763fa879"),
        Row("0.6.16", "0.7.2.post1", **_LOAD, digest="58f8fda9fcf2"),
        Row("0.7.4", RELEASES[-1], **_LOAD, digest="ecc99ae30eb3"),
    ),
    fixed=_fixed,
    faulty=_loads,
)
#: All that nvcc compiles.
BUILD = Contract(
    function="run_ninja",
    companions=(),
    rows=(
        Row("0.5.0", "0.7.0.post1", **_BUILD, digest="c6ecf5413039"),
        Row("0.7.1", RELEASES[-1], **_BUILD_IN_JOBS, digest="bd3c37cc16cd"),
    ),
    fixed=_fixed,
    faulty=_builds,
)
CONTRACTS = {"jit_load": LOAD, "jit_build": BUILD}
