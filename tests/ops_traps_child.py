"""Child of test_ops_traps: what differs between functions in ways that a shim falls over.

    python ops_traps_child.py REQUEST

Answers by trap, with us, for the ops of one release. A request holds the ``ops``, each with its
``module``, and the names of the ``traps``.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import child_side
import ops_child
import ops_kernels
import torch
from ops_child import PLAIN, Subject, on_the_device
from ops_making import Json, Maker, tensors_of

from shim.opaque.identity import original_of
from shim.proof import making

Subjects = Mapping[str, Subject]


def traced(function: Callable[..., Any], arguments: Json) -> tuple[Any, list[torch.fx.Node]]:
    """The result of a function compiled whole, and the calls of our ops in its graph."""
    backend = child_side.Counting()
    torch._dynamo.reset()
    result = torch.compile(function, fullgraph=True, backend=backend)(**arguments)
    (graph,) = backend.graphs
    return result, [n for n in graph.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]


def identity(subjects: Subjects) -> Json:
    """What replacements show otherwise than what they replace, of attributes and signatures."""
    differ = {}
    for name, subject in subjects.items():
        ours = subject.function
        original: Any = original_of(ours)
        kept = {
            k: v for k, v in vars(original).items() if k not in ("__wrapped__", "__signature__")
        }
        lost = [key for key, value in kept.items() if vars(ours).get(key) is not value]
        lost += [
            f"signature(follow_wrapped={follow})"
            for follow in (True, False)
            if inspect.signature(ours, follow_wrapped=follow)
            != inspect.signature(original, follow_wrapped=follow)
        ]
        if lost:
            differ[name] = lost
    return differ


def checks(subjects: Subjects) -> Json:
    """Of functions that upstream checks: whether they can be asked, and take ``skip_check``."""
    found = {}
    for name, subject in subjects.items():
        function: Any = subject.function
        if hasattr(function, "is_backend_supported"):
            with child_side.fake_cuda():
                arguments = subject.arguments(Maker(making.fake()), PLAIN) | {"skip_check": True}
                _, (node, *_) = traced(function, arguments)
            found[name] = [
                function.is_compute_capability_supported(100),
                node.kwargs.get("skip_check"),
            ]
    return found


def outputs(subjects: Subjects) -> Json:
    """By op with optional outputs: whether the very outputs that were given come back."""
    found = {}
    for name, subject in subjects.items():
        if subject.outs:
            with child_side.fake_cuda():
                arguments = subject.arguments(Maker(making.fake()), PLAIN | {"out": "contiguous"})
                result, nodes = traced(subject.function, arguments)
            given = [arguments[out] for out in subject.outs.values() if out in arguments]
            found[name] = [
                [ours is theirs for ours, theirs in zip(tensors_of(result), given, strict=False)],
                [_name(node) for node in nodes],
            ]
    return found


def inductor(subjects: Subjects) -> Json:
    """All ops of the release in one function under Inductor, next to eager: differing ones."""

    def arguments() -> dict[str, dict[str, Any]]:
        return {
            name: subject.arguments(Maker(making.on("cpu")), PLAIN | {"out": subject.variants[-1]})
            for name, subject in subjects.items()
        }

    def step(given: dict[str, dict[str, Any]]) -> dict[str, list[torch.Tensor]]:
        return {
            name: [
                tensor.clone()
                for tensor in (
                    *tensors_of(subject.function(**given[name])),
                    *subject.written(given[name]),
                )
            ]
            for name, subject in subjects.items()
        }

    torch._dynamo.reset()
    with ops_kernels.writing():
        eager = on_the_device(step)(given=arguments())
        compiled = torch.compile(step, fullgraph=True, backend="inductor")(arguments())
    return {
        "ops": len(subjects),
        "differ": [
            name
            for name in subjects
            if [*map(_described, eager[name])] != [*map(_described, compiled[name])]
        ],
    }


def _described(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, ops_child.content(tensor)


def parts_of_one_tensor(subjects: Subjects) -> Json:
    """Queries and keys that are slices of one tensor, rotated in place: what the compiler keeps."""
    rotate = subjects["apply_rope_pos_ids_inplace"].function
    heads, kv_heads, size = 8, 2, 64

    def step(qkv: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        q, k, _ = torch.split(qkv, [heads * size, kv_heads * size, kv_heads * size], dim=1)
        rotate(q.view(-1, heads, size), k.view(-1, kv_heads, size), positions)
        return qkv + 1

    def run(function: Callable[..., torch.Tensor]) -> list[list[float]]:
        qkv = torch.zeros(4, (heads + 2 * kv_heads) * size)
        later = function(qkv=qkv, positions=torch.arange(4, dtype=torch.int32))
        ends = [0, heads * size, (heads + kv_heads) * size]
        return [[float(t[-1, column]) for column in ends] for t in (qkv, later)]

    found = {}
    with ops_kernels.writing():
        found["eager"] = run(on_the_device(step))
        for backend in ("aot_eager", "inductor"):
            torch._dynamo.reset()
            found[backend] = run(torch.compile(step, fullgraph=True, backend=backend))
    return found


def results_by_flag(subjects: Subjects) -> Json:
    """How many results there are, by the flags on which that depends; as many as upstream's."""
    found = {}
    for name, flag in (
        ("nvfp4_quantize", "per_token_activation"),
        ("rmsnorm_fp4quant", "output_both_sf_layouts"),
        ("add_rmsnorm_fp4quant", "output_both_sf_layouts"),
    ):
        subject = subjects.get(name)
        if subject is None or flag not in inspect.signature(subject.function).parameters:
            continue
        with child_side.fake_cuda():
            arguments = subject.arguments(Maker(making.fake()), PLAIN)
            results = [
                traced(subject.function, arguments | {flag: value})[0] for value in (False, True)
            ]
        found[name] = [len(tensors_of(result)) for result in results]
    return found


