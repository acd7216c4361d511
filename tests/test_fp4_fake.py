"""The written fake of fp4_quantize agrees with upstream's own Python, release by release."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest
import releases
from children import run_child
from packaging.version import Version

from shim.contract import Row
from shim.patches.fp4_quantize_contract import CONTRACT

Json = dict[str, Any]

ROWS = (0, 1, 2, 7, 127, 128, 129, 200)
COLUMNS = (16, 32, 48, 64, 80, 96, 256)
NVFP4: Json = {"sf_vec_size": 16, "sf_use_ue8m0": False}
MXFP4: Json = {"sf_vec_size": 32, "sf_use_ue8m0": True}
FORMATS = (NVFP4, MXFP4)
LAYOUTS: tuple[Json, ...] = (
    {},
    {"is_sf_8x4_layout": True},
    {"is_sf_swizzled_layout": False},
)


def case(
    *size: int,
    stride: Sequence[int] | None = None,
    dtype: str = "bfloat16",
    scale: Sequence[int] | None = (1,),
    offset: int = 0,
    environment: Json | None = None,
    **options: Any,
) -> Json:
    """One call of fp4_quantize, as the oracle reads it; contiguous unless strides are given."""
    return {
        "size": size,
        "stride": row_major(size) if stride is None else stride,
        "dtype": dtype,
        "scale": scale,
        "offset": offset,
        "environment": environment or {},
        "options": options,
    }


def row_major(size: Sequence[int]) -> list[int]:
    """The strides of a contiguous tensor."""
    strides = [1]
    for n in reversed(size[1:]):
        strides.insert(0, strides[0] * max(n, 1))
    return strides[: len(size)]


def column_major(size: Sequence[int]) -> list[int]:
    """The strides of a tensor that is contiguous once its last two dimensions are swapped."""
    strides = row_major((*size[:-2], size[-1], size[-2]))
    return [*strides[:-2], strides[-1], strides[-2]]


def legal() -> Iterator[Json]:
    """Calls that every release's cuda backend takes, and what it makes of odd ones."""
    for m, k, fmt, layout in product(ROWS, COLUMNS, FORMATS, LAYOUTS):
        yield case(m, k, **fmt, **layout)
    for k, fmt, layout in product((64, 96), FORMATS, LAYOUTS):
        yield case(3, 7, k, **fmt, **layout)
        yield case(2, 3, 5, k, **fmt, **layout)
        yield case(0, 5, k, **fmt, **layout)
        for m in (0, 1, 2, 32, 129):
            yield case(m, k, stride=column_major((m, k)), **fmt, **layout)
        yield case(3, 7, k, stride=column_major((3, 7, k)), **fmt, **layout)
        yield case(2, 3, 5, k, stride=column_major((2, 3, 5, k)), **fmt, **layout)
        yield case(7, k, stride=(2 * k, 1), **fmt, **layout)
        yield case(7, k, stride=(2 * k, 2), **fmt, **layout)
        yield case(1, k, stride=(1, 1), **fmt, **layout)
        yield case(2 * k, 1, **fmt, **layout)
        yield case(k, 0, **fmt, **layout)
        yield case(4, k, 0, **fmt, **layout)
        yield case(7, 0, stride=(4, 1), **fmt, **layout)
        yield case(k, **fmt, **layout)
        yield case(7, k + 8, **fmt, **layout)
    for dtype, layout in product(("float16", "float32", "float8_e4m3fn", "float8_e5m2"), LAYOUTS):
        yield case(7, 64, dtype=dtype, **layout)
    for scale in (None, (), (7,), (1, 1)):
        yield case(7, 64, scale=scale)
    yield case(scale=None)
    for vec, ue8m0, layout in product((8, 16, 32, 64), (False, True), LAYOUTS):
        yield case(7, 64, sf_vec_size=vec, sf_use_ue8m0=ue8m0, **layout)
    yield case(7, 64, enable_pdl=False)
    yield case(7, 64, enable_pdl=True)


