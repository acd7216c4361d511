"""Both sides of a comparison, measured in turn in one run, and what came of it."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar


@dataclass(frozen=True)
class Side:
    """One command of a comparison."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]


Value = TypeVar("Value")


def in_turn(
    names: Sequence[str], measure: Callable[[str], Value], rounds: int
) -> dict[str, list[Value]]:
    """``rounds`` measurements of each, one after the other in each round, the first thrown away.

    So whatever else the machine does meets all of them alike. Each round begins with another, so
    that none has always the same one before it.
    """
    found: dict[str, list[Value]] = {name: [] for name in names}
    for number in range(rounds + 1):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            value = measure(name)
            if number:
                found[name].append(value)
    return found


def cpu_seconds(side: Side) -> float:
    """User and system time of the process and of what it waited for, in seconds."""
    child = subprocess.Popen(side.command, env=dict(side.env), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{side.name}: {' '.join(side.command)} ended with {child.returncode}")
    return usage.ru_utime + usage.ru_stime


def instructions(side: Side) -> float:
    """Instructions of the process, by callgrind: the same whatever else the machine does."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *side.command]
    done = subprocess.run(
        command, env=dict(side.env), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    collected = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or collected is None:
        raise SystemExit(f"{side.name}: {' '.join(command)}: {done.stderr[-500:]}")
    return float(collected[1])


def compare(
    sides: Sequence[Side], measure: Callable[[Side], float], rounds: int
) -> dict[str, dict[str, float]]:
    """Median and spread of each command, measured in turn."""
    by_name = {side.name: side for side in sides}
    return told(in_turn(list(by_name), lambda name: measure(by_name[name]), rounds))


def told(values: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Median and spread (the middle half) of each side."""
    return {name: _told(measured) for name, measured in values.items()}


def _told(measured: Sequence[float]) -> dict[str, float]:
    if len(measured) < 2:
        return {"median": measured[0], "spread": 0.0}
    low, _, high = statistics.quantiles(measured, n=4)
    return {"median": statistics.median(measured), "spread": high - low}


def added(ones: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """How much more one side took in the same round: the median, and between what it surely lies.

    What the machine does meets both sides of a round alike and drops out of their difference, so
    this is finer than the difference of two medians. ``low`` and ``high`` hold the true median in
    95 of 100 cases, whatever the distribution (they are order statistics).
    """
    gaps = sorted(one - other for one, other in zip(ones, others, strict=True))
    number = len(gaps)
    below = max(0, math.floor(number / 2 - 0.98 * math.sqrt(number)))
    return {
        "median": statistics.median(gaps),
        "low": gaps[below],
        "high": gaps[number - 1 - below],
    }


def machine(device: str = "cpu") -> dict[str, str]:
    """What a saved run says of where and with what it ran: of what this process has imported."""
    torch = sys.modules.get("torch")
    found = {
        "date": datetime.date.today().isoformat(),
        "device": platform.machine(),
        "python": platform.python_version(),
    }
    if torch is not None and device == "cuda":
        found["device"] = torch.cuda.get_device_name()
    for name in ("torch", "flashinfer"):
        if name in sys.modules:
            found[name] = sys.modules[name].__version__
    return found


def show(title: str, unit: str, sides: Mapping[str, Mapping[str, float]], base: str) -> None:
    """A table: each side, its spread, what it adds to the base, and the ratio to it."""
    print(f"\n{title} ({unit}; median, the middle half's width)")
    floor = sides[base]["median"]
    for name, side in sides.items():
        added, ratio = side["median"] - floor, side["median"] / floor if floor else 0.0
        print(
            f"  {name:46} {side['median']:14,.4g} ±{side['spread']:10,.3g}"
            f"   {added:+12,.4g}   {ratio:6.3f}x"
        )


def save(path: str, result: Mapping[str, Any]) -> None:
    """Write JSON."""
    Path(path).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
