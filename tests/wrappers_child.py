"""Child of test_wrappers: each wrapper of one release, planned with kernels that do nothing.

    python wrappers_child.py REQUEST [ARCH]

A request is a list of methods, each with the options of its calls. Prints, for each, what upstream
returns and what our op says that it returns.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from collections.abc import Callable
from typing import Any

import child_side
import ops_kernels

#: A card on which kernels in CuTe DSL are tried, if any.
ARCH = sys.argv[2] if len(sys.argv) > 2 else ""

child_side.pretend(ARCH or "9.0")

import torch  # noqa: E402
from ops_making import tensors_of  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from shim.patches.ops import OPS  # noqa: E402
from shim.proof import making  # noqa: E402

#: Rows of the calls, the first of them with a plan of their own each.
SIZES = (4, 1, 7, 16, 33)

Json = dict[str, Any]
_empty = torch.empty


def unpinned(*args: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
    """``torch.empty`` where no memory can be pinned, for want of a device."""
    return _empty(*args, **options)


class Planned(ops_kernels.Kernel):
    """A kernel that plans too, which returns numbers; to the shadow it is one like any other."""

    def __getattr__(self, name: str) -> Any:
        return super().__getattribute__(name) if name.startswith("__") else Planned(name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        super().__call__(*args, **options)
        return [0, 0]


Planned.__module__ = "tvm_ffi.test"


class Spec:
    """What upstream's writers of sources return."""

    def build_and_load(self) -> Planned:
        return Planned("module")


def install() -> None:
    """Replace what writes sources, asks for a device or waits for one."""
    ops_kernels.install()
    torch.empty = unpinned  # type: ignore[assignment]
    still = types.SimpleNamespace(
        cuda_stream=0, record=lambda *_: None, synchronize=lambda: None, wait=lambda *_: None
    )
    for name, stand_in in {
        "current_stream": lambda *_: still,
        "Event": lambda **_: still,
        "synchronize": lambda *_: None,
    }.items():
        setattr(torch.cuda, name, stand_in)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "flashinfer":
            continue
        for attribute in list(vars(module)):
            if attribute.lstrip("_").startswith("gen_") and callable(getattr(module, attribute)):
                setattr(module, attribute, _in(name, lambda *args, **options: Spec()))
        if hasattr(module, "determine_attention_backend"):
            answer = _in(name, lambda *args, **options: "fa2")
            module.determine_attention_backend = answer  # type: ignore[attr-defined]
        if hasattr(module, "get_compute_capability"):
            told = tuple(map(int, (ARCH or "8.0").split(".")))
            capability = _in(name, lambda device, told=told: told)
            module.get_compute_capability = capability  # type: ignore[attr-defined]


def run_no_pipelines() -> None:
    """Leave out what launches a pipeline of kernels into an output that it is given."""
    outputs = {"_moe_core_impl": "moe_output", "launch_sm120_moe": "scatter_output"}
    for name, module in list(sys.modules.items()):
        for launcher, output in outputs.items():
            if name.startswith("flashinfer.fused_moe.cute_dsl") and hasattr(module, launcher):
                left_out = _in(name, lambda output=output, **arguments: arguments[output])
                setattr(module, launcher, left_out)
            if name.startswith("flashinfer") and hasattr(module, "_prepare_weight_views"):
                prepared = _in(name, lambda **arguments: None)
                module._prepare_weight_views = prepared  # type: ignore[attr-defined]


def _in(module: str, function: Callable[..., Any]) -> Callable[..., Any]:
    function.__module__ = module  # to the shadow it is upstream's
    return function


def described(result: Any) -> list[Any]:
    """Sizes, dtypes and strides; those of dimensions without a second element tell nothing."""
    return [
        [
            list(map(int, tensor.shape)),
            [int(s) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1],
            str(tensor.dtype),
        ]
        for tensor in tensors_of(result)
    ]


def judged(name: str, options: Json) -> Json:
    """One method: upstream's results, those of the compiled call, and of the fake, by size."""
    op = OPS[name]
    answer: Json = {"upstream": [], "compiled": [], "fake": [], "unchanged": []}
    counting = child_side.Counting()
    torch._dynamo.reset()
    method = op.name.rpartition(".")[2]

    def call(wrapper: Any, arguments: Json) -> Any:
        return getattr(wrapper, method)(**arguments, **options)

    whole = torch.compile(call, fullgraph=True, backend=counting, dynamic=True)
    for m in SIZES:
        arguments = dict(op.example(making.on("cpu"), m))
        wrapper = arguments.pop("self")
        answer["upstream"].append(described(call(wrapper, arguments)))
        answer["compiled"].append(described(whole(wrapper, arguments)))
        before = dict(vars(wrapper))
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            faked = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, arguments)
            answer["fake"].append(described(call(wrapper, faked)))
        same = vars(wrapper).keys() == before.keys()
        answer["unchanged"].append(
            same and all(vars(wrapper)[name] is value for name, value in before.items())
        )
    answer["graphs"] = [
        [call.rpartition(".")[0] for call in calls if "flashinfer" in call]
        for calls in counting.ops()
    ]
    return answer


def main() -> None:
    """Answer for the methods that are asked for."""
    importlib.import_module("flashinfer")
    if ARCH:
        ops_kernels.imported("flashinfer.fused_moe.cute_dsl.fused_moe")
    install()
    run_no_pipelines()
    request: list[tuple[str, Json]] = json.loads(sys.argv[1])
    answers = []
    for name, options in request:
        try:
            answers.append(judged(name, options))
        except Exception as error:
            answers.append({"error": f"{type(error).__name__}: {error}"})
    records = {name: record["verdict"] for name, record in child_side.records().items()}
    print(json.dumps({"answers": answers, "verdicts": records}))


if __name__ == "__main__":
    main()
