"""The one exception that leaves the shim on purpose, and one that does not."""

from __future__ import annotations


class ShimError(ImportError):
    """``FLASHINFER_SHIM=require`` and a patch was refused or failed, or a setting is wrong.

    Raised while FlashInfer is being imported; the message names what was found, what was expected
    and the next action. An ``ImportError``: to its importer, FlashInfer is not usable as asked.
    """

    #: Tells the gate, which cannot import this class, to let the exception through.
    flashinfer_shim_refusal = True


class ForeignFunction(Exception):
    """The live object is not the function that the module's source defines."""
