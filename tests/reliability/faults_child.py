"""One fault after the other, each in a fork of a process that has loaded all but FlashInfer and us.

``python faults_child.py ROOT SCENARIO COUNT SEED [PART PARTS]`` prints a JSON line for each fault,
and one in front that tells how many places there are. Settings are read from the environment.

A SystemExit or a KeyboardInterrupt comes from a signal handler of the user's: it reaches whoever
imports FlashInfer, and the next import is as if nothing had been.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import random
import signal
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fault_sites import ANYWHERE, ERRORS, VALUES, Fault, Sites

ROOT = Path(sys.argv[1])
SHIM = str(ROOT / "shim") + "/"
OURS = ("shim", "_flashinfer_shim", "sitecustomize")
#: Where others' code runs, whose errors are the user's; and what Python has loaded before.
NOT_OURS = (
    "self.__loader.exec_module(module)",
    "getattr(finder, 'find_spec', None)",
    "getattr(self.__loader, attribute)",
    "self._asking.discard(asking)",  # nothing but an interrupt could stop that
    "find_spec(name, path, target)",
    "import os",
    "import sys",
)
#: Asks whether we are still installed, and None is a no: of that nobody is told.
INSTALLED = "isfile(join(self.directory, 'hook.py'))"
#: What each kind of place is made to do.
KINDS = {
    "call": (*ERRORS, *VALUES),
    "effect": tuple(ERRORS),
    "decorator": tuple(ERRORS),
    "value": ("AttributeError", "ImportError", "RuntimeError", *ANYWHERE, *VALUES),
    "import": tuple(ERRORS),
}
#: Seconds after which a fork is taken to hang.
PATIENCE = 120
#: Of those, no fault of ours may keep the user from what he asked for.
THE_USERS = ("KeyboardInterrupt", "SystemExit")
REQUIRED = os.environ.get("FLASHINFER_SHIM") == "require"


def is_ours(value: object) -> bool:
    """Whether a function is ours; of what is partially applied, the function."""
    while isinstance(value, functools.partial | functools.partialmethod):
        value = value.func
    code = getattr(value, "__code__", None)
    return isinstance(code, types.CodeType) and code.co_filename.startswith(SHIM)


def held() -> Iterator[tuple[str, object]]:
    """By place, what can be called of all that FlashInfer's modules, and their classes, hold."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "flashinfer" or not isinstance(module, types.ModuleType):
            continue
        for attribute, value in list(vars(module).items()):
            if callable(value):
                yield f"{name}:{attribute}", value
            if isinstance(value, type) and value.__module__ == name:
                for method, function in list(vars(value).items()):
                    if callable(function) or isinstance(function, functools.partialmethod):
                        yield f"{name}:{attribute}.{method}", function


def ours() -> list[str]:
    """The places that hold something of ours."""
    return [place for place, value in held() if is_ours(value)]


def loaded(module: str) -> types.ModuleType | None:
    """A module of our package, under whichever name it is there."""
    return next((m for root in OURS if (m := sys.modules.get(f"{root}.{module}"))), None)


def verdicts() -> dict[str, str] | None:
    """The ledger, None where our package could not even be loaded as it is."""
    hook: Any = loaded("hook")
    try:
        return {record.patch: str(record.verdict) for record in hook.status()}
    except Exception:
        return None


@dataclass
class Report:
    """What one fork saw."""

    fired: bool = False
    raised: list[str] = field(default_factory=list)
    imported: bool = False
    chained: bool = False
    ours: list[str] = field(default_factory=list)
    ledger: dict[str, str] | None = None
    told: bool = False
    left: list[str] = field(default_factory=list)
    note: str = ""


def start() -> None:
    """As an interpreter does that has our directory on its path."""
    sys.path.insert(0, str(ROOT))
    sys.modules.pop("sitecustomize", None)
    vars(sys)["users_own"] = 0  # the user's has run in the process that forks
    try:
        importlib.import_module("sitecustomize")
    except Exception as error:  # as in site.py
        sys.stderr.write(f"Error in sitecustomize: {error!r}\n")


def by_import() -> None:
    start()
    importlib.import_module("flashinfer")


def late() -> None:
    sys.path.insert(0, str(ROOT))
    importlib.import_module("shim").activate()


SCENARIOS = {"import": by_import, "late": late}


