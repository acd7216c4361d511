"""Run by ``check --deep`` in processes of its own: import FlashInfer, write down what became of it.

Stands alone, since nothing says under which name, or whether at all, our package is there. Started
by ``runpy.run_path`` with one more global, ``REPORT``: the file to write.
"""

from __future__ import annotations

import json
import os
import sys
from types import ModuleType
from typing import Any

REPORT: str = globals()["REPORT"]


def find_hook(gate: Any) -> ModuleType | None:
    """The hook that ``gate`` handed over to, None where it did not come to that.

    Our package has a private name where another distribution is called ``shim``; that one may
    have a module called hook as well.
    """
    for name in ("shim.hook", "_flashinfer_shim.hook"):
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if file and os.path.samefile(os.path.dirname(file), gate.directory):
            return module
    return None


def capabilities() -> list[str]:
    """Compute capability of each GPU, as ``12.0``."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return ["{}.{}".format(*torch.cuda.get_device_capability(i)) for i in range(count)]


def main() -> None:
    """Import FlashInfer, then write the report; an error ends this process as it would any."""
    import flashinfer

    gate: Any = next(
        (f for f in sys.meta_path if getattr(type(f), "flashinfer_shim_gate", False) is True), None
    )
    hook = find_hook(gate) if gate else None
    report = {
        "flashinfer": flashinfer.__file__,
        "shim": gate and gate.directory,
        "activated_by": gate and getattr(gate, "door", None),
        "fault": gate and gate.fault,
        "capabilities": capabilities(),
        "patches": {
            record.patch: {
                "verdict": str(record.verdict),
                "reason": record.reason,
                "action": record.action,
                "traceback": record.traceback,
                "imported": record.target.partition(":")[0] in sys.modules,
            }
            for record in (hook.status() if hook else ())
        },
    }
    with open(REPORT, "w", encoding="utf-8") as file:
        json.dump(report, file)


main()
