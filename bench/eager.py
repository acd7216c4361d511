"""What a call in eager code costs: the original, ours, and what others make of the same function.

    PYTHONPATH=CHECKOUT:FLASHINFER python3 bench/eager.py [--gpu] [--rounds N] [--json FILE]

FlashInfer's rmsnorm and silu_and_mul, on the CPU with kernels that do nothing, or with ``--gpu`` as
they are. What is timed is the caller's thread: a kernel is launched and not waited for. Beside
them stand the floors: a Python call, and a call through torch's dispatcher, of nothing.
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

import measuring
import sides
import torch
from names import ADDED, BY_HAND, CUSTOM_OP, ORIGINAL, OURS
from sides import Written

#: Calls in a row. The launches of so many are far from filling the card's queue.
CALLS = 100


def nanoseconds(written: Written, device: str, rounds: int) -> dict[str, list[float]]:
    """Of one call, by side."""
    calls = {
        ORIGINAL: written.original,
        OURS: written.ours,
        BY_HAND: written.by_hand(device),
        CUSTOM_OP: written.by_custom_op(),
        **sides.bare(written, device),
    }
    example = written.example(device)
    # On the CPU, whatever else runs there takes none of this; on a GPU a call may wait for it.
    clock = time.perf_counter_ns if device == "cuda" else time.thread_time_ns

    def once(name: str) -> float:
        call = calls[name]
        if device == "cuda":
            torch.cuda.synchronize()
        begun = clock()
        for _ in itertools.repeat(None, CALLS):
            call(*example)
        return (clock() - begun) / CALLS

    return measuring.in_turn(list(calls), once, rounds)


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpu", action="store_true", help="on a GPU, with FlashInfer's kernels")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    device = "cuda" if args.gpu else "cpu"
    if not args.gpu:
        torch.set_num_threads(1)
        sides.without_kernels()
    result: dict[str, Any] = measuring.machine(device)
    with torch.inference_mode():
        for written in (sides.RMSNORM, sides.SILU_AND_MUL):
            values = nanoseconds(written, device, args.rounds)
            found = measuring.told(values)
            measuring.show(f"eager call of {written.name}", "ns", found, ORIGINAL)
            added = measuring.added(values[OURS], values[ORIGINAL])
            print(
                "  ours adds {median:+.0f} ns, 95 % sure of {low:+.0f} to {high:+.0f}".format(
                    **added
                )
            )
            result[written.name] = {"nanoseconds": found, ADDED: added}
    if args.json:
        measuring.save(args.json, result)


if __name__ == "__main__":
    main()
