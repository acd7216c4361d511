"""Where the package is, and the directory that belongs on PYTHONPATH."""

from __future__ import annotations

import os

_MARK = "_flashinfer_shim_gate"  # the name stands in our sitecustomize.py and in no other


def package_directory() -> str:
    """Return the absolute path of the folder that holds this package, links resolved."""
    # The folder's links, not the file's: an editable install reaches the checkout through one of
    # the first kind, and installers may link every file to a cache.
    return os.path.realpath(os.path.dirname(os.path.abspath(__file__)))


def zip_complaint() -> str:
    """What to say where the package is in a zip file; empty where it is in a folder.

    Its tables, and what its children run, are files beside its modules.
    """
    package = package_directory()
    if os.path.isdir(package):
        return ""
    return f"{package} is in a zip file, where flashinfer-shim cannot run: install it with pip"


def startup_directory() -> str:
    """Return the absolute path of the directory that holds our ``sitecustomize.py``.

    For an installed wheel that is ``startup`` within the package, for a source checkout or an
    editable install the folder around the package.

    Raises:
        FileNotFoundError: Neither holds our file; the message names both.
    """
    package = package_directory()
    candidates = [os.path.join(package, "startup"), os.path.dirname(package)]
    for directory in candidates:
        # site-packages, the folder around an installed package, may hold somebody else's.
        if is_our_sitecustomize(os.path.join(directory, "sitecustomize.py")):
            return directory
    raise FileNotFoundError(
        f"found no sitecustomize.py of flashinfer-shim, expected in {candidates[0]} (wheel) or "
        f"{candidates[1]} (source checkout): install flashinfer-shim again"
    )


def is_our_sitecustomize(file: str) -> bool:
    """Whether ``file`` is a ``sitecustomize.py`` of ours, of any version, not somebody else's."""
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            return _MARK in stream.read()
    except OSError:
        return False
