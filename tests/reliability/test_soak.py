"""Compiling, undoing, reloading and forking on and on: what a process holds stays what it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import RunChild

CHILD = Path(__file__).with_name("soak_child.py")
WINDOWS = 20
#: The whole soak, and how long it may take (seconds).
ITERATIONS, LIMIT = int(os.environ.get("FLASHINFER_SHIM_TEST_SOAK", "20000")), 4 * 3600
#: What the mean of the last quarter may be over that of the second one: memory in MiB, objects in
#: thousands. One module that is not freed, or a redirection that torch keeps, is far more.
BOUNDS = {"memory": 12.0, "handles": 0.5, "threads": 0.5, "objects": 12.0}


def soak(run_child: RunChild, side: str, iterations: int, windows: int) -> Any:
    return run_child(
        None,
        args=[CHILD, side, str(iterations), str(windows)],
        release="0.6.3",
        shim=side == "with",
        timeout=LIMIT,
    ).json


def means(found: list[dict[str, float]]) -> dict[str, tuple[float, float]]:
    """Of the second quarter of the run, when all is warm, and of the last."""
    quarter = len(found) // 4
    early, late = found[quarter : 2 * quarter], found[-quarter:]
    return {
        name: tuple(sum(window[name] for window in part) / quarter for part in (early, late))  # type: ignore[misc]
        for name in found[0]
    }


def grown(found: list[dict[str, float]]) -> list[str]:
    return [
        f"{name} from {early:.1f} to {late:.1f}"
        for name, (early, late) in means(found).items()
        if late - early > BOUNDS[name]
    ]


@pytest.mark.long
def test_a_process_that_compiles_undoes_reloads_and_forks_for_hours_does_not_grow(
    run_child: RunChild, figure: Callable[[str], None]
) -> None:
    found = soak(run_child, "with", ITERATIONS, WINDOWS)
    assert sum(found["done"].values()) == ITERATIONS // WINDOWS * WINDOWS
    assert grown(found["windows"]) == [], found["windows"]
    done = ", ".join(f"{count} {kind}" for kind, count in found["done"].items())
    held = ", ".join(
        f"{name} {early:.1f} to {late:.1f}"
        for name, (early, late) in means(found["windows"]).items()
    )
    figure(f"soak: {sum(found['done'].values())} iterations ({done}); {held}")


def test_a_hundred_rounds_of_it_lose_nothing(run_child: RunChild) -> None:
    found = soak(run_child, "with", 100, 4)
    assert found["done"] == {"compile": 60, "undo": 20, "reload": 19, "fork": 1}
    first, last = found["windows"][1], found["windows"][-1]
    assert (last["handles"], last["threads"]) == (first["handles"], first["threads"])
    # Each reload makes two modules; none may be kept by us (thousands of objects).
    assert last["objects"] - first["objects"] < 6


def test_growth_is_seen() -> None:
    flat = [{"memory": 100.0, "handles": 7.0, "threads": 2.0, "objects": 380.0}] * 20
    assert grown(flat) == []
    leaking = [{**window, "objects": 380 + i * 1.3} for i, window in enumerate(flat)]
    opening = [{**window, "handles": 7 + i / 10} for i, window in enumerate(flat)]
    assert grown(leaking) == ["objects from 389.1 to 402.1"] or len(grown(leaking)) == 1
    assert len(grown(opening)) == 1
