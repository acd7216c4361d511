"""Child of test_undo: processes that go on while the package is replaced and removed under them.

    python replaced_child.py DIRECTORY

It forks one process for each state that a process can be in by then. Each makes the file
``NAME.ready``, waits for the file ``upgraded`` or ``removed``, and leaves what it found in
``NAME.json`` and what it said in ``NAME.err``. Modules of the other version note their names on
``sys``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

torch.set_num_threads(1)
DIRECTORY = Path(sys.argv[1])
Found = dict[str, Any]


def wait_for(event: str) -> None:
    end = time.monotonic() + 600
    while not (DIRECTORY / event).exists():
        if time.monotonic() > end:  # nobody may be left who would end this
            raise TimeoutError(event)
        time.sleep(0.02)


def fork(name: str, event: str, before: Callable[[], object], after: Callable[[], Found]) -> None:
    """A process that does ``before``, waits, and then does ``after``."""
    if os.fork():
        return
    status = 1
    try:
        os.dup2(os.open(DIRECTORY / f"{name}.err", os.O_CREAT | os.O_WRONLY), 2)
        before()
        (DIRECTORY / f"{name}.ready").touch()
        wait_for(event)
        found = after() | {"of the other version": sorted(vars(sys).get("_other_version", []))}
        (DIRECTORY / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")
        status = 0
    finally:
        os._exit(status)


def imports() -> Found:
    """FlashInfer is imported now, for the first time."""
    import computing

    return calls() | {"patched": computing.ours()}


def calls() -> Found:
    """Eager and compiled calls, with graph breaks and without."""
    import child_side
    import computing

    x, weight = computing.arguments()
    eager = computing.rmsnorm(x, weight)

    def model() -> torch.Tensor:
        return computing.rmsnorm(x, weight)

    plain: Any = torch.compile(model, backend="eager")
    torch._dynamo.reset()
    whole = compiled("rmsnorm")
    torch._dynamo.reset()
    broken = child_side.error_of(plain)
    right = broken is None and torch.equal(plain(), eager)
    return {"with breaks": right, "whole": whole, "error": broken, "another": compiled("silu")}


def compiled(function: str) -> str:
    """What comes of a call that is compiled whole: the op that is called, or an error."""
    import child_side
    import computing

    x, weight = computing.arguments()
    counting = child_side.Counting()

    def model() -> torch.Tensor:
        return computing.rmsnorm(x, weight) if function == "rmsnorm" else computing.silu_and_mul(x)

    whole: Any = torch.compile(model, fullgraph=True, backend=counting)
    error = child_side.error_of(whole)
    if error is not None:
        return f"{error[0]}: {error[1]}"
    if not torch.equal(whole(), model()):
        return "another result"
    return ", ".join(name.rpartition(".")[0] for graph in counting.ops() for name in graph)


def begun() -> None:
    """What the children of the tests load of the package themselves."""
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    __import__("child_side")
    __import__("shim.opaque.identity")


def required() -> None:
    os.environ["FLASHINFER_SHIM"] = "require"
    __import__("computing")


fork("gate alone", "upgraded", lambda: None, imports)
fork("package begun", "upgraded", begun, imports)
fork("required", "upgraded", required, calls)
__import__("computing")
fork("never compiled, upgraded", "upgraded", lambda: None, calls)
fork("never compiled, removed", "removed", lambda: None, calls)
fork("has compiled, upgraded", "upgraded", lambda: compiled("rmsnorm"), calls)
fork("has compiled, removed", "removed", lambda: compiled("rmsnorm"), calls)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
