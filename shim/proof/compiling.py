"""One example under one backend: compiled for every batch size, compared with eager, counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics

from ..opaque.registry import NAMESPACE
from . import examples
from .comparing import difference, one_line
from .examples import MOST_FRAMES, SIZES, Example, Slot

Step = Callable[..., tuple[Tensor, Any]]

BITS, SHAPES, ERRORS = "bits", "shapes and strides", "errors"


@dataclass
class Run:
    """What came of one way of running an example. Travels to the command as JSON.

    Attributes:
        kind: ``trace`` (fake tensors), ``values`` (CPU tensors, the reference kernel), ``kernels``
            or ``cuda graph``.
        backend: of torch.compile.
        frames: how often the compiler translated the function, None where it was not counted.
        graphs: how many graphs came of that.
        op_calls: how often our ops ran in one further call for each batch size; None likewise.
        compared: with eager: ``bits`` (and all of the next), ``shapes and strides`` (and dtypes
            and devices), or ``errors`` where FlashInfer refuses the call on this card.
        note: what a reader should know of the comparison.
        fault: why it is not as it should be, empty if it is.
    """

    kind: str
    backend: str
    frames: int | None = None
    graphs: int | None = None
    op_calls: int | None = None
    compared: str = SHAPES
    note: str = ""
    fault: str = ""


def make_step(example: Example) -> Step:
    """The function to compile: doubles its first tensor and calls FlashInfer's public name.

    It takes what :func:`make_inputs` returns and gives the doubled batch and FlashInfer's result.
    """
    module, _, name = example.target.partition(":")
    function = getattr(import_module(module), name)
    options = dict(example.options)
    # Places among the tensors, the doubled batch being the first; constants have none.
    plan: list[tuple[int, object]] = []
    tensors = 1
    for argument in example.arguments:
        if argument is Slot.BATCH:
            plan.append((0, None))
        elif isinstance(argument, examples.Tensor):
            plan.append((tensors, None))
            tensors += 1
        else:
            plan.append((-1, argument))

    def step(batch: Tensor, *others: Tensor) -> tuple[Tensor, Any]:
        doubled = batch + batch
        given = (doubled, *others)
        arguments = [given[place] if place >= 0 else constant for place, constant in plan]
        return doubled, function(*arguments, **options)

    return step


def make_inputs(example: Example, m: int, device: str, *, seed: int = 0) -> list[Tensor]:
    """The batch for ``m`` rows, then the other tensors among the arguments."""
    specs = [example.batch, *(a for a in example.arguments if isinstance(a, examples.Tensor))]
    return [_make(spec, m, device, seed) for spec in specs]


def _make(spec: examples.Tensor, m: int, device: str, seed: int) -> Tensor:
    shape = [m if size == examples.M else size for size in spec.shape]
    dtype: torch.dtype = getattr(torch, spec.dtype)
    # Filled where it lies: a fake tensor on a device that is not there cannot be copied to it.
    tensor = torch.empty(shape, dtype=dtype, device=device)
    if spec.value is None:
        torch.manual_seed(seed)
        tensor.normal_()
    else:
        tensor.fill_(spec.value)
    return tensor.transpose(-2, -1) if spec.transposed else tensor


def compile_step(step: Step, backend: str) -> tuple[Step, list[int]]:
    """Compile ``step``; the list has one entry, the graphs that the backend was given so far."""
    lookup = torch._dynamo.lookup_backend(backend)
    graphs = [0]

    def counting(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs[0] += 1
        return lookup(graph, inputs)

    torch._dynamo.reset()
    clear_compilation_metrics()
    return torch.compile(step, fullgraph=True, backend=counting), graphs


def frames() -> int:
    """How often the compiler translated a step since :func:`compile_step`.

    Its parts count too, if the graph was broken; what Inductor compiles for itself does not.
    """
    names = [metrics.co_name or "" for metrics in get_compilation_metrics()]
    return sum(name == "step" or name.endswith("_step") or "_in_step_" in name for name in names)


def mark_batch(example: Example, inputs: Sequence[Tensor], m: int) -> None:
    """Tell the compiler that the batch size varies; 0 and 1 are always graphs of their own."""
    if m > 1:
        torch._dynamo.mark_dynamic(inputs[0], example.batch.batch_dimension)


def compare(found: tuple[Tensor, Any], expected: tuple[Tensor, Any], run: Run) -> str:
    """The difference; what torch itself computes is compared by its bits wherever there are any."""
    return difference(found[0], expected[0], bits=run.kind != "trace") or difference(
        found[1], expected[1], bits=run.compared == BITS
    )


def try_step(step: Step, inputs: Sequence[Tensor]) -> tuple[tuple[Tensor, Any] | None, str]:
    """The result, or the error in one line."""
    try:
        result = step(*inputs)
        if inputs[0].is_cuda and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            # A kernel that could not be launched is told of by the next one: let that be here.
            torch.ones(1, device="cuda")
            torch.cuda.synchronize()
        return result, ""
    except Exception as error:
        return None, one_line(error)


def run_sizes(
    example: Example,
    run: Run,
    device: str,
    *,
    mode: AbstractContextManager[Any] | None = None,
    may_raise: Callable[[int], bool] = lambda m: False,
) -> Run:
    """Run every batch size twice, compare with eager, and fill in ``run``.

    Args:
        example: the call.
        run: its ``kind``, ``backend`` and ``compared`` are given.
        device: of the tensors.
        mode: the fake mode to run in, none for real tensors.
        may_raise: whether FlashInfer itself may refuse a batch size here; the compiled function
            has to raise the same error then.
    """
    step = make_step(example)
    compiled, graphs = compile_step(step, run.backend)
    raised: dict[int, str] = {}
    with mode or nullcontext():
        for m, inputs in _all_inputs(example, device):
            expected, error = try_step(step, inputs)
            if error and not may_raise(m):
                return _fail(run, m, f"eager raises {error}")
            mark_batch(example, inputs, m)
            found, compiled_error = try_step(compiled, inputs)
            run.frames, run.graphs = frames(), graphs[0]
            if compiled_error != error:
                instead = f" instead of {error}" if error else ""
                return _fail(run, m, f"raises {compiled_error or 'nothing'}{instead}")
            if found is None or expected is None:
                raised[m] = error
            elif unequal := compare(found, expected, run):
                return _fail(run, m, unequal)
        if mode is None:
            run.op_calls = _op_calls(compiled, (each for _, each in _all_inputs(example, device)))
    if raised:
        sizes = ", ".join(map(str, raised))
        error = next(iter(raised.values()))
        run.note = "; ".join(filter(None, (run.note, f"m={sizes}: both raise {error}")))
    if len(raised) == len(SIZES):
        run.compared = ERRORS
    run.fault = _miscount(example, run)
    return run


def _fail(run: Run, m: int, fault: str) -> Run:
    run.fault = f"m={m}: {fault}"
    return run


def _all_inputs(example: Example, device: str) -> Iterator[tuple[int, list[Tensor]]]:
    for m in SIZES:
        yield m, make_inputs(example, m, device)


def _op_calls(compiled: Step, all_inputs: Iterable[Sequence[Tensor]]) -> int:
    """How often ops of ours run when the compiled function is called once more for each input."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for inputs in all_inputs:
            try_step(compiled, inputs)
    return sum(event.name.startswith(f"{NAMESPACE}::") for event in profile.events() or ())


def _miscount(example: Example, run: Run) -> str:
    compiled = frames()
    if run.graphs != run.frames:
        return f"{run.graphs} graphs of {run.frames} frames: the graph was broken"
    if run.frames is None or not 1 <= run.frames <= MOST_FRAMES:
        return f"{run.frames} frames for {len(SIZES)} batch sizes, expected 1 to {MOST_FRAMES}"
    if compiled != run.frames:
        return f"{compiled - run.frames} frames compiled again for batch sizes seen before"
    wanted = example.op_calls * len(SIZES)
    if run.op_calls is not None and run.op_calls != wanted:
        return f"our op ran {run.op_calls} times, expected {wanted}"
    return ""
