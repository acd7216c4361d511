"""What the notes of an audit mean: which calls the compiler does not see, why, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..records import named

#: Kinds of calls that are in a graph, as shim/audit/stack.py knows them.
COMPILED = ("traced", "mode")
_COLUMNS = {"traced": "compilations", "mode": "compilations", "eager": "eager", "op": "op"}

#: By the kind of a call: what it means, and what to do.
_MEANINGS: Mapping[str, tuple[str, str]] = {
    "op": (
        "{patch} is called from inside {by}, an op that its caller has made, in {where}: the "
        "compiler sees that op and its fake, and FlashInfer's function runs in it as in eager",
        "nothing, unless the caller's fake or its op is the trouble: then call FlashInfer directly",
    ),
    "disabled": (
        "{patch} is called under torch.compiler.disable, by {by} in {where}: each call ends the "
        "graph",
        "take torch.compiler.disable away from {by}",
    ),
    "graph": (
        "{patch} is called by a Python function within a compiled graph, in {where}: the compiler "
        "sees that function and not what it calls",
        "call FlashInfer in the compiled function itself, without allow_in_graph",
    ),
    "alone": (
        "{patch} was compiled by itself: Dynamo had given up its caller, in {where}{why}",
        "compile the caller with fullgraph=True to see what ends its graph, and mend that",
    ),
    "broken": (
        "{patch} ran in eager, in a compiled function that Dynamo had given up, in {where}{why}",
        "compile the caller with fullgraph=True to see what ends its graph, and mend that",
    ),
}


@dataclass(frozen=True)
class Call:
    """A kind of call of one function.

    Attributes:
        patch: the function, by the name of its patch.
        how: how it came about, as shim/audit/stack.py has it.
        by: the compiled function, the op or the disabled function.
        where: the caller's place.
        times: how often.
    """

    patch: str
    how: str
    by: str
    where: str
    times: int = 0

    @property
    def alone(self) -> Call:
        """Without how often."""
        return replace(self, times=0)

    @property
    def column(self) -> str:
        """Where a table counts it."""
        return _COLUMNS.get(self.how, "outside")

    def as_json(self) -> dict[str, Any]:
        """As docs/audit.md has it."""
        return {key: value for key, value in asdict(self).items() if key in ("how", "by", "where")}


@dataclass(frozen=True)
class Finding:
    """Something that the compiler does not see.

    Attributes:
        kind: of a call, or ``guard``, ``graph break``, ``failure``, ``refused``, ``failed``.
        functions: FlashInfer's functions that it is about.
        where: the place in somebody's source; may be empty.
        times: how often; 0 where that is not counted.
        text: what it is, in one sentence.
        action: what to do; empty if nothing.
    """

    kind: str
    functions: tuple[str, ...]
    where: str
    times: int
    text: str
    action: str


def find(processes: Sequence[Mapping[str, Any]], calls: Mapping[Call, int]) -> Iterator[Finding]:
    """All that the notes show."""
    breaks = _together(processes, "breaks")
    for call, times in calls.items():
        if call.how in _MEANINGS:
            yield _of_call(call, times, breaks)
    yield from _guards(processes, calls)
    yield from _breaks(breaks)
    yield from _standing_aside(processes)


def _of_call(call: Call, times: int, breaks: Sequence[Mapping[str, Any]]) -> Finding:
    text, action = _MEANINGS[call.how]
    same = (each for each in breaks if _function(each["where"]) == _function(call.where))
    reason = next((each["reason"] for each in same), "")
    words = {**asdict(call), "why": f": {reason}" if reason else ""}
    return Finding(
        call.how, (call.patch,), call.where, times, text.format(**words), action.format(**words)
    )


def _guards(processes: Sequence[Mapping[str, Any]], calls: Mapping[Call, int]) -> Iterator[Finding]:
    seen = set()
    for guard in (each for process in processes for each in process["guards"]):
        function = guard["function"].rpartition(".")[2].rpartition(":")[2]
        file = guard["where"].rpartition(":")[0]
        compiled = {
            call.patch
            for call in calls
            if call.how in COMPILED and _function(call.where) == f"{file} in {function}"
        }
        names = tuple(name for name in guard["names"] if name not in compiled)
        key = (guard["function"], guard["where"])
        if names and key not in seen:
            seen.add(key)
            yield Finding(
                "guard",
                names,
                guard["where"],
                0,
                f"{guard['function']} ({guard['where']}) asks {guard['asks']}, and names "
                f"{', '.join(names)}: where it calls that only when nothing is compiled, "
                "compiled code has another kernel than eager code",
                "take the question out of it, or live with two kernels",
            )


def _breaks(breaks: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    for each in breaks:
        function, where, reason = each["function"], each["where"], each["reason"]
        if each["kind"] == "failure":
            text, action = f"what begins in {where} could not be compiled: {reason}", ""
        elif function:
            text = f"FlashInfer's {function}, called in {where}, ends the graph: {reason}"
            action = f"flashinfer-shim coverage {function}"
        else:
            continue  # the graph of somebody who, as far as one can see, does not call FlashInfer
        names = (function,) if function else ()
        yield Finding(each["kind"], names, where, each["times"], text, action)


def _standing_aside(processes: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    groups: dict[tuple[str, str, str], dict[str, None]] = {}
    for process in processes:
        for patch, record in process["patches"].items():
            if record["verdict"] in ("refused", "failed"):
                key = (record["verdict"], record["reason"], record["action"])
                groups.setdefault(key, {})[patch] = None
    for (verdict, reason, action), patches in groups.items():
        names = tuple(patches)
        yield Finding(verdict, names, "", 0, f"{named(names)} {verdict}: {reason}", action)


def _together(processes: Sequence[Mapping[str, Any]], key: str) -> list[dict[str, Any]]:
    """What several processes noted alike, once, with how often that was in all."""
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    for each in (each for process in processes for each in process[key]):
        told = {name: value for name, value in each.items() if name != "times"}
        entry = merged.setdefault(tuple(told.values()), {**told, "times": 0})
        entry["times"] += each["times"]
    return list(merged.values())


def _function(where: str) -> str:
    """``FILE in FUNCTION`` of a place ``FILE:LINE in FUNCTION``."""
    file, _, function = where.partition(" in ")
    return f"{file.rpartition(':')[0]} in {function}"
