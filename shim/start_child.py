"""The script that children of our commands run: finds the package by location.

The side without us has no entry on PYTHONPATH that leads here, and some other distribution may be
called ``shim``. The first argument is the module whose ``main`` is called, the rest are its own.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module, util
from importlib.machinery import ModuleSpec
from types import ModuleType


def load(package: str) -> ModuleType:
    """The package in that directory, under the name that it has or would have for FlashInfer."""
    spec = util.spec_from_file_location("_flashinfer_shim_gate_file", f"{package}/gate.py")
    assert isinstance(spec, ModuleSpec)
    assert spec.loader is not None
    gate_file = util.module_from_spec(spec)
    spec.loader.exec_module(gate_file)
    loaded: ModuleType = gate_file.Gate(package).load_package()
    return loaded


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    # Python puts a script's directory on the path: what lies here is not for import from there.
    sys.path[:] = [entry for entry in sys.path if entry != here]
    import_module(f"{load(here).__name__}.{sys.argv.pop(1)}").main()
