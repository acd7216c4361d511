"""Child of test_ops: all ops of one release, without us or with us. Prints one JSON object.

    python ops_child.py without|with REQUEST

A request holds the ``cases`` (see ``ops_making``) and the ``ops``: the plan of each, by name (see
``ops_cases``). Nothing that fails here stops the rest: the answers tell.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import json
import logging
import re
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import child_side
import ops_kernels
from ops_making import Json, Maker, laid_out, meaningless, tensors_of

child_side.pretend(ops_kernels.ARCH)

import torch  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._subclasses import FakeTensor  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from shim.opaque import capture, later, registry  # noqa: E402
from shim.opaque.identity import original_of  # noqa: E402
from shim.patches.ops import OPS  # noqa: E402
from shim.proof import making  # noqa: E402

# On two cores several processes at once are faster than several threads of each.
torch.set_num_threads(1)

# It times the guards of every graph for a log, which takes as long as all else in a compilation.
guards: Any = torch._dynamo.guards
guards.profile_guard_manager = lambda *args: 0.0

# Torch 2.9 traces what a fake mode logs, where one is active while compiled code runs.
torch._dynamo.config.ignore_logger_methods.add(logging.Logger.isEnabledFor)

Function = Callable[..., Any]

#: Names of cached functions of upstream that load a module or compile a kernel.
LOADERS = re.compile(r"_module|_kernel")

PLAIN: Json = {
    "m": 32,
    "dtype": "bfloat16",
    "rank": "as it is",
    "layouts": ["contiguous"],
    "out": None,
    "outs": 9,
}


class Subject:
    """One op of the release at hand: what is called, and with what."""

    def __init__(self, name: str, plan: Json) -> None:
        self.op, self.plan = OPS[name], plan
        self.function: Function = getattr(ops_kernels.imported(plan["module"]), self.op.path)
        parameters = inspect.signature(self.function).parameters
        #: By the number of the result.
        self.outs = {i: name for i, name in enumerate(self.op.out) if name and name in parameters}
        #: What every call writes into.
        self.always = [
            name
            for name in self.op.mutates
            if name in parameters and parameters[name].default is inspect.Parameter.empty
        ]
        self.also = {name: value for name, value in self.op.also.items() if name in parameters}
        self.variants: tuple[str | None, ...] = (None, "contiguous") if self.outs else (None,)

    def arguments(self, maker: Maker, case: Json) -> dict[str, Any]:
        """Of the call that a case describes; outputs that are given are like those returned."""
        found = maker.example(self.op, case) | self.also
        if self.outs and case["out"] is not None:
            fake = any(isinstance(t, FakeTensor) for t in tensors_of([*found.values()]))
            function = self.function if fake else on_the_device(self.function)
            with ops_kernels.writing(False):  # this is not yet the call
                results = tensors_of(function(**found))[: case["outs"]]
            for i, result in enumerate(results):
                if name := self.outs.get(i):
                    found[name] = laid_out(_emptied(result), case["out"])
        return found

    def written(self, arguments: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors among the arguments that the op is declared to write into."""
        names = [name for name in (*self.op.mutates, *self.outs.values()) if name in arguments]
        return [tensor for name in names for tensor in tensors_of(arguments[name])]


def _emptied(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, FakeTensor):
        ops_kernels.fill(tensor, 0)
    return tensor


def outcome(subject: Subject, maker: Maker, case: Json, function: Function | None = None) -> Json:
    """Of a case, by the subject's function or by one that stands for it; or the error."""
    try:
        arguments = subject.arguments(maker, case)
        return described((function or subject.function)(**arguments), arguments)
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}


def described(result: Any, arguments: Mapping[str, Any]) -> Json:
    """Where the elements of the results lie, and which arguments they share memory with."""
    owners = {
        tensor.untyped_storage()._cdata: name
        for name, value in arguments.items()
        for tensor in tensors_of(value)
    }
    return {
        "type": "Tensor" if isinstance(result, torch.Tensor) else type(result).__name__,
        "tensors": [
            {
                "size": [int(n) for n in tensor.size()],
                "stride": [int(n) for n in tensor.stride()],
                "offset": int(tensor.storage_offset()),
                "dtype": str(tensor.dtype),
                "device": tensor.device.type,
                "shares": owners.get(tensor.untyped_storage()._cdata),
            }
            for tensor in tensors_of(result)
        ],
    }


