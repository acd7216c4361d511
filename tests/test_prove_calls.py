"""The calls that `prove` makes: which there are, what is compiled, what counts as a difference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shim.patches import FAMILIES, USUAL, ops
from shim.proof.compiling import BITS, Call, Outcome, Run, compare, run_sizes, tensors
from shim.proof.examples import (
    EXAMPLES,
    PACKAGES,
    SAMPLES,
    SIZES,
    WRITTEN,
    Example,
    choose,
    unfit,
)
from shim.proof.making import on

# --- which there are ----------------------------------------------------------------------------


def test_every_patch_has_a_call_and_no_two_calls_share_a_name() -> None:
    assert {example.patch for example in EXAMPLES.values()} == set(USUAL)
    assert len(EXAMPLES) == len(WRITTEN) + len(ops.OPS)
    assert all(example.name == name for name, example in EXAMPLES.items())


def test_no_family_of_ops_has_two_samples() -> None:
    families = [f for f, members in ops.FAMILIES.items() for op in members if op.name in SAMPLES]
    assert len(families) == len(SAMPLES)
    assert len(set(families)) == len(families)


def test_names_and_families_choose_and_all_means_all() -> None:
    def names(*words: str, everything: bool = False) -> list[str]:
        return [example.name for example in choose(words, everything=everything)]

    assert names() == [*(example.name for example in WRITTEN), *SAMPLES]
    assert names("fp4_quantize") == [e.name for e in WRITTEN if e.patch == "fp4_quantize"]
    assert names("page", "rmsnorm") == ["rmsnorm", *FAMILIES["page"]]
    assert names("toolchain") == ["is_cuda_version_at_least, asks get_cuda_version"]
    assert names(everything=True) == list(EXAMPLES)


@pytest.mark.parametrize(
    ("card", "why"),
    [
        ((8, 9), "needs compute capability 9.0"),
        ((9, 0), ""),
        ((10, 3), ""),
        ((12, 0), "has no kernel for compute capabilities above 10.3"),
    ],
)
def test_a_call_fits_a_card_or_says_why_not(card: tuple[int, int], why: str) -> None:
    assert unfit(an_example(capability=(9, 0), newest=(10, 3)), card) == why


@pytest.mark.parametrize("card", [(9, 0), (12, 0)])
def test_an_example_for_one_architecture_is_none_for_another(card: tuple[int, int]) -> None:
    why = unfit(an_example(arch="12.0"), card)
    assert why == ("" if card == (12, 0) else "has an example for compute capability 12.0 alone")


def test_a_method_is_not_called_for_an_empty_batch_that_nobody_plans() -> None:
    example = EXAMPLES["BatchDecodeWithPagedKVCacheWrapper.run"]
    assert example.planned
    assert set(SIZES) - set(example.sizes) == {0}


def test_a_call_names_the_modules_that_it_lacks() -> None:
    example = an_example(requires=("json", "no_such_package.part", "no_such_module"))
    assert unfit(example, (12, 0)) == "needs no_such_package.part, no_such_module"


def test_whatever_an_op_may_need_has_a_package_to_install() -> None:
    assert {module for op in ops.OPS.values() for module in op.requires} <= PACKAGES.keys()


# --- what is compiled ---------------------------------------------------------------------------


def an_example(**changes: Any) -> Example:
    def arguments(make: Any, m: int) -> dict[str, Any]:
        return {
            "positions": make(m, dtype="int32"),
            "x": make(m, 8),
            "caches": (make(4, 8), make(8, max(m, 64))),
            "scale": 2.0,
        }

    return Example(**{"patch": "p", "function": "f", "arguments": arguments, **changes})


def write(positions: Any, x: Any, caches: Any, scale: float) -> Any:
    caches[0].add_(x.sum())
    return x * scale


def test_the_first_floating_point_tensor_is_doubled_and_what_varies_is_dynamic() -> None:
    call = Call(an_example(), write)
    inputs = call.inputs(on("cpu"), 5)
    twice, returned = call.step(inputs)
    assert torch.equal(twice, 2 * inputs["x"])
    assert torch.equal(returned, 2 * twice)
    call.mark_dynamic(inputs)
    marks: list[set[int]] = [
        getattr(tensor, "_dynamo_dynamic_indices", set()) for tensor in tensors(inputs)
    ]
    assert marks == [{0}, {0}, set(), {1}]


def test_arguments_that_not_every_release_takes_are_given_where_they_are_taken() -> None:
    def old(positions: Any, x: Any, caches: Any, scale: float) -> Any:
        return x

    def new(positions: Any, x: Any, caches: Any, scale: float, tile: int) -> Any:
        return x

    example = an_example(also={"tile": 8})
    assert "tile" not in Call(example, old).inputs(on("cpu"), 5)
    assert Call(example, new).inputs(on("cpu"), 5)["tile"] == 8


def test_a_call_without_tensors_is_compiled_with_a_batch_beside_it() -> None:
    example = an_example(arguments=lambda make, m: {"scale": 3}, op_calls=0)
    run = run_sizes(Call(example, lambda scale: scale > 2), Run("values", "eager"), "cpu")
    assert (run.frames, run.graphs, run.fault) == (3, 3, "")


def test_a_call_that_writes_into_its_arguments_starts_anew_each_time() -> None:
    example = an_example(op_calls=0)
    run = run_sizes(Call(example, write), Run("values", "eager", compared=BITS), "cpu")
    assert (run.frames, run.graphs, run.op_calls, run.fault) == (3, 3, 0, "")


def test_a_batch_that_eager_refuses_too_is_told_of_and_is_no_fault() -> None:
    def reshape(positions: Any, x: Any, caches: Any, scale: float) -> Any:
        return x.reshape(x.shape[0], -1, 4)

    example = an_example(op_calls=0)
    run = run_sizes(Call(example, reshape), Run("values", "eager"), "cpu")
    assert run.fault.startswith("m=0: eager raises RuntimeError: cannot reshape tensor")
    run = run_sizes(
        Call(example, reshape), Run("values", "eager"), "cpu", may_raise=lambda m: m == 0
    )
    assert run.fault == ""
    assert run.note.startswith("m=0: both raise RuntimeError: cannot reshape tensor")
    assert run.frames == run.graphs == 2


def test_a_call_that_is_compiled_too_often_or_not_whole_is_a_fault() -> None:
    def branch(positions: Any, x: Any, caches: Any, scale: float) -> Any:
        return x + 1 if x.shape[0] % 2 else x

    def stop(positions: Any, x: Any, caches: Any, scale: float) -> Any:
        torch._dynamo.graph_break()
        return x

    example = an_example(op_calls=0)
    run = run_sizes(Call(example, branch), Run("values", "eager"), "cpu")
    assert run.fault.startswith(f"4 frames for {len(SIZES)} batch sizes")
    run = run_sizes(Call(example, stop), Run("values", "eager"), "cpu")
    assert run.fault.startswith("m=32: raises Unsupported: ")


# --- what counts as a difference ----------------------------------------------------------------

ONE, TWO = torch.ones(3), torch.full((3,), 2.0)


def outcome(returned: Any = ONE, written: Any = ONE, error: str = "", told: str = "") -> Outcome:
    inputs = {"caches": (written,)}
    return Outcome(inputs, None if error else (ONE, returned), error, told)


@pytest.mark.parametrize(
    ("found", "expected", "said"),
    [
        (outcome(), outcome(), ""),
        (outcome(TWO), outcome(), "6 of 12 bytes differ"),
        (outcome(written=TWO), outcome(), "inputs after the call: result 1: 6 of 12 bytes differ"),
        (outcome(error="E: no"), outcome(), "raises E: no"),
        (outcome(), outcome(error="E: no"), "raises nothing instead of E: no"),
        (outcome(error="E: no"), outcome(error="E: no"), ""),
        (outcome(error="F: no"), outcome(error="E: no"), "raises F: no instead of E: no"),
        (outcome(error="Dynamo: x", told="x: E('no')"), outcome(error="E: no"), ""),
    ],
)
def test_results_written_inputs_and_errors_are_compared(
    found: Outcome, expected: Outcome, said: str
) -> None:
    assert compare(found, expected, Run("values", "eager", compared=BITS)) == said


def test_contents_count_only_where_bits_are_compared() -> None:
    assert compare(outcome(TWO, TWO), outcome(), Run("kernels", "eager")) == ""
