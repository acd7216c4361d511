"""FlashInfer's functions that are ops by declaration alone, one module for each family.

What breaks without them: each builds, stats and loads its kernel module from Python on every
traced call (flashinfer #2733). Their fakes are upstream's own Python, run in shadow.

A new op is one entry in its family. Its runs of releases are in ``rows.json``, which
``tests/write_rows.py`` writes from the released sources.
"""

from __future__ import annotations

from ...opaque.declare import Op, PassedOn, Traces, Uncovered
from . import (
    activation,
    attention,
    cascade,
    comm,
    fused_moe,
    gemm,
    linear_attention,
    models,
    norm,
    page,
    quantization,
    rope,
    sampling,
    topk,
)

_MODULES = {
    "norm": norm,
    "activation": activation,
    "rope": rope,
    "page": page,
    "quantization": quantization,
    "gemm": gemm,
    "fused_moe": fused_moe,
    "sampling": sampling,
    "topk": topk,
    "cascade": cascade,
    "attention": attention,
    "linear_attention": linear_attention,
    "comm": comm,
    "models": models,
}
#: By the family's name, as FlashInfer's modules are called.
FAMILIES: dict[str, tuple[Op, ...]] = {family: module.OPS for family, module in _MODULES.items()}
OPS = {op.name: op for ops in FAMILIES.values() for op in ops}
#: Public functions that cannot be ops, by family; a module without ``UNCOVERED`` has none.
UNCOVERED: dict[str, tuple[Uncovered, ...]] = {
    family: getattr(module, "UNCOVERED", ()) for family, module in _MODULES.items()
}
#: Public functions that the compiler takes as they are, by family, likewise.
TRACES: dict[str, tuple[Traces, ...]] = {
    family: getattr(module, "TRACES", ()) for family, module in _MODULES.items()
}
#: Public functions that do nothing but call an op, by family, likewise.
PASSED_ON: dict[str, tuple[PassedOn, ...]] = {
    family: getattr(module, "PASSED_ON", ()) for family, module in _MODULES.items()
}