def without(subjects: Mapping[str, Subject], request: Json) -> Json:
    """The premise, then upstream's own outcomes with kernels that do nothing."""
    answers: Json = {name: {} for name in subjects}
    for name, subject in subjects.items():
        answers[name]["premise"] = child_side.error_of(functools.partial(premise, subject))
    ops_kernels.install({subject.plan["module"] for subject in subjects.values()})
    for name, subject in subjects.items():
        answer, maker = answers[name], Maker(meaningless)
        cases = request["cases"][:: subject.plan["every"]]
        call = on_the_device(subject.function)
        answer["real"] = [outcome(subject, maker, case, call) for case in cases]
        answer["of the sizes"] = [
            outcome(subject, maker, PLAIN | {"m": m}, call) for m in subject.plan["sizes"]
        ]
        with child_side.fake_cuda():
            maker = Maker(making.fake())
            answer["without data"] = [
                outcome(subject, maker, case) if number % 4 == 0 or "error" in real else None
                for number, (case, real) in enumerate(zip(cases, answer["real"], strict=True))
            ]
    return answers


def premise(subject: Subject) -> None:
    """Compile the example whole."""
    torch._dynamo.reset()
    compiled = torch.compile(subject.function, fullgraph=True, backend="eager")
    with child_side.fake_cuda():
        compiled(**subject.arguments(Maker(making.fake()), PLAIN))


