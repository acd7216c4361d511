"""A child of ``prove``: one side, its examples in turn, one JSON line for each event.

Events on stdout: ``environment`` once FlashInfer is imported, then for each example ``begin`` and
``end``. Whatever else anybody writes to stdout goes to stderr.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from .examples import EXAMPLES, SIZES, Example

Emit = Callable[..., None]


def main() -> None:
    """Do what the JSON object in the first argument asks for.

    Its keys: ``side`` (``without`` or ``with``), ``arch`` (to pretend, or null), ``scratch`` (a
    directory for FlashInfer's workspace where there is no GPU), ``examples`` (names).
    """
    request = json.loads(sys.argv[1])
    emit = _private_stdout()
    import torch

    torch_cuda = torch.version.cuda  # before anything is pretended
    gpu = _prepare_device(request["arch"], request["scratch"])
    import flashinfer

    side = _without if request["side"] == "without" else _with
    wanted = [example for example in EXAMPLES if example.name in request["examples"]]
    environment = _environment(Path(flashinfer.__path__[0]), gpu) | {"torch_cuda": torch_cuda}
    backends, inductor = ["eager"], ""
    if request["side"] == "with":
        inductor = _inductor_fault("cuda" if gpu else "cpu")
        backends += ["aot_eager"] if inductor else ["aot_eager", "inductor"]
    emit(event="environment", **environment, inductor=inductor)
    for example in wanted:
        emit(event="begin", example=example.name)
        emit(event="end", example=example.name, **side(example, gpu, backends))


def _private_stdout() -> Emit:
    """Keep stdout for ourselves: FlashInfer, a builder or a kernel may print."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def emit(**event: Any) -> None:
        stream.write(json.dumps(event) + "\n")
        stream.flush()

    return emit


def _prepare_device(arch: str | None, scratch: str) -> bool:
    """Choose the GPU or a pretended one, before FlashInfer is imported. Whether it is the GPU."""
    import torch

    if arch is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if arch is None and torch.cuda.is_available():
        torch.cuda.init()  # type: ignore[no-untyped-call]
        return True
    from ..pretend import DEFAULT_ARCH, pretend

    # With a GPU the user's own workspace serves: building a kernel again takes minutes.
    os.environ["FLASHINFER_WORKSPACE_BASE"] = scratch
    os.environ["FLASHINFER_SHIM_REFERENCE"] = "1"
    pretend(arch or DEFAULT_ARCH)
    return False


def _environment(package: Path, gpu: bool) -> dict[str, Any]:
    import torch

    from .. import status
    from ..upstream import installed

    found = installed(package, sys.path)
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "flashinfer": str(found.version or found.module_version or "unknown"),
        "device": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "pretended": not gpu,
        "ledger": [
            {
                "patch": record.patch,
                "verdict": str(record.verdict),
                "reason": record.reason,
                "action": record.action,
            }
            for record in status()
        ],
    }


def _inductor_fault(device: str) -> str:
    """Why inductor does not run on ``device``, shown by a function without FlashInfer; or empty."""
    import torch

    from .comparing import one_line

    try:
        compiled = torch.compile(lambda x: x + x, fullgraph=True, backend="inductor")
        compiled(torch.ones(32, 256, dtype=torch.bfloat16, device=device))
    except Exception as error:
        return one_line(error)
    return ""


def _without(example: Example, gpu: bool, backends: Sequence[str]) -> dict[str, Any]:
    """Compile it for the first batch size and see whether, and why, the compiler refuses."""
    import torch

    from .comparing import compiler_reason, one_line
    from .compiling import compile_step, make_inputs, make_step

    compiled, _ = compile_step(make_step(example), *backends)
    with _fake_mode(gpu):
        inputs = make_inputs(example, SIZES[0], "cuda")
        try:
            compiled(*inputs)
        except torch._dynamo.exc.TorchDynamoException as error:
            return {"refused": True, "reason": compiler_reason(error), "error": str(error)}
        except Exception as error:
            return {"refused": False, "reason": one_line(error), "error": str(error)}
    return {"refused": False, "reason": "compiles", "error": ""}


def _with(example: Example, gpu: bool, backends: Sequence[str]) -> dict[str, Any]:
    """Every way of running it that this machine has."""
    from .compiling import BITS, SHAPES, Run, run_sizes

    if gpu:
        runs = _with_gpu(example, backends)
    else:
        # No kernel and no code generator serve a device that is not there: the fake tensors show
        # the trace, and CPU tensors show that the values go through.
        trace = Run("trace", "eager", compared=SHAPES)
        runs = [run_sizes(example, trace, "cuda", mode=_fake_mode(gpu))]
        for each in backends:
            runs.append(run_sizes(example, Run("values", each, compared=BITS), "cpu"))
    return {"runs": [dataclasses.asdict(run) for run in runs]}


def _with_gpu(example: Example, backends: Sequence[str]) -> list[Any]:
    import torch

    from .compiling import BITS, SHAPES, Run, run_sizes
    from .graph import run_graph

    capability = torch.cuda.get_device_capability()
    writes = example.needs is None or capability >= example.needs
    compared, note = BITS, ""
    if not writes:
        compared = SHAPES
        note = f"sm_{capability[0]}{capability[1]} has no {example.lack}: bits not compared"

    def run(kind: str, backend: str) -> Run:
        return Run(kind, backend, compared=compared, note=note)

    runs = [
        # FlashInfer may refuse a card that it has no kernel for, and some kernels an empty batch.
        run_sizes(example, run("kernels", each), "cuda", may_raise=lambda m: not writes or m == 0)
        for each in backends
    ]
    return [*runs, run_graph(example, run("cuda graph", backends[-1]))]


def _fake_mode(gpu: bool) -> AbstractContextManager[Any]:
    """A mode in which CUDA tensors hold no data; real tensors on a GPU need none."""
    from contextlib import nullcontext

    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    if gpu:
        return nullcontext()
    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
