"""One example under one backend: compiled for every batch size, compared with eager, counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics
from torch._subclasses.fake_tensor import FakeTensorMode

from ..opaque.declare import MakeTensor
from ..opaque.later import NAMESPACE
from .comparing import difference, one_line
from .examples import MOST_FRAMES, Example
from .making import arguments_of, fake, on

#: The arguments of FlashInfer's function by keyword, and the batch where it is none of them.
Inputs = Mapping[str, Any]
#: From those to the doubled batch and what the function returned.
Step = Callable[[Inputs], tuple[Tensor, Any]]

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


class Call:
    """An example with FlashInfer's function: what is compiled, and its inputs.

    The step doubles the first floating-point tensor among the arguments before it calls, so that a
    backend has code to generate in front; where there is none, one that is not handed over.

    Args:
        example: what is called.
        function: FlashInfer's; of a method the one in its class.
        device: on which an object can be planned, if the example has one.
    """

    def __init__(
        self, example: Example, function: Callable[..., Any], device: str = "cuda"
    ) -> None:
        self.example = example
        self.function = function
        # Two sizes that no rule for padding makes equal.
        sizes = (example.sizes[0], example.sizes[-1])
        with nullcontext() if example.planned else FakeTensorMode():
            make = on(device) if example.planned else fake("cpu")
            few, many = (self.arguments(make, m) for m in sizes)
        batch = next((name for name, value in few.items() if _can_double(value)), "")
        pairs = zip(tensors(few), tensors(many), strict=True)
        self._varying = [_unequal(one, other) for one, other in pairs]
        self._separate = not batch

        def step(inputs: Inputs) -> tuple[Tensor, Any]:
            twice = inputs[batch] + inputs[batch]
            arguments = {**inputs, batch: twice}
            if not batch:
                del arguments[batch]
            return twice, function(**arguments)

        self.step: Step = step

    def inputs(self, make: MakeTensor, m: int) -> Inputs:
        """For a batch of ``m``; a call may write into them, so each wants its own."""
        separate = {"": make(m, 256)} if self._separate else {}
        return {**self.arguments(make, m), **separate}

    def arguments(self, make: MakeTensor, m: int) -> dict[str, Any]:
        """Those of the example alone, for a batch of ``m``."""
        return arguments_of(self.function, self.example.arguments(make, m), self.example.also)

    def mark_dynamic(self, inputs: Inputs) -> None:
        """Tell the compiler what varies with the batch; 0 and 1 are always graphs of their own."""
        varying = [*self._varying, [0]] if self._separate else self._varying
        for tensor, dimensions in zip(tensors(inputs), varying, strict=True):
            for dimension in dimensions:
                if tensor.shape[dimension] > 1:
                    torch._dynamo.mark_dynamic(tensor, dimension)


def tensors(value: Any) -> list[Tensor]:
    """Every tensor in ``value``: a tensor, or containers of them."""
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value
    return [t for part in parts for t in tensors(part)] if _is_container(value) else []


def _is_container(value: object) -> bool:
    return isinstance(value, (Mapping, tuple, list))


def _can_double(value: object) -> bool:
    # torch does not add numbers of 8 bits.
    return isinstance(value, Tensor) and value.is_floating_point() and value.itemsize > 1


def _unequal(one: Tensor, other: Tensor) -> list[int]:
    return [d for d in range(one.dim()) if one.shape[d] != other.shape[d]]


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
    """How often the compiler translated a step since :func:`compile_step`, and succeeded.

    Its parts count too, if the graph was broken; what Inductor compiles for itself does not.
    """
    done = [metrics for metrics in get_compilation_metrics() if metrics.fail_type is None]
    names = [metrics.co_name or "" for metrics in done]
    return sum(name == "step" or name.endswith("_step") or "_in_step_" in name for name in names)


@dataclass(frozen=True)
class Outcome:
    """What a step returned and what its inputs hold after it; or the error.

    ``error`` is one line of it, ``told`` all of one that the compiler met while tracing.
    """

    inputs: Inputs
    returned: tuple[Tensor, Any] | None = None
    error: str = ""
    told: str = ""


def try_step(step: Step, inputs: Inputs) -> Outcome:
    """Run a step once. Equal inputs draw equal random numbers."""
    torch.manual_seed(0)
    try:
        returned = step(inputs)
        on_gpu = any(tensor.is_cuda for tensor in tensors(inputs))
        if on_gpu and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            # A kernel that could not be launched is told of by the next one: let that be here.
            torch.ones(1, device="cuda")
            torch.cuda.synchronize()
        return Outcome(inputs, returned)
    except Exception as error:
        tracing = isinstance(error, torch._dynamo.exc.TorchDynamoException)
        return Outcome(inputs, error=one_line(error), told=str(error) if tracing else "")


def compare(found: Outcome, expected: Outcome, run: Run) -> str:
    """The difference; what torch itself computes is compared by its bits wherever there are any."""
    if not _same_error(found, expected):
        instead = f" instead of {expected.error}" if expected.error else ""
        return f"raises {found.error or 'nothing'}{instead}"
    if found.returned is None or expected.returned is None:
        return ""
    bits = run.compared == BITS
    written = difference(tensors(found.inputs), tensors(expected.inputs), bits=bits)
    return (
        difference(found.returned[0], expected.returned[0], bits=run.kind != "trace")
        or difference(found.returned[1], expected.returned[1], bits=bits)
        or (written and f"inputs after the call: {written}")
    )


def _same_error(found: Outcome, expected: Outcome) -> bool:
    """Whether both raised the same, or neither did; the compiler's own errors quote others."""
    text = expected.error.partition(": ")[2]
    return found.error == expected.error or (bool(text) and text in found.told)


