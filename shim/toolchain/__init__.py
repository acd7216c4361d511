"""Which CUDA toolchain FlashInfer would compile with, and what comes of it.

- ``finding``: which toolkit it is.
- ``targets``: for which architectures.
- ``choices``: what FlashInfer decides by the version of CUDA.
- ``companions``: who brings modules that are built already.
- ``cache``: where those go that it builds.
- ``driver``: what runs them.
- ``asking``: nvcc itself, started with a time limit. All else is read from files.
"""

from __future__ import annotations
