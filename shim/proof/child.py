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
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..contract import Contract
from ..patches import PATCHES, RELEASES
from ..talking import private_stdout
from ..upstream import Installed, installed
from .examples import EXAMPLES, IN_FORCE, Example, unfit

if TYPE_CHECKING:  # torch comes with it, and Dynamo, before which the device is to be chosen
    from packaging.version import Version

    from .compiling import Call, Run

Side = Callable[["Call", bool, Sequence[str]], dict[str, Any]]


def main() -> None:
    """Do what the JSON object in the first argument asks for.

    Its keys: ``side`` (``without``, ``with`` or ``shadow``), ``arch`` (to pretend, or null),
    ``scratch`` (a directory for FlashInfer's workspace where there is no GPU), ``examples``
    (names).
    """
    request = json.loads(sys.argv[1])
    emit = private_stdout()
    import torch

    torch_cuda = torch.version.cuda  # before anything is pretended
    gpu = _prepare_device(request["arch"], request["scratch"])
    import flashinfer

    side = _SIDES[request["side"]]
    here = installed(Path(flashinfer.__path__[0]), sys.path)
    environment = _environment(here, gpu) | {"torch_cuda": torch_cuda}
    backends, inductor = ["eager"], ""
    if request["side"] == "with":
        inductor = _inductor_fault("cuda" if gpu else "cpu")
        backends += ["aot_eager"] if inductor else ["aot_eager", "inductor"]
    emit(event="environment", **environment, inductor=inductor)
    for name in request["examples"]:
        emit(event="begin", example=name)
        emit(event="end", example=name, **_try(EXAMPLES[name], here.version, gpu, side, backends))


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


def _environment(here: Installed, gpu: bool) -> dict[str, Any]:
    import torch

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "flashinfer": str(here.version or here.module_version or "unknown"),
        "device": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "pretended": not gpu,
        "ledger": _ledger(),
    }


def _ledger() -> list[dict[str, str]]:
    from .. import status

    return [
        {
            "patch": record.patch,
            "verdict": str(record.verdict),
            "reason": record.reason,
            "action": record.action,
        }
        for record in status()
    ]


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


def _try(
    example: Example, version: Version | None, gpu: bool, side: Side, backends: Sequence[str]
) -> dict[str, Any]:
    """What came of one example, or why there is nothing to try here."""
    from .compiling import Call

    skipped = unsuited(example, version)
    if not skipped and example.planned and not gpu:
        skipped = "a method of an object that FlashInfer plans on a GPU, and none is used here"
    function = None if skipped else find(example, version)
    if function is None:
        return {"skipped": skipped or f"FlashInfer {version} has no such function"}
    # The ledger anew: FlashInfer does not import all of its modules by itself.
    (record,) = (each for each in _ledger() if each["patch"] == example.patch)
    if side is _with and record["verdict"] not in IN_FORCE:
        # It would be FlashInfer's own function that is tried, and may go and build its kernel.
        return {"skipped": "", "record": record, "runs": []}
    return {"skipped": "", "record": record, **side(Call(example, function), gpu, backends)}


def unsuited(example: Example, version: Version | None) -> str:
    """Why the call cannot be made with this release or on this card; empty if it can."""
    import torch

    absent = _absent(example, version)
    if absent or example.lack:
        return absent
    return unfit(example, torch.cuda.get_device_capability())


def _absent(example: Example, version: Version | None) -> str:
    """That a tested release has no such function, empty if it has or that is not known."""
    contract = _contract(example)
    listed = version is not None and version.public in RELEASES
    gone = listed and contract.row_for(version) is None
    return f"FlashInfer {version} has no such function" if gone else ""


def _contract(example: Example) -> Contract:
    return next(patch.contract for patch in PATCHES if patch.name == example.patch)


def find(example: Example, version: Version | None) -> Callable[..., Any] | None:
    """The function under the name by which users import it; None if this release has none."""
    import flashinfer

    modules = () if _absent(example, version) else _contract(example).modules(version)
    # Another module's function may have the same name: then the op has one of its own.
    exported = vars(flashinfer) if example.patch == example.function else {}
    found: Callable[..., Any] | None = _attribute(exported, example.function)
    missing: ModuleNotFoundError | None = None
    for module in modules:
        if found is not None:
            break
        try:
            found = _attribute(vars(import_module(module)), example.function)
        except ModuleNotFoundError as error:
            missing = error
    if found is None and missing is not None:
        raise missing
    return found


