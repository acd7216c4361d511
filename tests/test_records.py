"""Many patches in few words."""

from __future__ import annotations

from shim.ledger import Record, Verdict
from shim.patches import FAMILIES, NAMES, USUAL
from shim.records import grouped, named

NORM, PAGE = FAMILIES["norm"], FAMILIES["page"]


def test_a_few_patches_are_told_by_name() -> None:
    assert named(["rmsnorm"]) == "rmsnorm"
    assert named(["rmsnorm", "fp4_quantize"]) == "rmsnorm, fp4_quantize"


def test_all_patches_are_told_by_their_number() -> None:
    assert named(NAMES) == f"all {len(NAMES)} patches"
    assert named(USUAL) == f"all {len(USUAL)} patches"


def test_many_patches_are_told_by_family_whole_or_in_part_and_a_single_one_by_name() -> None:
    some = [*PAGE, *NORM[:-1], "cuda_version"]
    assert named(some) == (
        f"cuda_version, norm ({len(NORM) - 1} of {len(NORM)}), page ({len(PAGE)})"
    )


def test_what_is_said_of_all_families_stays_short() -> None:
    assert len(named(USUAL[1:])) < 30 * len(FAMILIES)


def test_records_are_grouped_by_what_they_share_in_the_order_of_the_first() -> None:
    def record(patch: str, reason: str) -> Record:
        return Record(patch, f"m:{patch}", Verdict.REFUSED, reason)

    one, two, three = record("a", "x"), record("b", "y"), record("c", "x")
    groups = grouped([one, two, three], lambda each: (each.reason,))
    assert groups == [(("x",), [one, three]), (("y",), [two])]
