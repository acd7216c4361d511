"""How `prove` judges what its children say, and how results are compared."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shim.proof.children import Answers
from shim.proof.comparing import compiler_reason, difference, one_line
from shim.proof.examples import WRITTEN
from shim.proof.rows import as_json, describe, make_row

EXAMPLE = WRITTEN[1]


def run(kind: str = "values", backend: str = "eager", **changes: Any) -> dict[str, Any]:
    given = {"frames": 3, "graphs": 3, "op_calls": 8, "compared": "bits", "note": "", "fault": ""}
    return {"kind": kind, "backend": backend, **given, **changes}


def without(*, refused: bool = True, reason: str = "cannot trace") -> Answers:
    said = {"skipped": "", "refused": refused, "reason": reason, "error": ""}
    return Answers(results={EXAMPLE.name: said})


def with_us(*runs: dict[str, Any], verdict: str = "applied") -> Answers:
    record = {"patch": EXAMPLE.patch, "verdict": verdict, "reason": "because", "action": "do this"}
    said = {"skipped": "", "record": record, "runs": list(runs or [run()])}
    return Answers(results={EXAMPLE.name: said})


def skipping(reason: str) -> Answers:
    return Answers(results={EXAMPLE.name: {"skipped": reason}})


def test_refused_without_us_and_faultless_with_us_is_as_it_should_be() -> None:
    row = make_row(EXAMPLE, without(), with_us())
    assert row.passed
    assert (row.refused, row.reason, row.problems) == (True, "cannot trace", [])


def test_a_call_that_compiles_without_us_proves_nothing() -> None:
    row = make_row(EXAMPLE, without(refused=False, reason="compiles"), with_us())
    assert row.problems == ["without us the compiler should refuse it, but: compiles"]


def test_a_call_that_flashinfer_cured_itself_may_compile_without_us() -> None:
    cured = with_us(verdict="not needed")
    assert make_row(EXAMPLE, without(refused=False, reason="compiles"), cured).passed


def test_a_patch_that_is_not_in_force_proves_nothing() -> None:
    row = make_row(EXAMPLE, without(), with_us(verdict="refused"))
    assert row.problems == ["patch fp4_quantize is refused: because; do this"]


def test_one_faulty_run_among_many_is_named() -> None:
    row = make_row(EXAMPLE, without(), with_us(run(), run(backend="inductor", fault="m=7: bytes")))
    assert row.problems == ["values, inductor: m=7: bytes"]


def test_a_side_that_never_answered_is_a_problem_of_the_row() -> None:
    silent = Answers(faults={EXAMPLE.name: "the child ended with status -11: gone"})
    row = make_row(EXAMPLE, silent, silent)
    assert row.problems == [
        "without us: the child ended with status -11: gone",
        "with us: the child ended with status -11: gone",
    ]
    assert as_json([row], None)["passed"] is False


def test_what_cannot_be_tried_here_says_why_and_is_no_problem() -> None:
    row = make_row(EXAMPLE, skipping("needs a card"), skipping("needs a card"))
    assert row.passed
    assert (row.skipped, row.refused, row.runs) == ("needs a card", False, ())
    # But where it is the only one, nothing is proved.
    assert as_json([row], None)["passed"] is False
    assert as_json([row, make_row(EXAMPLE, without(), with_us(run()))], None)["passed"] is True


def test_a_side_that_died_is_a_problem_though_the_other_had_nothing_to_try() -> None:
    silent = Answers(faults={EXAMPLE.name: "gone"})
    row = make_row(EXAMPLE, skipping("needs a card"), silent)
    assert (row.skipped, row.problems) == ("needs a card", ["with us: gone"])
    assert not row.passed


def test_backends_that_showed_the_same_share_a_line() -> None:
    trace = run("trace", compared="shapes and strides", op_calls=None)
    text = describe([trace, run(), run(backend="inductor")])
    assert text.splitlines() == [
        "fake CUDA tensors (eager): 3 graphs of 3 frames, shapes and strides equal",
        "reference values (eager, inductor): 3 graphs of 3 frames, bits equal, op ran 8 times",
    ]


def test_a_card_without_fp4_is_named_in_the_row() -> None:
    note = "sm_90 has no FP4 conversion: bits not compared"
    graph = run("cuda graph", frames=None, op_calls=None, compared="shapes and strides", note=note)
    assert describe([graph]) == (
        f"CUDA graph (eager): captured, replayed twice, shapes and strides equal, {note}"
    )


ONE = torch.arange(6, dtype=torch.int16).reshape(2, 3)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (ONE.clone(), ""),
        (ONE.int(), "dtype torch.int32 instead of torch.int16"),
        (ONE[:1], "shape torch.Size([1, 3]) instead of torch.Size([2, 3])"),
        (ONE.t().contiguous().t(), "strides (1, 2) instead of (3, 1)"),
        (ONE + 1, "6 of 12 bytes differ"),
        (None, "None instead of a tensor"),
    ],
)
def test_the_first_difference_between_tensors_is_named(found: Any, said: str) -> None:
    assert difference(found, ONE, bits=True) == said


def test_contents_count_only_where_they_are_to_be_compared() -> None:
    assert difference(ONE + 1, ONE, bits=False) == ""


def test_not_a_number_equals_itself_and_zero_is_not_minus_zero() -> None:
    nan, zero = torch.tensor([float("nan")]), torch.zeros(1)
    assert difference(nan.clone(), nan, bits=True) == ""
    assert difference(-zero, zero, bits=True) == "1 of 4 bytes differ"


def test_results_are_compared_one_by_one() -> None:
    assert difference((ONE, (True, ONE)), (ONE, (True, ONE)), bits=True) == ""
    assert difference((ONE, False), (ONE, True), bits=True) == ("result 2: False instead of True")
    assert difference((ONE,), (ONE, ONE), bits=True).endswith("instead of 2 results")


def test_of_the_compilers_many_lines_its_explanation_is_taken() -> None:
    error = RuntimeError(
        "Attempted to call function marked as skipped\n"
        "  Explanation: Dynamo cannot trace the builtin `posix.stat.` This function is either\n"
        "  Hint: something else"
    )
    assert compiler_reason(error) == "Dynamo cannot trace the builtin `posix.stat.`"
    assert compiler_reason(RuntimeError("\nfirst line\nsecond")) == "first line"
    assert one_line(KeyError()) == "KeyError"