def observe(sites: Sites, scenario: str) -> Report:
    """Go through a scenario, again where the user has interrupted it, and look around."""
    report = Report()
    for _ in range(2):
        try:
            SCENARIOS[scenario]()
            break
        except BaseException as error:
            report.raised.append(type(error).__name__)
            report.note = traceback.format_exc()
            if type(error).__name__ not in THE_USERS:
                break
    report.fired = sites.fired
    report.imported = "flashinfer" in sys.modules
    report.chained = getattr(sys, "users_own", 0) == 1
    report.ours = ours()
    report.ledger = verdicts()
    gates: list[Any] = [
        f for f in sys.meta_path if getattr(type(f), "flashinfer_shim_gate", False) is True
    ]
    # Without a gate the process is one that we have never come to, as `check --deep` tells.
    report.told = all(gate.fault is not None for gate in gates)
    hook: Any = loaded("hook")
    if report.ledger is not None:
        with contextlib.suppress(Exception):  # the fault may have left it nothing to work with
            hook.deactivate()
        report.left = ours()
    return report


def in_fork(work: Callable[[], Any]) -> tuple[Any, str, str]:
    """What ``work`` gives in a fork of this process, what it wrote to stdout and to stderr."""
    streams = [os.memfd_create(name) for name in ("stdout", "stderr", "result")]
    pid = os.fork()
    if pid == 0:
        signal.alarm(PATIENCE)
        os.dup2(streams[0], 1)
        os.dup2(streams[1], 2)
        try:
            result = work()
        except BaseException:
            result = {"broken": traceback.format_exc()}
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(streams[2], json.dumps(result).encode())
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    texts = []
    for stream in streams:
        said = os.pread(stream, os.lseek(stream, 0, os.SEEK_END), 0)
        texts.append(said.decode("utf-8", "replace"))
        os.close(stream)
    broken = {"broken": f"ended with status {status:#x}; an alarm is 0xe"}
    return json.loads(texts[2]) if texts[2] else broken, texts[0], texts[1]


@dataclass
class Usual:
    """How a process ends up that no fault has come to.

    Attributes:
        ours: the places that hold something of ours.
        groups: those that one patch fills, by its name.
        ledger: the verdicts.
        seen: by place in our code, how often it was come to, and whose is what was called.
        modules: what was loaded.
    """

    ours: list[str]
    groups: dict[str, list[str]]
    ledger: dict[str, str]
    seen: dict[int, tuple[int, str]]
    modules: list[str]
    sites: list[dict[str, Any]]


def usual(sites: Sites, scenario: str) -> dict[str, Any]:
    sites.noting = True
    SCENARIOS[scenario]()
    sites.noting = False
    hook: Any = loaded("hook")
    replacements = {id(a.replacement): name for name, a in hook._process.in_force.items()}
    groups: dict[str, list[str]] = {}
    for place, value in held():
        if is_ours(value):
            inner = getattr(value, "func", value)
            groups.setdefault(replacements.get(id(inner), ""), []).append(place)
    ledger = verdicts() or {}
    seen, files = dict(sites.seen), [asdict(site) for site in sites.sites]
    return asdict(Usual(ours(), groups, ledger, seen, list(sys.modules), files))


def may_raise(scenario: str, seen: Report) -> bool:
    """Whoever calls activate() hears of its faults, whoever requires us of what is not there."""
    return scenario == "late" or (REQUIRED and "FLASHINFER_SHIM=require" in seen.note)


