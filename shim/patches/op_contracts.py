"""When a declared op's function is the one that we know: from ``rows.json``."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..contract import Contract, Row
from ..opaque.declare import Op
from ..upstream import FunctionFacts

#: By op, its function's runs of releases, oldest first, as ``tests/write_rows.py`` writes them.
ROWS = Path(__file__).with_name("rows.json")


def contract(op: Op, runs: Iterable[Mapping[str, str]] | None = None) -> Contract:
    """The contract of a declared op, by ``runs`` of releases in place of the written ones."""
    rows = tuple(Row(**run) for run in (_runs().get(op.name, ()) if runs is None else runs))
    return Contract(op.path, (), rows, _fixed, _faulty)


@functools.cache
def _runs() -> dict[str, list[dict[str, str]]]:
    runs: dict[str, list[dict[str, str]]] = json.loads(ROWS.read_text(encoding="utf-8"))
    return runs


def _fixed(facts: FunctionFacts) -> bool:
    # Not by register_custom_op: upstream's own, which registers nothing.
    return any(name.endswith(("torch.library.custom_op", "triton_op")) for name in facts.decorators)


def _faulty(facts: FunctionFacts) -> bool:
    return not _fixed(facts)