def _attribute(names: Mapping[str, Any], path: str) -> Any:
    """What a dotted path leads to, such as a method of a class, None if nothing."""
    first, *others = path.split(".")
    found = names.get(first)
    for name in others:
        found = getattr(found, name, None)
    return found


def _without(call: Call, gpu: bool, backends: Sequence[str]) -> dict[str, Any]:
    """Compile it for the first batch size and see whether, and why, the compiler refuses."""
    import torch

    from .comparing import compiler_reason, one_line
    from .compiling import compile_step
    from .making import fake, on

    compiled, _ = compile_step(call.step, *backends)
    with _fake_mode(gpu):
        inputs = call.inputs(on("cuda") if gpu else fake("cuda"), call.example.sizes[0])
        try:
            compiled(inputs)
        except torch._dynamo.exc.TorchDynamoException as error:
            return {"refused": True, "reason": compiler_reason(error), "error": str(error)}
        except Exception as error:
            return {"refused": False, "reason": one_line(error), "error": str(error)}
    return {"refused": False, "reason": "compiles", "error": ""}


def _with(call: Call, gpu: bool, backends: Sequence[str]) -> dict[str, Any]:
    """Every way of running it that this machine has."""
    from .compiling import BITS, SHAPES, Run, run_sizes

    refusal = "" if call.example.lack else _refusal(call, gpu)
    if refusal:
        return {"skipped": f"FlashInfer itself refuses the call here ({refusal})"}
    if gpu:
        runs = _with_gpu(call, backends)
    else:
        # No kernel and no code generator serve a device that is not there: the fake tensors show
        # the trace, and CPU tensors, where any go through, that the values do.
        trace = Run("trace", "eager", compared=SHAPES)
        runs = [run_sizes(call, trace, "cuda", mode=_fake_mode(gpu), may_raise=lambda m: m == 0)]
        for each in backends if call.example.on_cpu else ():
            runs.append(run_sizes(call, Run("values", each, compared=BITS), "cpu"))
    return {"runs": [dataclasses.asdict(run) for run in runs]}


def _shadow(call: Call, gpu: bool, backends: Sequence[str]) -> dict[str, Any]:
    """What FlashInfer's own Python returns for some batch sizes, its kernels left out."""
    from .describing import outputs
    from .making import fake

    with _fake_mode(gpu):
        return {"outputs": outputs(call, fake("cuda"))}


_SIDES: Mapping[str, Side] = {"without": _without, "with": _with, "shadow": _shadow}


def _refusal(call: Call, gpu: bool) -> str:
    """The error of an eager call, such as for want of a kernel for this card."""
    from .compiling import try_step
    from .making import fake, on

    with _fake_mode(gpu):
        make = on("cuda") if gpu else fake("cuda")
        return try_step(call.step, call.inputs(make, call.example.sizes[0])).error


def _with_gpu(call: Call, backends: Sequence[str]) -> list[Run]:
    import torch

    from .compiling import BITS, SHAPES, Run, run_sizes
    from .graph import run_graph

    capability = torch.cuda.get_device_capability()
    writes = capability >= call.example.capability
    compared, note = BITS, ""
    if not writes:
        compared = SHAPES
        note = f"sm_{capability[0]}{capability[1]} has no {call.example.lack}: bits not compared"

    def run(kind: str, backend: str) -> Run:
        return Run(kind, backend, compared=compared, note=note)

    runs = [
        # FlashInfer may refuse a card that it has no kernel for, and some kernels an empty batch.
        run_sizes(call, run("kernels", each), "cuda", may_raise=lambda m: not writes or m == 0)
        for each in backends
    ]
    return [*runs, run_graph(call, run("cuda graph", backends[-1]))]


def _fake_mode(gpu: bool) -> AbstractContextManager[Any]:
    """A mode in which CUDA tensors hold no data; real tensors on a GPU need none."""
    from contextlib import nullcontext

    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    if gpu:
        return nullcontext()
    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
