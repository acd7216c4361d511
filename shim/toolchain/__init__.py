"""Which CUDA toolchain FlashInfer would compile with, and what comes of it.

``finding`` says which toolkit it is, ``targets`` for which architectures,
``choices`` what FlashInfer decides by the version of CUDA, ``cache`` where its modules go,
``driver`` what runs them, ``companions`` who brings some ready-made. All of that is read from files;
``asking`` starts nvcc, with a time limit.
"""

from __future__ import annotations
