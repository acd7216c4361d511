"""FlashInfer's functions as ops that ``torch.compile(fullgraph=True)`` takes whole.

The package does nothing when it is imported. It acts in a process whose ``sitecustomize`` is ours
(``PYTHONPATH="$(flashinfer-shim path)"``) or that calls :func:`activate`.

Public names, loaded on first use so that start-up stays free of them:

* ``activate()``: patch FlashInfer now if it is imported, and when it is imported otherwise.
* ``deactivate()``: put the identical original objects back.
* ``disabled()``: a block in which FlashInfer is as without us.
* ``status()``: one typed :class:`~shim.ledger.Record` for each patch.
* ``warm()``: what FlashInfer builds or loads from now on is late (``FLASHINFER_SHIM_JIT``).
* ``ShimError``: what ``FLASHINFER_SHIM=require`` raises.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "Record",
    "ShimError",
    "Verdict",
    "__version__",
    "activate",
    "deactivate",
    "disabled",
    "status",
    "warm",
]

if TYPE_CHECKING:
    from .errors import ShimError
    from .hook import activate, deactivate, disabled, status
    from .ledger import Record, Verdict
    from .watch import warm

_HOMES = {
    "activate": "hook",
    "deactivate": "hook",
    "disabled": "hook",
    "status": "hook",
    "warm": "watch",
    "ShimError": "errors",
    "Record": "ledger",
    "Verdict": "ledger",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The builtin, not importlib: this module is read by processes that never need more.
    __import__(f"{__name__}.{home}")
    return getattr(sys.modules[f"{__name__}.{home}"], name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