def backends(known: Iterable[str]) -> Iterator[Json]:
    """Calls that name a backend."""
    for backend in ("auto", "cuda", "nonsense"):
        yield case(7, 64, backend=backend)
        yield case(64, backend=backend)
        yield case(7, 64, backend=backend, sf_vec_size=24)
    if "cute-dsl" in known:
        yield from cute_dsl()


def cute_dsl() -> Iterator[Json]:
    """Calls of the cute-dsl backend; the sizes lie around those where its kernels change."""
    for plain in islice(legal(), 0, None, 5):
        yield {**plain, "options": {**plain["options"], "backend": "cute-dsl"}}
    on = {"FLASHINFER_NVFP4_QUANTIZE_USE_TMA": "1"}
    off = {"FLASHINFER_NVFP4_QUANTIZE_USE_TMA": "0"}
    recipe = {"FLASHINFER_NVFP4_4OVER6": "1"}
    wrong = recipe | {"FLASHINFER_NVFP4_4OVER6_ERR_MODE": "nonsense"}
    for layout, environment in product(LAYOUTS, ({}, on, off, recipe, on | recipe, wrong)):
        for m, k in ((1023, 32768), (1024, 32768), (1030, 16384), (2056, 16384), (4104, 8192)):
            yield case(
                *(m, k), dtype="float16", environment=environment, backend="cute-dsl", **layout
            )
        for dtype in ("bfloat16", "float8_e4m3fn"):
            yield case(2056, 16384, dtype=dtype, environment=environment, **layout)
            for size in ((7, 64), (0, 64), (64,)):
                yield case(
                    *size, dtype=dtype, environment=environment, backend="cute-dsl", **layout
                )
    for m, k, scale, layout in product((0, 7), (0, 64), (None, (), (2,), (1, 1)), LAYOUTS):
        yield case(m, k, stride=(64, 1), scale=scale, backend="cute-dsl", **layout)


def four_over_six() -> Iterator[Json]:
    """Calls with a 4over6 recipe, by argument and by environment."""
    wrong = {"FLASHINFER_NVFP4_4OVER6": "1", "FLASHINFER_NVFP4_4OVER6_ERR_MODE": "nonsense"}
    asked = {"FLASHINFER_NVFP4_4OVER6": "1"}
    for recipe, dtype, fmt, backend, environment in product(
        (None, {"e4m3_max": 256}), ("bfloat16", "float8_e4m3fn"), FORMATS, ("cuda", "cute-dsl"),
        ({}, asked, wrong),
    ):  # fmt: skip
        options = {**fmt, "backend": backend}
        yield case(7, 64, dtype=dtype, environment=environment, **options)
        yield case(7, 64, dtype=dtype, environment=environment, nvfp4_4over6=recipe, **options)
        yield case(
            2056, 16384, environment=environment | {"FLASHINFER_NVFP4_QUANTIZE_USE_TMA": "1"},
            nvfp4_4over6=recipe, is_sf_8x4_layout=True, **options,
        )  # fmt: skip


def batch_invariant() -> Iterator[Json]:
    """Calls of the batch-invariant mode."""
    for plain in islice(legal(), 0, None, 5):
        yield {**plain, "options": {**plain["options"], "batch_invariant": True}}
    for backend in ("auto", "cuda", "cute-dsl", "nonsense"):
        yield case(7, 64, backend=backend, batch_invariant=True)
    for fmt in FORMATS:
        yield case(batch_invariant=True, **fmt)
        yield case(2, 65536, batch_invariant=True, **fmt)
        yield case(2, 65536 + 32, batch_invariant=True, **fmt)
        yield case(2, 65536, dtype="float32", batch_invariant=True, **fmt)
        yield case(7, 64, nvfp4_4over6={"e4m3_max": 256}, batch_invariant=True, **fmt)
        for offset, row in product((0, 1, 8), (128, 129, 136)):
            for m, step in product((0, 1, 7), (1, 2)):
                yield case(m, 64, stride=(row, step), offset=offset, batch_invariant=True, **fmt)
    yield case(7, 64, scale=(), is_global_scale_inversed=True, batch_invariant=True)
    yield case(7, 64, scale=(2,), is_global_scale_inversed=True, batch_invariant=True)


