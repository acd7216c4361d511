"""What ``FLASHINFER_SHIM_AUDIT`` has a process note: who calls FlashInfer's functions, and how.

Loaded only where it is asked for, when the settings have been read. Each replacement is then put
behind one that notes its calls (:mod:`.watch`); a process where nobody asks has none of it.
"""

from __future__ import annotations

from .recorder import harmless, start
from .watch import watch

__all__ = ["harmless", "start", "watch"]
