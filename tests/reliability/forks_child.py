"""Child of test_forks: what a fork finds when another thread is stopped in the middle of things.

Prints one JSON object: by what the other thread, or the one that forks, was doing, what the forked
child saw. That is for each look which of two functions are ours, at how many places a replacement
stands, and whether the ledger says that more than a hundred patches are applied.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import computing
import torch
from computing import rmsnorm, silu_and_mul

import shim
from shim import hook, replacing
from shim.opaque import later

#: Seconds after which a forked child counts as one that waits for ever.
PATIENCE = 20

Stopping = Callable[[Callable[[], None]], object]
x, weight = computing.arguments()
wanted = silu_and_mul(rmsnorm(x, weight))


def look() -> list[Any]:
    """What is ours."""
    applied = [record for record in shim.status() if record.verdict == "applied"]
    return [computing.ours(), len(computing.replacements()), len(applied) > 100]


def forked(seen: Callable[[], Any]) -> Any:
    """What ``seen`` gives in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE)
        try:
            said = seen()
        except BaseException as error:
            said = repr(error)
        os.write(writing, json.dumps(said).encode())
        os._exit(0)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reading) as stream:
        return json.loads(stream.read() or f'"ended with {status}"')


def meanwhile(stopping: Stopping, call: Callable[[], Any]) -> Any:
    """What ``call`` gives while a thread is stopped within ``stopping``."""
    there, go_on = threading.Event(), threading.Event()

    def stop() -> None:
        if not there.is_set():
            there.set()
            go_on.wait()

    thread = threading.Thread(target=stopping, args=(stop,))
    thread.start()
    there.wait()
    try:
        return call()
    finally:
        go_on.set()
        thread.join()


def in_a_block(stop: Callable[[], None]) -> None:
    with shim.disabled():
        stop()


def half_way(call: Callable[[], object]) -> Stopping:
    """Stopped in the middle of ``call``, when half of the copies are others."""

    def run(stop: Callable[[], None]) -> None:
        thread, whole = threading.current_thread(), replacing.rebind

        def rebind(pairs: Any, since: str | None = None) -> int:
            if threading.current_thread() is not thread:
                return whole(pairs, since)
            pairs = list(pairs)
            half = len(pairs) // 2
            changed = whole(pairs[:half], since)
            stop()
            return changed + whole(pairs[half:], since)

        replacing.rebind = rebind
        try:
            call()
        finally:
            replacing.rebind = whole

    return run


def compiling(stop: Callable[[], None]) -> None:
    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        stop()
        return graph.forward

    torch.compile(lambda: silu_and_mul(x) + 1, backend=backend)()


def with_our_locks(stop: Callable[[], None]) -> None:
    def define() -> Callable[[], str]:
        stop()
        return lambda: "made"

    promises.append(later.Later(lambda: define))
    with hook._lock, hook._process.ledger._lock:
        promises[0].make()


def forked_within_a_block() -> Any:
    """In a child that was forked within a block: what is ours in it, and after it."""
    reading, writing = os.pipe()
    with shim.disabled():
        child = os.fork()
        seen = look()
    if child == 0:
        os.write(writing, json.dumps([seen, look()]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        return json.loads(stream.read())


def compiles() -> str:
    """Whether it can be compiled whole."""
    torch._dynamo.reset()
    whole = torch.compile(lambda: silu_and_mul(rmsnorm(x, weight)), fullgraph=True, backend="eager")
    return "compiled" if torch.equal(whole(), wanted) else "wrong"


def again() -> list[Any]:
    """After deactivate(), and after activate()."""
    shim.deactivate()
    return [look(), activated()]


def activated() -> list[Any]:
    shim.activate()
    return look()


def made() -> list[Any]:
    """After activate(); and what the thread that held our locks was making."""
    promises[0].make()
    return [activated(), promises[0].traced()]


def left() -> list[Any]:
    """Within a block that another thread has begun, and after it."""
    seen = look()
    open_block.__exit__(None, None, None)
    return [seen, look()]


promises: list[Any] = []
open_block = shim.disabled()
STOPPED: dict[str, tuple[Stopping, Callable[[], Any]]] = {
    # First, since until then all is paused by the block of a thread that has ended.
    "leaving": (half_way(lambda: open_block.__exit__(None, None, None)), lambda: forked(look)),
    "a thread in a block": (in_a_block, lambda: forked(lambda: [look(), compiles()])),
    "both": (in_a_block, forked_within_a_block),
    "entering": (half_way(lambda: in_a_block(lambda: None)), lambda: forked(look)),
    "deactivating": (half_way(shim.deactivate), lambda: forked(lambda: [look(), activated()])),
    "activating": (half_way(shim.activate), lambda: forked(lambda: [look(), activated()])),
    "compiling": (compiling, lambda: forked(again)),
    "our locks held": (with_our_locks, lambda: forked(made)),
}


def main() -> None:
    faulthandler.dump_traceback_later(240, exit=True)
    found: dict[str, Any] = {"patched": len(computing.replacements())}
    found["the thread that forks in a block"] = forked_within_a_block()
    thread = threading.Thread(target=open_block.__enter__)
    thread.start()
    thread.join()
    found["a block of another thread, which is left"] = forked(left)
    for doing, (stopping, call) in STOPPED.items():
        found[doing] = meanwhile(stopping, call)
    found["the parent"] = look()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