def run_sizes(
    call: Call,
    run: Run,
    device: str,
    *,
    mode: AbstractContextManager[Any] | None = None,
    may_raise: Callable[[int], bool] = lambda m: False,
) -> Run:
    """Run every batch size twice, compare with eager, and fill in ``run``.

    Args:
        call: what to run.
        run: its ``kind``, ``backend`` and ``compared`` are given.
        device: of the tensors.
        mode: the fake mode to run in, none for real tensors.
        may_raise: whether FlashInfer itself may refuse a batch size here; the compiled function
            has to raise the same error then.
    """
    compiled, graphs = compile_step(call.step, run.backend)
    sizes = call.example.sizes
    raised: dict[int, str] = {}

    def make() -> MakeTensor:
        return on(device) if mode is None else fake(device)

    with mode or nullcontext():
        for m in sizes:
            expected = try_step(call.step, call.inputs(make(), m))
            if expected.error and not may_raise(m):
                return _fail(run, m, f"eager raises {expected.error}")
            inputs = call.inputs(make(), m)
            call.mark_dynamic(inputs)
            found = try_step(compiled, inputs)
            run.frames, run.graphs = frames(), graphs[0]
            if unequal := compare(found, expected, run):
                return _fail(run, m, unequal)
            if expected.error:
                raised[m] = expected.error
        if mode is None:
            run.op_calls = _op_calls(compiled, (call.inputs(make(), m) for m in sizes))
    if raised:
        refused = ", ".join(map(str, raised))
        error = next(iter(raised.values()))
        run.note = "; ".join(filter(None, (run.note, f"m={refused}: both raise {error}")))
    if len(raised) == len(sizes):
        run.compared = ERRORS
    run.fault = _miscount(call.example, run)
    return run


def _fail(run: Run, m: int, fault: str) -> Run:
    run.fault = f"m={m}: {fault}"
    return run


def _op_calls(compiled: Step, all_inputs: Iterable[Inputs]) -> int:
    """How often ops of ours run when the compiled function is called once more for each input."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for inputs in all_inputs:
            try_step(compiled, inputs)
    return sum(event.name.startswith(f"{NAMESPACE}::") for event in profile.events() or ())


def _miscount(example: Example, run: Run) -> str:
    compiled, sizes = frames(), len(example.sizes)
    if run.graphs != run.frames:
        return f"{run.graphs} graphs of {run.frames} frames: the graph was broken"
    if run.frames is None or not 1 <= run.frames <= MOST_FRAMES:
        return f"{run.frames} frames for {sizes} batch sizes, expected 1 to {MOST_FRAMES}"
    if compiled != run.frames:
        return f"{compiled - run.frames} frames compiled again for batch sizes seen before"
    wanted = example.op_calls * sizes
    if run.op_calls is not None and run.op_calls != wanted:
        return f"our op ran {run.op_calls} times, expected {wanted}"
    return ""
