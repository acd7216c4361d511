"""What FlashInfer makes of flashinfer-cubin and flashinfer-jit-cache of another release."""

from __future__ import annotations

import re
from collections.abc import Mapping

from packaging.version import Version

#: With any value, FlashInfer does not compare versions.
UNCHECKED = "FLASHINFER_DISABLE_VERSION_CHECK"

#: Where cubins lie, before the package from the first release below on, and after it until then.
CUBIN_DIR = "FLASHINFER_CUBIN_DIR"
_DIRECTORY_FIRST = Version("0.6.16")

#: From the first on a version has to be the same but for its local part; until then it only had to
#: begin with FlashInfer's. From the second on a companion that does not match is left aside; until
#: then FlashInfer's import raises.
_COMPARED_WHOLE = Version("0.7.0")
_LEFT_ASIDE = Version("0.7.2")

CUBIN, JIT_CACHE = "flashinfer-cubin", "flashinfer-jit-cache"

_CUDA_TAG = re.compile(r"cu(\d{2})(\d)")


def consequence(
    name: str, version: str, release: Version, environ: Mapping[str, str]
) -> str | None:
    """What FlashInfer ``release`` does with the companion ``name`` of another ``version``.

    A clause; None where it does not look at it.
    """
    if name == CUBIN and environ.get(CUBIN_DIR) and release >= _DIRECTORY_FIRST:
        return None
    if environ.get(UNCHECKED):
        return f"it takes kernels of another release, since {UNCHECKED} is set"
    begins = release < _COMPARED_WHOLE and version.startswith(str(release))
    if name == JIT_CACHE and begins:
        return "it takes kernels of another release, since one version begins with the other"
    if release < _LEFT_ASIDE:
        return "its import raises RuntimeError"
    instead = "downloads cubins as they are needed" if name == CUBIN else "builds modules itself"
    return f"it leaves the package aside and {instead}"


def cuda(version: str) -> Version | None:
    """The CUDA that a companion was built with (``0.6.3+cu130``), None if it does not say."""
    match = _CUDA_TAG.search(version.partition("+")[2])
    return Version(f"{match[1]}.{match[2]}") if match else None