def with_us(subjects: Mapping[str, Subject], request: Json) -> Json:
    """What the compiler makes of our ops, their fakes, and what is left of both."""
    answers: Json = {name: {} for name in subjects}
    for name, subject in subjects.items():
        answer, sizes = answers[name], subject.plan["sizes"]
        cases = request["cases"][:: subject.plan["every"]]
        answer["is ours"] = original_of(subject.function) is not None
        answer["compiled"] = [compiled(subject, sizes, None)]
        if subject.outs and subject.plan["outputs"]:
            answer["compiled"].append(compiled(subject, sizes[: len(sizes) // 2], "contiguous"))
        with child_side.fake_cuda():
            maker = Maker(making.fake())
            answer["fake"] = [outcome(subject, maker, case) for case in cases]
    left = left_behind()
    ops_kernels.install({subject.plan["module"] for subject in subjects.values()})
    run_ops_on_the_device()
    for name, subject in subjects.items():
        answer, maker = answers[name], Maker(meaningless)
        cases = request["cases"][:: subject.plan["every"]]
        answer["run"] = [outcome(subject, maker, case, watched(subject.function)) for case in cases]
        answer["in turn"] = attempt(in_turn, subject)
        answer["captured"] = attempt(captured, subject)
        with ops_kernels.writing():
            answer["always written"] = subject.always
            answer["mutation"] = attempt(mutation, subject)
            if subject.plan["opcheck"]:
                answer["opcheck"] = [attempt(opcheck, subject, out) for out in subject.variants]
    return {"ops": answers, "left behind": left}


def compiled(subject: Subject, sizes: Sequence[int], out: str | None) -> Json:
    """Compiled once for all sizes: the outcome of each, and the graphs that it took."""
    backend = child_side.Counting()
    torch._dynamo.reset()
    whole = torch.compile(subject.function, fullgraph=True, backend=backend, dynamic=True)
    with child_side.fake_cuda():
        maker = Maker(making.fake())
        outcomes = [outcome(subject, maker, PLAIN | {"m": m, "out": out}, whole) for m in sizes]
        named = attempt(subject.arguments, maker, PLAIN | {"out": out})
    return {
        "outcomes": outcomes,
        "outputs given": sorted(set(subject.outs.values()) & named.keys()),
        "graphs": [
            [_named(node.target) for node in graph.graph.nodes if node.op.startswith("call")]
            for graph in backend.graphs
        ],
    }


def _named(target: Any) -> str:
    """An op by its name without the release's overload, any other function with its module."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target).rpartition(".")[0]
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"


def left_behind() -> Json:
    """What our tracing left in FlashInfer's modules, and the loaders whose caches it filled."""
    kept: list[str] = []
    filled: list[str] = []
    seen: set[int] = set()
    heap = [
        (f"{name}.{key}", value)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "flashinfer"
        for key, value in list(vars(module).items())
    ]
    while heap:
        path, value = heap.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, FakeTensor) or type(value).__module__.startswith("shim.opaque"):
            kept.append(path)
        elif isinstance(value, dict):
            heap += [(f"{path}[{key!r}]", item) for key, item in list(value.items())]
        elif isinstance(value, (list, tuple, set)):
            heap += [(f"{path}[{number}]", item) for number, item in enumerate(list(value))]
        elif isinstance(value, functools._lru_cache_wrapper):
            heap.append((f"{path}.__wrapped__", value.__wrapped__))
            if LOADERS.search(value.__wrapped__.__name__) and value.cache_info().currsize:
                filled.append(path)
        elif original_of(value) is not None:  # one of ours, which may hold what is ours
            heap.append((path, original_of(value)))
        elif isinstance(value, types.FunctionType):
            cells = enumerate(value.__closure__ or ())
            heap += [(f"{path}<{number}>", cell.cell_contents) for number, cell in cells]
    return {"kept": sorted(kept), "filled": sorted(filled)}


def in_turn(subject: Subject) -> list[Json]:
    """A traced call, a real one and a traced one: the outcome of each, and the kernels it ran."""
    found = []
    for traced in (True, False, True):
        before = ops_kernels.Kernel.calls
        make = making.fake("cpu") if traced else meaningless
        function = subject.function if traced else on_the_device(subject.function)
        with child_side.fake_cuda() if traced else contextlib.nullcontext():
            arguments = subject.arguments(Maker(make), PLAIN)
            result = function(**arguments)
            answer = described(result, arguments)
        answer["fake"] = [isinstance(tensor, FakeTensor) for tensor in tensors_of(result)]
        answer["kernels"] = ops_kernels.Kernel.calls - before
        found.append(answer)
    return found


def captured(subject: Subject) -> Json:
    """While a stream records: a call that ran before, and one whose kernels none has loaded.

    The error of each, and how many kernels the call wants.
    """
    wanted: list[Any] = []
    is_loaded, cuda = capture.is_loaded, torch.cuda
    before = cuda.is_initialized, cuda.is_current_stream_capturing

    def noted(load: Any) -> bool:
        wanted.append(load)
        return is_loaded(load)

    def call() -> Any:
        return watched(subject.function)(**subject.arguments(Maker(meaningless), PLAIN))

    not_run = child_side.error_of(call)
    if not_run:
        return {"not run": not_run}
    cuda.is_initialized = cuda.is_current_stream_capturing = lambda: True
    try:
        capture.is_loaded = noted
        again = child_side.error_of(call)
        capture.is_loaded = lambda load: False
        return {"kernels": len(wanted), "again": again, "first": child_side.error_of(call)}
    finally:
        capture.is_loaded = is_loaded
        cuda.is_initialized, cuda.is_current_stream_capturing = before


def mutation(subject: Subject) -> Json | None:
    """What the compiler's later nodes and its caller see of what kernels write, next to eager.

    None where the op writes into no argument.
    """
    case = PLAIN | {"out": subject.variants[-1]}
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Function:
        graphs.append(graph)
        return graph.forward

    def step(**arguments: Any) -> list[torch.Tensor]:
        subject.function(**arguments)
        return [tensor.clone() for tensor in subject.written(arguments)]

    torch._dynamo.reset()
    whole = torch.compile(step, fullgraph=True, backend=aot_autograd(fw_compiler=keep))
    runs = []
    for function in (on_the_device(step), whole):
        arguments = subject.arguments(Maker(making.on("cpu")), case)
        written = [_emptied(tensor) for tensor in subject.written(arguments)]
        before = [content(tensor) for tensor in written]
        if not written:
            return None
        later = [content(tensor) for tensor in function(**arguments)]
        runs.append((before, later, [content(tensor) for tensor in written]))
    (before, later, after), (_, compiled_later, compiled_after) = runs
    return {
        "written": [old != new for old, new in zip(before, after, strict=True)],
        "later nodes": compiled_later == later,
        "caller": compiled_after == after,
        "functionalized": [
            _named(node.args[0])
            for graph in graphs
            for node in graph.graph.nodes
            if "auto_functionalized" in str(node.target)
        ],
    }


def content(tensor: torch.Tensor) -> bytes:
    """The bytes of the elements, in order."""
    return bytes(tensor.contiguous().view(torch.uint8).numpy())


def opcheck(subject: Subject, out: str | None) -> dict[str, str]:
    """What ``torch.library.opcheck`` says of the op on CPU tensors, by test; empty if it passed."""
    try:
        op, args, kwargs = _called(subject, Maker(_comparable), out)
    except Exception:  # upstream asks for FP8
        op, args, kwargs = _called(subject, Maker(making.on("cpu")), out)
    tests = subject.plan["opcheck"]
    found = torch.library.opcheck(op, args, kwargs, test_utils=tests, raise_exception=False)
    return {test: "" if said == "SUCCESS" else str(said) for test, said in found.items()}


def _comparable(*size: int, dtype: str = "bfloat16", **options: Any) -> torch.Tensor:
    # opcheck computes with what is written into, and torch cannot with FP8.
    dtype = re.sub("float8.*", "int8", dtype)
    made: torch.Tensor = making.on("cpu")(*size, dtype=dtype, **options)
    return made


def _called(subject: Subject, maker: Maker, out: str | None) -> tuple[Any, tuple[Any, ...], Json]:
    """The op that a call of the example comes down to, with its arguments."""
    with Seeing() as seen:
        arguments = subject.arguments(maker, PLAIN | {"out": out})
        seen.calls.clear()  # of the outputs' maker
        subject.function(**arguments)
    ((op, args, kwargs),) = seen.calls
    return op, args, kwargs


def on_the_device(function: Function) -> Function:
    """The function called with CPU tensors that say they are on a GPU."""

    def call(**arguments: Any) -> Any:
        with ops_kernels.OnTheDevice():
            return function(**arguments)

    return call


def run_ops_on_the_device() -> None:
    """Let our ops, called by whatever a compiler made, take CPU tensors for tensors on a GPU."""
    for name in later.all_promised():
        getattr(torch.ops.flashinfer_shim, name, None)  # not each has the op that writes
    for key, body in registry._bodies.items():
        registry._bodies[key] = dataclasses.replace(
            body, run=on_the_device(body.run), fake=_moving(body.fake)
        )
    for key, function in registry._functions.items():
        registry._functions[key] = on_the_device(function)


def _moving(fake: Function) -> Function:
    """The fake of an op, asked about tensors on a GPU, for tensors without data on the CPU."""

    def call(**arguments: Any) -> Any:
        moved = pytree.tree_map_only(torch.Tensor, lambda t: _moved(t, "cuda"), arguments)
        return pytree.tree_map_only(torch.Tensor, lambda t: _moved(t, "cpu"), fake(**moved))

    return call


def _moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    # Without data there is nothing to copy, and no device that could.
    reach = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    base = tensor.new_empty(tensor.storage_offset() + reach, device=device)
    return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def watched(function: Function) -> Function:
    """The function called where somebody watches, so that the op runs in its place."""

    def call(**arguments: Any) -> Any:
        with Seeing():
            return function(**arguments)

    return call


class Seeing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches calls, so that ours go to the op, and notes with what."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace == later.NAMESPACE:
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def attempt(call: Callable[..., Any], *args: Any) -> Any:
    """What ``call`` returns, or its error as text."""
    try:
        return call(*args)
    except Exception:
        return {"error": traceback.format_exc()}


def main() -> None:
    """Answer the request."""
    side, request = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    importlib.import_module("flashinfer")
    ops_kernels.answer_for_the_machine()
    subjects = {name: Subject(name, plan) for name, plan in request["ops"].items()}
    answers = without(subjects, request) if side == "without" else with_us(subjects, request)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
