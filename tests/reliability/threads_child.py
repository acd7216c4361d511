"""Sixty-four threads: some import FlashInfer's modules, others call us, others compile."""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import importlib
import json
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
from child_side import Counting, fake_cuda, pretend

THREADS = 64
#: Seconds without an end that are a deadlock: all stacks are on stderr then.
PATIENCE = 240

pretend()
errors: list[str] = []
done: collections.Counter[str] = collections.Counter()


def together(*works: Callable[[random.Random], None]) -> None:
    """Have every thread do one of ``works``, all at once."""
    start = threading.Barrier(THREADS)

    def run(number: int) -> None:
        work = works[number % len(works)]
        start.wait()
        try:
            work(random.Random(number))
            done[work.__name__] += 1
        except Exception as error:
            errors.append(f"{work.__name__}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def modules() -> list[str]:
    """FlashInfer's modules that hold functions of ours, but for those that import in circles."""
    from shim.patches import PATCHES

    every = {row.module for patch in PATCHES for row in patch.contract.rows}
    return sorted(name for name in every if not name.startswith("flashinfer.comm."))


def import_all(chance: random.Random) -> None:
    # The package by itself first. It imports its modules and they import it, so where threads
    # begin at both ends CPython gives up waiting and they find it half imported, also without us.
    importlib.import_module("flashinfer")
    names = modules()
    for name in chance.sample(names, len(names)):
        # Of another release; or it wants a CUDA that is not there.
        with contextlib.suppress(ModuleNotFoundError, AssertionError):
            importlib.import_module(name)


def call_us(chance: random.Random) -> None:
    import shim

    for _ in range(20):
        chance.choice((shim.activate, shim.status))()


def call_us_and_stand_down(chance: random.Random) -> None:
    import shim

    for _ in range(2):
        chance.choice((shim.activate, shim.status, shim.deactivate))()


def compile_one(chance: random.Random) -> None:
    import flashinfer

    name = chance.choice(("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"))
    backend = Counting()
    with fake_cuda():
        x = torch.empty(chance.randint(2, 99), 256, dtype=torch.bfloat16, device="cuda")
        function = getattr(flashinfer, name)

        def layer(x: torch.Tensor) -> Any:
            return function(x) + 1

        # Dynamo counts compilations by code object, and all threads would have one.
        layer.__code__ = layer.__code__.replace(co_name=f"layer_{threading.get_ident()}")
        torch.compile(layer, fullgraph=True, backend=backend)(x)
    (ops,) = backend.ops()
    if not any(op.startswith(f"flashinfer_shim.{name}.") for op in ops):
        raise AssertionError(ops)


def compile_or_not(chance: random.Random) -> None:
    try:
        compile_one(chance)
    except torch._dynamo.exc.Unsupported:
        done["compiled as without us"] += 1


def layers(function: Any) -> int:
    """How many functions of ours stand before FlashInfer's own."""
    from shim.opaque.identity import original_of

    count = 0
    while (inner := original_of(function)) is not None:
        count, function = count + 1, inner
    return count


def in_force() -> dict[str, Any]:
    """By patch that is applied, what stands in FlashInfer's module now."""
    import shim
    from shim.replacing import resolve

    return {
        record.patch: resolve(sys.modules[module], function)
        for record in shim.status()
        if record.verdict == "applied"
        for module, function in [record.target.split(":")]
    }


def main() -> None:
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    together(import_all, call_us, import_all, compile_one)
    import flashinfer

    import shim
    from shim.opaque.identity import original_of

    first = in_force()
    targets = {record.patch: record.target.split(":") for record in shim.status()}
    originals = {patch: original_of(function) for patch, function in first.items()}
    depths = sorted({layers(function) for function in first.values()})
    together(call_us_and_stand_down, import_all, compile_or_not, call_us_and_stand_down)
    shim.deactivate()
    from shim.replacing import resolve

    kept = [
        patch
        for patch, original in originals.items()
        if resolve(sys.modules[targets[patch][0]], targets[patch][1]) is not original
    ]
    shim.activate()
    again = in_force()
    faulthandler.cancel_dump_traceback_later()
    print(
        json.dumps(
            {
                "errors": errors,
                "done": done,
                "applied": len(first),
                "again": sorted(first.keys() ^ again.keys()),
                "depths": depths,
                "depths_again": sorted({layers(function) for function in again.values()}),
                "not_put_back": kept,
                "release": flashinfer.__version__,
            }
        )
    )


if __name__ == "__main__":
    main()
