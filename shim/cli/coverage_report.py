"""The two forms of ``coverage``: text for people, JSON for programs."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .coverage_judging import COVERED, NOT_COVERED, NOT_IN_FORWARD, TRACES, Coverage, Public
from .table import paragraph, print_table

#: Raised when a key of the JSON changes its meaning or goes away; new keys do not raise it.
SCHEMA = 1

_WORDS = {
    COVERED: "covered",
    TRACES: "traces by itself",
    NOT_COVERED: "not covered",
    NOT_IN_FORWARD: "not part of a forward",
}
_MANY = {**_WORDS, TRACES: "trace by themselves"}


def totals(functions: Iterable[Public]) -> dict[str, int]:
    """How many there are, and of each status."""
    counted = Counter(function.status for function in functions)
    return {"functions": counted.total(), **{status: counted[status] for status in _WORDS}}


def as_json(coverage: Coverage) -> str:
    """The documented form for programs; docs/coverage.md holds the schema."""
    installed = coverage.installed
    return json.dumps(
        {
            "schema": SCHEMA,
            "flashinfer": {
                "version": installed.version and str(installed.version),
                "package": str(installed.package),
                "problem": installed.problem,
            },
            "totals": totals(coverage.functions),
            "families": {
                family: totals(functions) for family, functions in _families(coverage.functions)
            },
            "functions": [_function(function) for function in coverage.functions],
            "classes": [_names(public) for public in coverage.classes],
            "unreadable": list(coverage.unreadable),
        },
        indent=2,
    )


def _families(functions: Sequence[Public]) -> Iterator[tuple[str, list[Public]]]:
    """The functions of each family; they come sorted by it."""
    for family, members in itertools.groupby(functions, key=lambda function: function.family):
        yield family, list(members)


def _function(function: Public) -> dict[str, Any]:
    finding = function.finding
    return {
        **_names(function),
        "status": function.status,
        "reason": function.reason,
        "patch": finding and finding.patch.name,
        "verdict": finding and str(finding.judgement.verdict),
    }


def _names(public: Public) -> dict[str, Any]:
    return {
        "name": public.name,
        "family": public.family,
        "defined": f"{public.definition.module}:{public.definition.name}",
        "exported": list(public.exported),
    }


def print_text(coverage: Coverage, *, each: bool) -> None:
    """The form for people.

    Args:
        coverage: what to print.
        each: one row for each function, with where it stands; else all that share a fate in one
            paragraph, family by family.
    """
    installed = coverage.installed
    print(f"FlashInfer {installed.version or 'of an unknown release'} in {installed.package}\n")
    if each:
        _print_each((*coverage.functions, *coverage.classes))
    else:
        for family, functions in _families(coverage.functions):
            print(f"{family} ({len(functions)})")
            for said, names in _fates(functions):
                print(paragraph(f"{said} ({len(names)}): {', '.join(names)}", indent="  "))
        print()
        _print_counts(coverage.functions)
    counted = totals(coverage.functions)
    print(
        f"\n{counted.pop('functions')} public functions: "
        + ", ".join(f"{number} {_MANY[status]}" for status, number in counted.items())
        + "."
    )
    if coverage.classes and not each:
        print(f"{len(coverage.classes)} public classes are not counted, their methods are.")
    if installed.problem:
        print(f"No patch is vouched for: {installed.problem}.")
    for path in coverage.unreadable:
        print(f"Warning: {path} cannot be read.")


def _fates(functions: Sequence[Public]) -> Iterator[tuple[str, list[str]]]:
    """What is said of some of the functions, and their names; in the order of the statuses."""
    for status, words in _WORDS.items():
        said: dict[str, list[str]] = defaultdict(list)
        for function in functions:
            if function.status == status:
                said[function.reason].append(function.name)
        for reason, names in said.items():
            yield f"{words}, {reason}" if reason else words, names


def _print_each(publics: Iterable[Public]) -> None:
    for public in publics:
        print(paragraph(f"{public.name}: {_fate(public)}"))
        where = [f"in {public.definition.module}"]
        if public.exported:
            where.append(f"exported as {', '.join(public.exported)}")
        print(paragraph("; ".join(where), indent="    "))


def _fate(public: Public) -> str:
    if public.definition.is_class:
        return "a class"
    words, finding = _WORDS[public.status], public.finding
    if public.status == COVERED and finding:
        return f"{words} by the patch {finding.patch.name}"
    return f"{words}, {public.reason}" if public.reason else words


def _print_counts(functions: Sequence[Public]) -> None:
    rows = [
        (family, *map(str, totals(members).values())) for family, members in _families(functions)
    ]
    columns = ("family", "functions", "covered", "traces", "not covered", "no forward")
    print_table("", columns, rows)
