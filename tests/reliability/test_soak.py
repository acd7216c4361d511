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
#: What a process may keep with us beside what it keeps without us, in 1,000 iterations: memory in
#: MiB, objects in thousands. One module that is kept at each reload is more than that.
BOUNDS = {"memory": 3.0, "objects": 2.0}
#: What it may have more of at the end than when all was warm.
MORE = {"handles": 0.5, "threads": 0.5}

Window = dict[str, float]


def soak(run_child: RunChild, side: str, iterations: int, windows: int) -> Any:
    return run_child(
        None,
        args=[CHILD, side, str(iterations), str(windows)],
        release="0.6.3",
        shim=side == "with",
        timeout=LIMIT,
    ).json


def means(found: list[Window]) -> tuple[Window, Window]:
    """Of the second quarter of the run, when all is warm, and of the last."""
    quarter = len(found) // 4
    parts = found[quarter : 2 * quarter], found[-quarter:]
    early, late = ({n: sum(w[n] for w in part) / quarter for n in part[0]} for part in parts)
    return early, late


def growth(found: list[Window], iterations: int) -> Window:
    """In 1,000 iterations; the quarters lie half the run apart."""
    early, late = means(found)
    return {name: (late[name] - early[name]) * 2000 / iterations for name in early}


def too_much(ours: Window, without: Window) -> list[str]:
    return [
        f"{name}: {ours[name]:.2f} in 1,000 iterations, without us {without[name]:.2f}"
        for name, bound in BOUNDS.items()
        if ours[name] > without[name] + bound
    ]


@pytest.mark.long
def test_a_process_that_compiles_undoes_reloads_and_forks_for_hours_does_not_grow(
    run_child: RunChild, figure: Callable[[str], None]
) -> None:
    fewer = max(ITERATIONS // 5, WINDOWS)
    without = growth(soak(run_child, "without", fewer, WINDOWS)["windows"], fewer)
    found = soak(run_child, "with", ITERATIONS, WINDOWS)
    done, windows = found["done"], found["windows"]
    assert sum(done.values()) == ITERATIONS // WINDOWS * WINDOWS
    ours = growth(windows, ITERATIONS)
    early, late = means(windows)
    assert [name for name, bound in MORE.items() if late[name] > early[name] + bound] == [], windows
    assert too_much(ours, without) == [], windows
    kinds = ", ".join(f"{count} {kind}" for kind, count in done.items())
    held = ", ".join(f"{name} {early[name]:.1f} to {late[name]:.1f}" for name in early)
    beside = ", ".join(f"{name} {without[name]:+.2f}" for name in without)
    figure(f"soak: {sum(done.values())} iterations ({kinds}); {held}")
    figure(f"soak: without us, in 1,000 iterations: {beside}")


def test_a_hundred_rounds_of_it_lose_nothing(run_child: RunChild) -> None:
    found = soak(run_child, "with", 100, 4)
    assert found["done"] == {"compile": 60, "undo": 20, "reload": 19, "fork": 1}
    first, last = found["windows"][1], found["windows"][-1]
    assert last["handles"] <= first["handles"]
    assert last["threads"] <= first["threads"]
    # Each reload makes two modules; none may be kept by us (thousands of objects).
    assert last["objects"] - first["objects"] < 6


def test_growth_is_seen() -> None:
    flat = [{"memory": 100.0, "handles": 7.0, "threads": 2.0, "objects": 380.0}] * 20
    still = growth(flat, 20000)
    assert set(still.values()) == {0.0}
    for name, bound in BOUNDS.items():
        # Over 1,000 iterations, which are one window, a little more than is allowed.
        growing = [
            {**window, name: window[name] + i * bound * 1.1} for i, window in enumerate(flat)
        ]
        (told,) = too_much(growth(growing, 20000), still)
        assert told.startswith(name)
        assert too_much(growth(growing, 20000), growth(growing, 20000)) == []