def escapes(
    scenario: str, fault: Fault, report: dict[str, Any], out: str, err: str, plain: Usual
) -> list[str]:
    """What of a fault has come through: one sentence each."""
    if "broken" in report:
        return [report["broken"]]
    found = []
    seen = Report(**report)
    if not seen.fired:
        found.append("the place was not come to")
    missing = set(plain.ours) - set(seen.ours)
    told = seen.told or bool(seen.raised)
    if fault.what in THE_USERS:
        told = True
        if len(seen.raised) > 1:
            found.append(f"a second import raised {seen.raised[1]}: {seen.note}")
    elif seen.raised and not may_raise(scenario, seen):
        found.append(f"{seen.raised} reached the user: {seen.note}")
    elif REQUIRED and missing and not told:
        found.append(f"required, and not told that it is not there: {sorted(missing)}")
    if not seen.imported and not REQUIRED:
        found.append("FlashInfer is not imported")
    at = plain.sites[fault.site]
    if not seen.chained and at["file"] != "sitecustomize.py":
        found.append("the user's sitecustomize did not run once")
    if out:
        found.append(f"stdout: {out!r}")
    if len(err.splitlines()) > 1:
        found.append(f"stderr: {err}")
    if not seen.imported and REQUIRED:  # what was executed until then is not there any more
        return found
    mine = set(seen.ours)
    if mine - set(plain.ours):
        found.append(f"what is usually FlashInfer's is ours: {sorted(mine - set(plain.ours))}")
    # A class whose objects get handles, in which no method is ours.
    tracked = {place.rpartition(".")[0] for place in mine.intersection(plain.groups.get("", ()))}
    found += [
        f"half there: {kind}"
        for kind in tracked
        if not any(p.startswith(kind + ".") for p in mine.difference(plain.groups[""]))
    ]
    named = {patch: group for patch, group in plain.groups.items() if patch}
    here = {patch: mine.intersection(group) for patch, group in named.items()}
    applied = {patch for patch, verdict in (seen.ledger or {}).items() if verdict == "applied"}
    half = [patch for patch in named if here[patch] and len(here[patch]) < len(named[patch])]
    if half:
        found.append(f"half there: {half}")
    lies = [patch for patch in named if bool(here[patch]) is not (patch in applied)]
    if lies:
        found.append(f"the ledger has it wrong: {lies}")
    if missing and not told and seen.ledger is None:
        found.append("nobody tells that nothing is patched")
    if seen.left:
        found.append(f"deactivate() left {seen.left}: {seen.note}")
    return found


def faults(plain: Usual, count: int, seed: int) -> list[Fault]:
    """A choice of all faults: each place before any comes a second time."""
    every: list[list[Fault]] = []
    for number, (times, owner) in plain.seen.items():
        site = plain.sites[number]
        if owner == "ours" or site["text"] in NOT_OURS:
            continue
        kinds = ANYWHERE if owner == "python" else KINDS[site["kind"]]
        turns = {1, times // 2 + 1}
        if owner == "outside" and site["kind"] in ("call", "effect"):
            turns.add(0)  # a disk that is gone, say, and not one moment of it
        every.append(
            [
                Fault(number, kind, turn)
                for kind in kinds
                for turn in sorted(turns)
                if (turn or kind not in THE_USERS)
                and not (kind == "None" and site["text"] == INSTALLED)
            ]
        )
    chance = random.Random(seed)
    chance.shuffle(every)
    for each in every:
        chance.shuffle(each)
    rounds = max(map(len, every))
    ordered = [each[i] for i in range(rounds) for each in every if i < len(each)]
    return ordered[:count]


def preload(modules: Iterable[str]) -> None:
    """What FlashInfer and we import of others; our own and its own stay out."""
    for name in modules:
        if name.partition(".")[0] not in ("flashinfer", *OURS) and name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def main(scenario: str, count: int, seed: int, part: int = 0, parts: int = 1) -> None:
    sites = Sites(ROOT, "sitecustomize.py")
    sites.install()
    # What was loaded on the way to it decides nothing: so it may be loaded beforehand.
    first, *_ = in_fork(functools.partial(usual, sites, scenario))
    assert "broken" not in first, first["broken"]
    preload(first["modules"])
    if scenario == "late":
        importlib.import_module("flashinfer")
    for path in {site["file"]: None for site in first["sites"]}:
        sites.code(str(ROOT / path))
    result, out, err = in_fork(functools.partial(usual, sites, scenario))
    assert not out, out
    assert not err, err
    plain = Usual(**{**result, "seen": {int(n): s for n, s in result["seen"].items()}})
    chosen = faults(plain, count, seed)
    places = len({fault.site for fault in chosen})
    print(json.dumps({"places": places, "faults": len(chosen)}), flush=True)
    gc.freeze()
    for fault in chosen[part::parts]:

        def work(fault: Fault = fault) -> dict[str, Any]:
            sites.fault = fault
            return asdict(observe(sites, scenario))

        found = escapes(scenario, fault, *in_fork(work), plain)
        told = {**asdict(fault), "at": plain.sites[fault.site], "escapes": found}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[2], *map(int, sys.argv[3:]))
