"""Child of test_soak: compiles, undoes, reloads and forks for as long as it is told to.

    python soak_child.py with|without ITERATIONS WINDOWS

``without`` does the same work with ops that are registered by hand, and activates nothing: what
torch and Python keep of it. Each result is checked.

Prints one JSON object: ``done`` tells how many iterations of each kind there were, ``windows`` the
means of memory, handles, threads and objects in each stretch of the run.
"""

from __future__ import annotations

import gc
import importlib
import json
import linecache
import os
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import computing
import torch

import shim

#: How often memory is looked at in one window.
LOOKS = 3


def by_hand() -> tuple[Any, Any]:
    """The two functions as ops of a framework's."""
    library: Any = torch.library.Library("by_hand", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("rmsnorm(Tensor x, Tensor weight) -> Tensor")
    library.impl("rmsnorm", computing.rmsnorm, "CPU")
    library.define("silu_and_mul(Tensor x) -> Tensor")
    library.impl("silu_and_mul", computing.silu_and_mul, "CPU")
    torch.library.register_fake(
        "by_hand::rmsnorm", lambda x, weight: torch.empty_like(x), lib=library
    )
    torch.library.register_fake(
        "by_hand::silu_and_mul", lambda x: x.new_empty((len(x), x.shape[1] // 2)), lib=library
    )
    _kept.append(library)
    return torch.ops.by_hand.rmsnorm, torch.ops.by_hand.silu_and_mul


_kept: list[object] = []


class Soak:
    """What is done again and again; each step checks its result and raises where it is wrong."""

    def __init__(self, *, with_us: bool) -> None:
        self.with_us = with_us
        functions = (computing.rmsnorm, computing.silu_and_mul) if with_us else by_hand()
        rmsnorm, silu_and_mul = functions
        x, weight = computing.arguments()

        def normed() -> torch.Tensor:
            result: torch.Tensor = rmsnorm(x, weight)
            return result

        def gated() -> torch.Tensor:
            result: torch.Tensor = silu_and_mul(x)
            return result

        self.models = (normed, gated)
        self.wanted = [model() for model in self.models]
        self.done: Counter[str] = Counter()

    def step(self, kind: str) -> None:
        """One iteration."""
        getattr(self, kind)()
        self.done[kind] += 1

    def compile(self) -> None:
        """A graph that Dynamo, and at times AOTAutograd, make anew."""
        torch._dynamo.reset()
        forget_graphs()
        count = self.done["compile"]
        number = count // 2 % len(self.models)
        backend = "aot_eager" if count % 4 == 0 else "eager"
        whole: Any = torch.compile(self.models[number], fullgraph=True, backend=backend)
        self.same(number, whole())

    def undo(self) -> None:
        """FlashInfer without us, and with us again."""
        if self.with_us:
            if self.done["undo"] % 2:
                with shim.disabled():
                    self.eager(ours=False)
            else:
                shim.deactivate()
                self.eager(ours=False)
                shim.activate()
        self.eager(ours=self.with_us)

    def reload(self) -> None:
        """One module is executed again, the other deleted and imported anew."""
        again, anew = computing.MODULES
        importlib.reload(sys.modules[again])
        del sys.modules[anew]
        importlib.import_module(anew)
        self.eager(ours=self.with_us)

    def fork(self) -> None:
        """A child that compiles something and ends."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                self.compile()
                status = 0
            finally:
                os._exit(status)
        if os.waitpid(child, 0)[1] != 0:
            raise AssertionError("a forked child failed")

    def eager(self, *, ours: bool) -> None:
        """Plain calls, of functions that are all ours or none."""
        if computing.ours() != [ours, ours]:
            raise AssertionError(f"{computing.ours()} are ours, expected {ours}")
        for number, model in enumerate(self.models):
            self.same(number, model())

    def same(self, number: int, result: torch.Tensor) -> None:
        """Check what a model gave, bit for bit."""
        if not torch.equal(result, self.wanted[number]):
            raise AssertionError("another result than at first")


def forget_graphs() -> None:
    """Drop what torch keeps for ever of each graph: its source, and finalizers of what it guards.

    Beside that, what somebody else keeps would hardly be seen.
    """
    vars(torch.fx.graph_module)["_loader"].eval_cache.clear()
    linecache.clearcache()
    registry: dict[Any, Any] = vars(weakref.finalize)["_registry"]
    for finalizer, told in list(registry.items()):
        owner = getattr(getattr(told.func, "func", None), "__self__", None)
        if isinstance(owner, torch._dynamo.guards.CheckFunctionManager):
            finalizer.detach()


def kind_of(iteration: int) -> str:
    """Of 100 iterations 60 compile, 20 undo, 19 reload and one forks, mixed."""
    if iteration % 100 == 98:
        return "fork"
    return ("compile", "undo", "compile", "reload", "compile")[iteration % 5]


def used() -> dict[str, float]:
    """What this process holds: memory of its own (MiB), handles, threads, objects (thousands)."""
    gc.collect()
    rollup = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    private = sum(int(line.split()[1]) for line in rollup if line.startswith("Private_"))
    return {
        "memory": private / 1024,
        "handles": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "objects": len(gc.get_objects()) / 1000,
    }


def windows(soak: Soak, iterations: int, number: int) -> Iterator[dict[str, float]]:
    """Run; the means of each window, one after the other."""
    size = iterations // number
    for first in range(0, size * number, size):
        looks = []
        for i in range(first, first + size):
            soak.step(kind_of(i))
            if (i - first + 1) % max(1, size // LOOKS) == 0:
                looks.append(used())
        yield {name: sum(look[name] for look in looks) / len(looks) for name in looks[0]}


def main(argv: Sequence[str]) -> None:
    """Run as the arguments say, and print."""
    with_us, iterations, number = argv[0] == "with", int(argv[1]), int(argv[2])
    torch.set_num_threads(1)
    soak, begun, means = Soak(with_us=with_us), time.monotonic(), []
    for mean in windows(soak, iterations, number):
        means.append(mean)
        passed = time.monotonic() - begun
        print(f"{sum(soak.done.values())} in {passed:.0f} s: {mean}", file=sys.stderr, flush=True)
    print(json.dumps({"done": soak.done, "windows": means}))


if __name__ == "__main__":
    main(sys.argv[1:])
