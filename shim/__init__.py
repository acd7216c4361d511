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


def changed() -> str:
    """What has become of the package's files since this process began to load it; empty: nothing.

    For our own modules. Here, since what tells must itself be of the version that was there first.
    """
    file = f"{__path__[0]}/__init__.py"
    loaded = f"flashinfer-shim {__version__}, which this process has loaded a part of,"
    read = getattr(getattr(__spec__, "loader", None), "get_data", None)  # of a zip archive, too
    try:
        text: bytes | None = None if read is None else read(file)
    except Exception:
        return f"{loaded} is no longer in {__path__[0]}: start the process again"
    if text is None or f'__version__ = "{__version__}"'.encode() in text:
        return ""
    return f"{loaded} has been replaced in {__path__[0]} by another: start the process again"


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if f"{__name__}.{home}" not in sys.modules and (told := changed()):
        raise ImportError(told)
    # The builtin, not importlib: this module is read by processes that never need more.
    try:
        __import__(f"{__name__}.{home}")
    except NotADirectoryError as error:
        from .location import zip_complaint

        raise ImportError(zip_complaint() or str(error)) from error
    return getattr(sys.modules[f"{__name__}.{home}"], name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
