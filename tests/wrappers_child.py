"""Child of test_wrappers: each wrapper of one release, planned with kernels that do nothing.

    python wrappers_child.py REQUEST

A request is a list of methods, each with the options of its calls. Prints, for each, what upstream
returns and what our op says that it returns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import json
import os
import sys
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import child_side

#: The card that is pretended. What is for this one alone asks its tensors whether they are on it.
ARCH = os.environ["FLASHINFER_CUDA_ARCH_LIST"].rstrip("af")
child_side.pretend(ARCH)

import ops_kernels  # noqa: E402
import torch  # noqa: E402
from ops_making import tensors_of  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from shim.opaque import later, registry  # noqa: E402
from shim.patches.ops import OPS  # noqa: E402
from shim.proof import making  # noqa: E402

#: Rows of the calls, the first of them with a plan of their own each.
SIZES = (4, 1, 7, 16, 33)

Json = dict[str, Any]
ON_THE_DEVICE = ARCH != "9.0"
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
        cuda_stream=0,
        device=torch.device("cuda", 0),
        **dict.fromkeys(("record", "synchronize", "wait", "wait_event"), lambda *_: None),
    )
    for name, stand_in in {
        "current_stream": lambda *_: still,
        "Event": lambda **_: still,
        "synchronize": lambda *_: None,
        "current_device": lambda: 0,
    }.items():
        setattr(torch.cuda, name, stand_in)
    torch.distributed.all_to_all_single = lambda *_, **options: None
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "flashinfer":
            continue
        for attribute in list(vars(module)):
            if attribute.lstrip("_").startswith("gen_") and callable(getattr(module, attribute)):
                setattr(module, attribute, _in(name, lambda *args, **options: Spec()))
        if hasattr(module, "build_and_load_cute_dsl_kernel"):
            built = _in(name, lambda *args, **options: Planned("compiled"))
            module.build_and_load_cute_dsl_kernel = built  # type: ignore[attr-defined]
        if hasattr(module, "determine_attention_backend") and not ON_THE_DEVICE:
            answer = _in(name, lambda *args, **options: "fa2")
            module.determine_attention_backend = answer  # type: ignore[attr-defined]
        if hasattr(module, "_validate_cuda_tensor"):
            taken = _in(name, lambda tensor, *args, **options: tensor)
            module._validate_cuda_tensor = taken  # type: ignore[attr-defined]
        if hasattr(module, "_is_cute_dsl_kda_prefill_eligible"):
            eligible = _in(name, lambda **_: True)
            module._is_cute_dsl_kda_prefill_eligible = eligible  # type: ignore[attr-defined]
        if hasattr(module, "get_compute_capability") and not ON_THE_DEVICE:
            capability = _in(name, lambda device: (8, 0))
            module.get_compute_capability = capability  # type: ignore[attr-defined]


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


def on_the_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function called with tensors that say they are on the card, where it is for one alone."""

    def call(*args: Any, **options: Any) -> Any:
        with contextlib.ExitStack() as stack:
            if ON_THE_DEVICE:
                stack.enter_context(ops_kernels.OnTheDevice())
                stack.enter_context(
                    mock.patch.object(torch.cuda, "is_available", return_value=True)
                )
            return function(*args, **options)

    return call


def run_ops_on_the_device() -> None:
    """Likewise for our ops, called by what a compiler made."""
    for name in later.all_promised():
        getattr(torch.ops.flashinfer_shim, name, None)  # not each has the op that writes
    for key, body in registry._bodies.items():
        registry._bodies[key] = dataclasses.replace(body, run=on_the_device(body.run))
    for key, function in registry._functions.items():
        registry._functions[key] = on_the_device(function)


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
        arguments = dict(on_the_device(op.example)(making.on("cpu"), m))
        wrapper = arguments.pop("self")
        if m == SIZES[0]:
            run_ops_on_the_device()  # for those of modules that the example imported, too
            taken = inspect.signature(getattr(wrapper, method)).parameters
            options = {name: value for name, value in options.items() if name in taken}
        answer["upstream"].append(described(on_the_device(call)(wrapper, arguments)))
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
    ops_kernels.answer_for_the_machine()
    if ON_THE_DEVICE:
        for name in ("fused_moe.cute_dsl.fused_moe", "attention.prims_ts"):
            with contextlib.suppress(ImportError):  # not in every release
                ops_kernels.imported(f"flashinfer.{name}")
    install()
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
