"""What quantization takes beside tensors, through its ops: layouts, recipes, backends, scales.

Each call is compiled with us and held against upstream's own Python without us, whose kernels do
nothing; both see tensors without data on a pretended device.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import releases
from conftest import RunChild

Json = dict[str, Any]

#: By op: arguments beside those of its example. ``SfLayout``, dtypes and recipes stand as text.
OPTIONS: dict[str, list[Json]] = {
    "nvfp4_quantize": [
        {"sfLayout": "SfLayout.layout_8x4"},
        {"sfLayout": "SfLayout.layout_linear", "enable_pdl": True},
        {"do_shuffle": True},
        {"per_token_activation": True, "a_global_sf": 0.25},
        {"backend": "cute-dsl", "sfLayout": "SfLayout.layout_linear"},
        {"backend": "cute-dsl", "per_token_activation": True, "a_global_sf": 0.25},
        {"nvfp4_4over6": None},
        {"nvfp4_4over6": "NVFP44Over6Config(e4m3_max=256)"},
        {"batch_invariant": True},
        {"sf_vec_size": 8},
    ],
    "mxfp4_quantize": [{"sfLayout": "SfLayout.layout_8x4"}, {"backend": "cute-dsl"}],
    "mxfp8_quantize": [
        {"is_sf_swizzled_layout": False},
        {"alignment": 64},
        {"sf_swizzle_layout": "SfLayout.layout_8x4"},
        {"backend": "cute-dsl", "alignment": 512},
        {"backend": "nothing"},
    ],
    "mxfp8_grouped_quantize": [{"backend": "cuda"}],
    "per_token_group_quant_8bit": [
        {"backend": "cuda", "column_major_scales": True, "scale_tma_aligned": True},
        {"backend": "cuda", "dst_dtype": "torch.int8"},
    ],
    "silu_and_mul_nvfp4_quantize": [{"is_sf_8x4_layout": True}],
    "nvfp4_kv_dequantize": [{"output_dtype": "torch.float16"}],
    "mxfp4_dequantize": [{"sfLayout": "SfLayout.layout_linear"}],
    "packbits": [{"bitorder": "little"}],
}

CHILD = f"""
    import inspect, json, os, sys
    sys.path.append({str(Path(__file__).parent)!r})
    import child_side
    child_side.pretend("10.0")
    import torch
    import flashinfer
    import ops_kernels
    from child_side import Counting, describe, error_of, fake_cuda
    from ops_making import tensors_of
    from shim.patches.ops import OPS
    from shim.proof import making

    options = json.loads(os.environ["OPTIONS"])
    with_us = os.environ["SIDE"] == "with us"
    if not with_us:
        ops_kernels.install()

    def read(value):
        words = {{"torch": torch, **vars(flashinfer)}}
        spoken = isinstance(value, str) and value.startswith(("SfLayout", "NVFP4", "torch"))
        return eval(value, words) if spoken else value

    def outcome(function, arguments):
        found = []
        error = error_of(lambda: found.append(function(**arguments)))
        if error:
            return error
        results = tensors_of(found[0])
        return [(*row, t.storage_offset()) for t, row in zip(results, describe(results))]

    answers = {{}}
    for name, calls in options.items():
        function = getattr(flashinfer, name, None) or getattr(flashinfer.quantization, name, None)
        answers[name] = []
        for call in calls:
            if function is None or not call.keys() <= inspect.signature(function).parameters.keys():
                answers[name].append(None)  # the release has no such thing
                continue
            torch._dynamo.reset()
            backend = Counting()
            called = torch.compile(
                function, fullgraph=True, backend=backend, dynamic=True) if with_us else function
            given = {{key: read(value) for key, value in call.items()}}
            with fake_cuda():
                found = [
                    outcome(called, OPS[name].example(making.fake(), m) | given)
                    for m in (128, 129)
                ]
            answers[name].append([found, len(backend.graphs)])
    import flashinfer.fp4_quantization as old
    names = {{
        id(getattr(module, name))
        for module in (flashinfer, old)
        for name in ("block_scale_interleave", "nvfp4_block_scale_interleave")
    }}
    print(json.dumps([answers, len(names)]))
"""


def ask(run_child: RunChild, release: str, side: str) -> Any:
    entries = [releases.ROOT] * (side == "with us") + [releases.path(release)]
    if release != "0.6.3":
        entries += releases.cuda_packages()
    env = {
        "PYTHONPATH": os.pathsep.join(map(str, entries)),
        "FLASHINFER_CUDA_ARCH_LIST": "10.0a",
        "OPTIONS": json.dumps(OPTIONS),
        "SIDE": side,
    }
    return run_child(CHILD, env=env).json


@pytest.mark.parametrize("release", ["0.6.3", "0.7.4"])
def test_options_arrive_and_decide_the_outputs(run_child: RunChild, release: str) -> None:
    expected, _ = ask(run_child, release, "without us")
    found, names = ask(run_child, release, "with us")
    assert names == 1, "block_scale_interleave has two names"
    seen = 0
    for name, calls in OPTIONS.items():
        for call, upstream, ours in zip(calls, expected[name], found[name], strict=True):
            if upstream is None:
                assert ours is None
                continue
            seen += 1
            for theirs, own in zip(upstream[0], ours[0], strict=True):
                if isinstance(theirs[0], str):  # an error: the compiler says what was raised
                    assert theirs[0] in own[1], [name, call]
                else:
                    assert theirs == own, [name, call]
                    assert ours[1] <= 2, [name, call]
    assert seen > 5


ODD = (
    CHILD.partition("    options = ")[0]
    + """
    import importlib
    kernels = importlib.import_module("flashinfer.quantization.kernels.nvfp4_quantize")

    def compiled(function, **given):
        arguments = OPS[function.__name__].example(making.fake(), 4)
        return torch.compile(function, fullgraph=True, backend="eager")(**arguments | given)

    quantize = flashinfer.nvfp4_quantize
    with fake_cuda():
        by_number, by_tensor = (
            describe(compiled(quantize, per_token_activation=True, **scale))
            for scale in ({"a_global_sf": 0.25}, {})
        )
        out = tuple(torch.empty(n, dtype=torch.uint8, device="cuda") for n in (512, 2048))
        error = error_of(lambda: compiled(kernels.nvfp4_quantize_cute_dsl, out=out))
    print(json.dumps([by_number, by_tensor, error]))
    """
)


def test_a_scale_that_is_read_from_a_tensor_and_an_output_that_cannot_travel(
    run_child: RunChild,
) -> None:
    entries = [releases.ROOT, releases.path("0.7.4"), *releases.cuda_packages()]
    env = {"PYTHONPATH": os.pathsep.join(map(str, entries))}
    by_number, by_tensor, error = run_child(ODD, env=env).json
    assert len(by_number) == 3
    assert by_tensor == by_number
    assert "out=" in error[1]
    assert "leave it at its default" in error[1]
