"""One version in one process: parts that are loaded late come from the package of the start.

The engine and the declarations are loaded when a compiler first meets an op, hours after the start
perhaps, and by then the package may have been removed or replaced on disk. Code and data of two
versions in one process would do what neither of them does.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


class Changed(ImportError):
    """The package on disk is not the one that this process has begun to load."""


@contextlib.contextmanager
def one_version(*parts: str) -> Iterator[None]:
    """What is loaded within it is of the version that this process has begun with.

    Args:
        parts: names of modules in the package; there is nothing to look at where all of them are
            loaded already. Without any it is always looked.

    Raises:
        Changed: it is not; what was loaded must not be used.
    """
    if parts and all(f"{__package__}.{part}" in sys.modules for part in parts):
        yield
        return
    _check()
    try:
        yield
    except (ImportError, OSError) as fault:
        _check()
        if (getattr(fault, "name", None) or "").partition(".")[0] == __package__:
            raise Changed(
                f"flashinfer-shim in {_package_directory()} is no longer complete ({fault}): "
                "start the process again"
            ) from fault
        raise
    _check()


def _check() -> None:
    told: str = vars(sys.modules[str(__package__)])["changed"]()
    if told:
        raise Changed(told)


def _package_directory() -> str:
    return str(sys.modules[str(__package__)].__path__[0])
