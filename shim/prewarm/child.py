"""The child of ``prewarm`` for one architecture: plans, then builds what is missing.

Events on stdout: ``planning`` once FlashInfer is imported; ``plan`` with all modules; then, unless
that is all that was asked for, ``waiting`` where another process builds, and for each module
``begin``, ``objects`` and ``end``. ``refused``, as the only one, says why nothing can be built.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from ..talking import Emit, end_with_parent, private_stdout


def main() -> None:
    """Do what the JSON object in the first argument asks for.

    Its keys: ``arch`` (to pretend, ``9.0``, or null for the GPU), ``ops`` (names of patches),
    ``dry_run``.
    """
    request = json.loads(sys.argv[1])
    emit = private_stdout()
    end_with_parent()
    import torch

    torch_cuda = torch.version.cuda
    if request["arch"] is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        from ..pretend import pretend

        pretend(request["arch"])
    elif not torch.cuda.is_available():
        emit(
            event="refused",
            reason="there is no GPU here whose architecture could be built for: name one by "
            "--arch, such as 9.0a, or by FLASHINFER_CUDA_ARCH_LIST",
        )
        return
    pretended_cuda, torch.version.cuda = torch.version.cuda, torch_cuda
    import flashinfer

    from ..upstream import installed
    from . import planning

    emit(event="planning", flashinfer=flashinfer.__version__)
    here = installed(Path(flashinfer.__path__[0]), sys.path)
    # To choose a kernel some functions ask torch for its CUDA; flags come from the real one.
    torch.version.cuda = pretended_cuda
    loads, skipped = planning.loads_of(request["ops"], here.version)
    torch.version.cuda = torch_cuda
    _forget_cuda()
    made = planning.plan(loads)
    _announce(made, skipped | made.skipped, emit)
    if made.specs and not request["dry_run"]:
        _build(made.specs, emit)


def _forget_cuda() -> None:
    from flashinfer.jit import cpp_ext

    cpp_ext.get_cuda_version.cache_clear()


def _announce(made: Any, skipped: dict[str, str], emit: Emit) -> None:
    from flashinfer.jit import env

    from . import building

    asked: dict[tuple[str, ...], str] = {}
    modules = [
        {
            "module": name,
            "ops": made.ops[name],
            "path": str(building.library(spec)),
            "state": _state(spec),
            "error": "" if building.installed(spec) else building.refusal(spec, asked),
        }
        for name, spec in made.specs.items()
    ]
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
    from . import building

    if building.installed(spec):
        return "installed"
    return "present" if building.library(spec).exists() else "missing"


def _build(specs: dict[str, Any], emit: Emit) -> None:
    from . import building

    first = next(iter(specs.values()))
    directory = Path(first.lock_path).parent
    try:
        with building.alone(directory, lambda owner: emit(event="waiting", owner=owner)):
            for name, spec in specs.items():
                emit(event="begin", module=name)
                emit(event="end", module=name, **building.build(spec, emit))
    except OSError as fault:
        emit(
            event="refused",
            reason=f"FlashInfer's cache {directory} cannot be written ({fault.strerror}): set "
            "FLASHINFER_WORKSPACE_BASE to a directory that can be",
        )