def sampled(known: Iterable[str]) -> Iterator[Json]:
    """Calls drawn at random, the same ones every time."""
    draw = random.Random(2733)
    for _ in range(150):
        size = [draw.choice(ROWS) for _ in range(draw.choice((0, 1, 1, 1, 2)))]
        size = [*(min(n, 7) for n in size[:-1]), *size[-1:], 16 * draw.randint(0, 40)]
        stride = column_major(size) if len(size) > 1 and draw.random() < 0.3 else row_major(size)
        options: Json = {
            "is_sf_swizzled_layout": draw.random() < 0.6,
            "is_sf_8x4_layout": draw.random() < 0.4,
            **draw.choice(FORMATS),
        }
        if known:
            options["backend"] = draw.choice(("cuda", "cute-dsl"))
        yield case(*size, stride=stride, dtype=draw.choice(("float16", "bfloat16")), **options)


def cases_of(release: str) -> Iterator[Json]:
    """The cases that make sense for the signature of a release."""
    row = row_of(release)
    yield from legal()
    yield from sampled(row.traits.backends)
    if row.traits.backends:
        yield from backends(row.traits.backends)
    if "nvfp4_4over6" in row.signature:
        yield from four_over_six()
    if "batch_invariant" in row.signature:
        yield from batch_invariant()


def row_of(release: str) -> Row:
    """The row of the contract for a release."""
    (row,) = [row for row in CONTRACT.rows if row.covers(Version(release))]
    return row


@dataclass(frozen=True)
class Judged:
    """The cases of a release, each with its answers by who gave them."""

    release: str
    answers: list[tuple[Json, Json]]

    def of(self, who: str) -> list[tuple[Json, Json, Json]]:
        """Case, upstream's answer and that of ``who``, where ``who`` was asked."""
        return [
            (case, answer["upstream"], answer[who])
            for case, answer in self.answers
            if who in answer
        ]


#: The last release of each way that the fake has, which is chosen by the row's traits.
WAYS = tuple({row_of(release).traits: release for release in releases.RELEASES}.values())


