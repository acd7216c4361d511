"""When a declared op's function is the one that we know: from ``rows.json``.

The declarations themselves are not read for that. A process that never compiles anything imports
FlashInfer without them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..contract import Contract, Row
from ..sources import FunctionFacts
from . import PATCHES

#: By op, its function's runs of releases, oldest first: the fields of :class:`~shim.contract.Row`,
#: as ``tests/write_rows.py`` writes them.
ROWS = Path(__file__).with_name("rows.json")


def contract(function: str, runs: Iterable[Sequence[str]]) -> Contract:
    """The contract of a declared op's function."""
    return Contract(function, (), tuple(Row(*run) for run in runs), fixed, _faulty)


def fixed(facts: FunctionFacts) -> bool:
    """Whether upstream has made the function an op itself."""
    # Not by register_custom_op: upstream's own, which registers nothing.
    return any(name.endswith(("torch.library.custom_op", "triton_op")) for name in facts.decorators)


def _faulty(facts: FunctionFacts) -> bool:
    return not fixed(facts)


def _read() -> dict[str, Contract]:
    try:
        rows = json.loads(ROWS.read_text(encoding="utf-8"))
        return {
            each.name: contract(each.function, rows[each.name]) for each in PATCHES if not each.rows
        }
    except (OSError, ValueError, LookupError, TypeError) as fault:
        # As where a module of ours is gone: the processes that need it may have begun long ago.
        raise ImportError(
            f"{ROWS.name} cannot be read: {type(fault).__name__}: {fault}", name=__name__
        ) from fault


CONTRACTS = _read()