def devices(subjects: Subjects) -> Json:
    """Where the results of functions on a GPU lie that upstream computes on the host."""
    found = {}
    for name in ("e2m1_and_ufp8sf_scale_to_float", "mxfp4_dequantize", "nvfp4_quantize"):
        with child_side.fake_cuda():
            arguments = subjects[name].arguments(Maker(making.fake()), PLAIN)
            result, _ = traced(subjects[name].function, arguments)
        found[name] = sorted({tensor.device.type for tensor in tensors_of(result)})
    return found


def scales(subjects: Subjects) -> Json:
    """Shapes of outputs and scales where releases go ways of their own."""
    with child_side.fake_cuda():
        x = torch.empty(33, 96, device="cuda", dtype=torch.bfloat16)
        scale = torch.empty(1, device="cuda")
        mxfp8, _ = traced(subjects["mxfp8_quantize"].function, {"input": x, "alignment": 64})
        x = torch.empty(33, 128, device="cuda", dtype=torch.bfloat16)
        nvfp4 = {}
        quantize = subjects["nvfp4_quantize"].function
        layouts = inspect.signature(quantize).parameters["sfLayout"].default
        for layout in type(layouts):
            arguments = {"a": x, "a_global_sf": scale, "sfLayout": layout}
            (_, sf, *_), (node, *_) = traced(quantize, arguments)
            nvfp4[layout.name] = [list(sf.shape), node.kwargs.get("sfLayout", "")]
    return {"mxfp8_quantize": [list(t.shape) for t in mxfp8], "nvfp4_quantize": nvfp4}


def recipes(subjects: Subjects) -> list[Any]:
    """What stands in the graph for a dataclass, for None and for the sentinel of one argument."""
    quantize = subjects["nvfp4_quantize"].function
    utils = importlib.import_module("flashinfer.quantization.nvfp4_quantization_utils")
    config: Any = utils.NVFP44Over6Config
    found = []
    with child_side.fake_cuda():
        given = subjects["nvfp4_quantize"].arguments(Maker(making.fake()), PLAIN)
        for recipe in ({}, {"nvfp4_4over6": None}, {"nvfp4_4over6": config()}):
            _, (node, *_) = traced(quantize, given | recipe)
            found.append(node.kwargs.get("nvfp4_4over6", ""))
    return found


def aliases(subjects: Subjects) -> dict[str, bool]:
    """Whether the second names of functions are the same functions still."""
    package: Any = importlib.import_module("flashinfer")
    first = subjects["block_scale_interleave"].function
    return {
        "defined": package.block_scale_interleave is first,
        "second name": package.nvfp4_block_scale_interleave is first,
    }


def opinions(subjects: Subjects) -> Json:
    """Strides of ``layernorm`` of a transposed input: what upstream's own fake says, and ours."""
    layernorm = subjects["layernorm"]
    module: Any = importlib.import_module("flashinfer.norm")
    case = PLAIN | {"layouts": ["transposed"]}
    with child_side.fake_cuda():
        fake = layernorm.arguments(Maker(making.fake()), case)
        ours, _ = traced(layernorm.function, fake)
        theirs = module._layernorm_fake(**fake)
    return {"upstream's": list(theirs.stride()), "ours": list(ours.stride())}


def substituted(subjects: Subjects) -> Json:
    """Whether upstream's Trace Apply wraps our function as its own, and takes that back."""
    package: Any = importlib.import_module("flashinfer")
    trace_apply: Any = importlib.import_module("flashinfer.trace_apply")
    ours = subjects["rmsnorm"].function
    trace_apply.enable_apply({"rmsnorm_h256": lambda **arguments: None})
    wrapper = package.rmsnorm
    trace_apply.disable_apply()
    return {
        "wrapped": wrapper is not ours and wrapper.__wrapped__ is ours,
        "taken back": package.rmsnorm is ours,
    }


def whole(subjects: Subjects) -> dict[str, list[str]]:
    """By op: the ops in the graph of its example."""
    found = {}
    for name, subject in subjects.items():
        with child_side.fake_cuda():
            arguments = subject.arguments(Maker(making.fake()), PLAIN)
            found[name] = [_name(node) for node in traced(subject.function, arguments)[1]]
    return found


def _name(node: torch.fx.Node) -> str:
    return str(node.target)


TRAPS: Sequence[Callable[[Subjects], Any]] = (
    identity,
    checks,
    outputs,
    results_by_flag,
    devices,
    scales,
    aliases,
    recipes,
    opinions,
    substituted,
    whole,
)
#: Those that run kernels, which do nothing then.
RUNNING: Sequence[Callable[[Subjects], Any]] = (parts_of_one_tensor, inductor)


def main() -> None:
    """Answer the traps that the request names."""
    request = json.loads(Path(sys.argv[1]).read_text())
    importlib.import_module("flashinfer")
    answers: Json = {"comm": "flashinfer.comm" in sys.modules}
    ops_kernels.answer_for_the_machine()
    subjects = {name: Subject(name, plan) for name, plan in request["ops"].items()}
    answers["records"] = child_side.records()
    for trap in TRAPS:
        if trap.__name__ in request["traps"]:
            answers[trap.__name__] = ops_child.attempt(trap, subjects)
    ops_kernels.install()
    ops_child.run_ops_on_the_device()
    for trap in RUNNING:
        if trap.__name__ in request["traps"]:
            answers[trap.__name__] = ops_child.attempt(trap, subjects)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