@pytest.fixture(scope="module", params=releases.RELEASES if releases.IS_WHOLE else WAYS)
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Every case of a release with what upstream and the fake make of it, from one child."""
    release: str = request.param
    scratch = tmp_path_factory.mktemp("fp4")
    cases = list(cases_of(release))
    asked = scratch / "request.json"
    asked.write_text(json.dumps({"release": release, "cases": cases}))
    path = [releases.ROOT / "tests", releases.ROOT, releases.path(release)]
    child = run_child(
        None,
        scratch=scratch,
        env={"PYTHONPATH": os.pathsep.join(map(str, path)), "FLASHINFER_SHIM": "off"},
        args=[releases.ROOT / "tests" / "fp4_child.py", asked],
        timeout=900,
    )
    return Judged(release, list(zip(cases, child.json, strict=True)))


def differences(judged: Judged, who: str) -> list[tuple[Json, Json, Json]]:
    """Where ``who`` does not say what upstream says.

    An error text that holds a number is not compared for symbolic sizes: the symbol stands there.
    """

    def agree(upstream: Json, ours: Json) -> bool:
        if "error" not in upstream or "error" not in ours:
            return upstream.get("tensors") == ours.get("tensors")
        (kind, text), (our_kind, our_text) = upstream["error"], ours["error"]
        masked = who != "fixed sizes" and any(character.isdigit() for character in text)
        return kind == our_kind and (masked or text == our_text)

    return [entry for entry in judged.of(who) if not agree(*entry[1:])]


def test_the_cases_reach_results_and_every_kind_of_error(judged: Judged) -> None:
    reached = {upstream.get("error", ["result"])[0] for _, upstream, _ in judged.of("fixed sizes")}
    expected = {"result", "AssertionError", "IndexError", "NotImplementedError", "RuntimeError"}
    if row_of(judged.release).traits.backends:
        expected |= {"ValueError", "TypeError", "ZeroDivisionError"}
    if judged.release == "0.7.4":
        expected |= {"BatchInvariantUnsupportedError"}
    assert reached >= expected


@pytest.mark.parametrize("who", ["fixed sizes", "symbolic batch", "symbolic sizes"])
def test_geometry_and_errors_are_those_of_upstream(judged: Judged, who: str) -> None:
    assert len(judged.of(who)) > 50
    wrong = differences(judged, who)
    assert not wrong, f"{len(wrong)} cases (case, upstream, ours), the first: {wrong[:5]}"


def test_the_batch_stays_symbolic(judged: Judged) -> None:
    fixed = [entry for entry in judged.of("symbolic batch") if entry[2]["fixed"]]
    assert not fixed


def test_the_batch_is_asked_only_what_the_shape_of_upstream_hangs_on(judged: Judged) -> None:
    traits = row_of(judged.release).traits

    def hangs_on_batch(case: Json) -> bool:
        *_, k = case["size"]
        options = case["options"]
        cute = options.get("backend") == "cute-dsl"
        if k == 1:
            return True  # quantized along M
        if options.get("batch_invariant") and case["stride"][-1] != 1:
            return True  # refused or copied, by its strides
        if cute and k % 512 == 0:
            return True  # another kernel from some m on
        mxfp4 = options.get("sf_use_ue8m0", False)
        padded = traits.padded_columns and not (cute and mxfp4 and not traits.cute.mxfp4_padded)
        columns = k // options.get("sf_vec_size", 16)
        return not padded and columns > 2 and columns % 4 != 0

    asked = [
        (case, ours["guards"])
        for case, _, ours in judged.of("symbolic batch")
        if ours["guards"] and not hangs_on_batch(case)
    ]
    assert not asked


def test_eight_batch_sizes_cost_three_graphs(tmp_path: Path) -> None:
    child = run_child(
        """
        import json

        import torch
        from torch import Tensor
        from torch._dynamo.testing import CompileCounter

        from shim.patches.fp4_fake import fake_fp4_quantize
        from shim.patches.fp4_traits import Fp4Traits

        traits = Fp4Traits(padded_columns=True, linear_slack=True)

        @torch.library.custom_op("fp4_fake_test::quantize", mutates_args=())
        def quantize(input: Tensor, swizzled: bool) -> tuple[Tensor, Tensor]:
            return fake_fp4_quantize(traits, input, is_sf_swizzled_layout=swizzled)

        @quantize.register_fake
        def _(input: Tensor, swizzled: bool) -> tuple[Tensor, Tensor]:
            return fake_fp4_quantize(traits, input, is_sf_swizzled_layout=swizzled)

        frames = {}
        for swizzled in True, False:
            torch._dynamo.reset()
            counter = CompileCounter()
            compiled = torch.compile(
                lambda x: quantize(x, swizzled), backend=counter, fullgraph=True, dynamic=True
            )
            for m in 32, 48, 1, 129, 200, 0, 7, 512:
                x = torch.empty(m, 80)
                for got, expected in zip(compiled(x), quantize(x, swizzled), strict=True):
                    assert got.shape == expected.shape and got.stride() == expected.stride()
            frames[str(swizzled)] = counter.frame_count
        print(json.dumps(frames))
        """,
        scratch=tmp_path,
        env={"FLASHINFER_SHIM": "off"},
    )
    # One for all sizes and, as for every op, one for 0 and one for 1.
    assert child.json == {"True": 3, "False": 3}, child


def test_the_outputs_lie_on_the_device_of_the_input(tmp_path: Path) -> None:
    child = run_child(
        """
        import json

        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode

        from shim.patches.fp4_fake import fake_fp4_quantize
        from shim.patches.fp4_traits import Fp4Traits

        traits = Fp4Traits(padded_columns=True, linear_slack=True)
        with FakeTensorMode():
            input = torch.empty(7, 64, dtype=torch.bfloat16, device="cuda:3")
            outputs = fake_fp4_quantize(traits, input)
        print(json.dumps([str(output.device) for output in outputs]))
        """,
        scratch=tmp_path,
        env={"FLASHINFER_SHIM": "off"},
    )
    assert child.json == ["cuda:3", "cuda:3"]
