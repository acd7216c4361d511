"""The child of ``prewarm`` for one architecture: plans, then builds what is missing.

Events on stdout: ``planning`` once FlashInfer is imported; ``plan`` with all modules; then, unless
that is all that was asked for, ``waiting`` where another process builds, and for each module
``begin``, ``objects`` and ``end``. ``refused`` says why nothing, or nothing more, can be done.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from ..talking import Emit, end_with_parent, private_stdout
from ..toolchain import finding
from . import building


def main() -> None:
    """Do what the JSON object in the first argument asks for.

    Its keys: ``arch`` (to pretend, ``9.0``, or null for the GPU), ``ops`` (names of patches),
    ``dry_run``.
    """
    request = json.loads(sys.argv[1])
    emit = private_stdout()
    end_with_parent()
    if not _prepare_device(request["arch"]):
        emit(
            event="refused",
            reason="there is no GPU here whose architecture could be built for: name one by "
            "--arch, such as 9.0a, or by FLASHINFER_CUDA_ARCH_LIST",
        )
        return
    import flashinfer

    from ..upstream import installed
    from . import planning

    emit(event="planning", flashinfer=flashinfer.__version__)
    here = installed(Path(flashinfer.__path__[0]), sys.path)
    loads, skipped = planning.loads_of(request["ops"], here.version)
    made = planning.plan(loads)
    _announce(made, skipped | made.skipped, emit)
    if made.specs and not request["dry_run"]:
        _build(made.specs, emit)


def _prepare_device(arch: str | None) -> bool:
    """Pretend a card, or find the GPU: whether there is one."""
    import torch

    if arch is None:
        return torch.cuda.is_available()
    from ..pretend import pretend

    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    built_with_cuda = torch.version.cuda is not None
    pretend(arch)
    toolkit = finding.find(os.environ)
    if not built_with_cuda and toolkit and toolkit.release:
        # Flags depend on it. FlashInfer asks nvcc, with us and without, where torch has none.
        torch.version.cuda = str(toolkit.release)
    return True


def _announce(made: Any, skipped: dict[str, str], emit: Emit) -> None:
    from flashinfer.jit import env

    asked: dict[tuple[str, ...], str] = {}
    modules = []
    for name, spec in made.specs.items():
        state = _state(spec)
        modules.append(
            {
                "module": name,
                "ops": made.ops[name],
                "path": str(building.library(spec)),
                "state": state,
                # What is there needs no compiler, but for one whose sources have changed.
                "error": building.refusal(spec, asked) if state == "missing" else "",
            }
        )
    emit(
        event="plan",
        modules=modules,
        skipped=skipped,
        cache=str(env.FLASHINFER_JIT_DIR),
    )
    for module in modules:
        if module["error"] or module["state"] == "installed":
            del made.specs[module["module"]]


def _state(spec: Any) -> str:
    if building.installed(spec):
        return "installed"
    return "present" if building.library(spec).exists() else "missing"


def _build(specs: dict[str, Any], emit: Emit) -> None:
    try:
        # Upstream makes the directory when it is asked for the path.
        directory = Path(next(iter(specs.values())).lock_path).parent
        with building.alone(directory, lambda owner: emit(event="waiting", owner=owner)):
            for name, spec in specs.items():
                emit(event="begin", module=name)
                emit(event="end", module=name, **building.build(spec, emit))
    except OSError as fault:
        emit(
            event="refused",
            reason=f"FlashInfer's cache cannot be written ({fault}): set "
            "FLASHINFER_WORKSPACE_BASE to a directory that can be",
        )
