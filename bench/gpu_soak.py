"""Replays captured graphs for minutes, with eager calls and plans beside them, and checks the bits.

    PYTHONPATH=CHECKOUT:FLASHINFER python3 bench/gpu_soak.py [--minutes N] [--every N] [--json FILE]

One thread replays. For each of several batch sizes it has a compiled step (rmsnorm, the decode
wrapper's ``run`` on a paged cache, silu_and_mul) in a CUDA graph; before each replay it plans that
wrapper for other lengths and writes other inputs. The other threads call the same functions in
eager code, each with wrappers of its own, which it plans anew for each call. Every thread has a
stream of its own.

What FlashInfer does not allow is not done: a wrapper belongs to one thread and one stream, and is
not planned again before its last plan has reached the device, since ``plan`` writes to the host
memory that is being copied. So each thread waits for its stream before it plans.

Each ``--every``-th result is compared, bit for bit, with what FlashInfer's own functions gave for
the same plan and input before all this began; it is overwritten before it is made. Exit status: 0
if all were the same, no thread failed, and memory did not grow.
"""

from __future__ import annotations

import argparse
import itertools
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import flashinfer
import measuring
import torch

from shim.opaque.identity import original_of

DEVICE = "cuda"
HEADS, KV_HEADS, HEAD, PAGE = 16, 4, 128, 16
BATCHES = (1, 4, 16)
#: Tokens in the first sequence of a batch; the others have one more each.
LENGTHS = (7, 120, 511, 1030)
EAGER_THREADS = 2
#: Stretches of the run whose means are compared, and what memory may grow by between them (MiB).
WINDOWS, GROWTH = 6, 16.0
#: Seconds between two looks at memory.
LOOK = 1.0

Function = Callable[..., Any]


class Functions:
    """FlashInfer's functions: as everybody finds them, or its own."""

    def __init__(self, *, own: bool) -> None:
        kind = flashinfer.BatchDecodeWithPagedKVCacheWrapper
        found = [flashinfer.rmsnorm, flashinfer.silu_and_mul, kind.run]
        if own:
            found = [original_of(function) for function in found]
        if None in found:
            raise SystemExit("FlashInfer is not patched: put the checkout in front of PYTHONPATH")
        self.rmsnorm, self.silu_and_mul, self.run = found


class Decode:
    """A batch on a paged cache that holds random keys and values, and its wrapper."""

    def __init__(self, batch: int, *, captured: bool) -> None:
        self.batch = batch
        self.per_sequence = -(-(max(LENGTHS) + batch) // PAGE)
        generator = torch.Generator(DEVICE).manual_seed(batch)
        options: Any = {"dtype": torch.bfloat16, "device": DEVICE, "generator": generator}
        pages = batch * self.per_sequence
        self.pages = torch.randn(pages, 2, PAGE, KV_HEADS, HEAD, **options)
        self.weight = torch.rand(HEADS * HEAD, **options)
        self.inputs = [torch.randn(batch, HEADS * HEAD, **options) for _ in LENGTHS]
        buffers: dict[str, Any] = {}
        if captured:
            integers: Any = {"dtype": torch.int32, "device": DEVICE}
            buffers = {
                "use_cuda_graph": True,
                "paged_kv_indptr_buffer": torch.zeros(batch + 1, **integers),
                "paged_kv_indices_buffer": torch.zeros(pages, **integers),
                "paged_kv_last_page_len_buffer": torch.zeros(batch, **integers),
            }
        self.wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            torch.zeros(128 << 20, dtype=torch.uint8, device=DEVICE),
            "NHD",
            use_tensor_cores=False,
            **buffers,
        )

    def plan(self, length: int) -> None:
        """Plan for sequences of so many tokens, once the last plan is on the device."""
        torch.cuda.current_stream().synchronize()
        lengths = length + torch.arange(self.batch)
        used = -(-lengths // PAGE)
        indptr = torch.cat([torch.zeros(1, dtype=torch.int64), used.cumsum(0)]).int()
        indices = torch.cat(
            [i * self.per_sequence + torch.arange(int(n)) for i, n in enumerate(used)]
        ).int()
        self.wrapper.plan(
            indptr,
            indices.to(DEVICE),
            (lengths - (used - 1) * PAGE).int(),
            HEADS,
            KV_HEADS,
            HEAD,
            PAGE,
            q_data_type=torch.bfloat16,
            kv_data_type=torch.bfloat16,
        )

    def step(self, functions: Functions, x: torch.Tensor) -> torch.Tensor:
        """From (batch, HEADS * HEAD) to (batch, HEADS * HEAD / 2), bfloat16."""
        normed = functions.rmsnorm(x, self.weight)
        attended = functions.run(self.wrapper, normed.view(-1, HEADS, HEAD), self.pages)
        result: torch.Tensor = functions.silu_and_mul(attended.view(-1, HEADS * HEAD))
        return result

    def expected(self) -> list[torch.Tensor]:
        """By FlashInfer's own functions, one for each length."""
        own, results = Functions(own=True), []
        for length, x in zip(LENGTHS, self.inputs, strict=True):
            self.plan(length)
            results.append(self.step(own, x).clone())
        return results


class Replayed:
    """A compiled step in a CUDA graph."""

    def __init__(self, batch: int) -> None:
        self.decode = Decode(batch, captured=True)
        self.expected = self.decode.expected()
        functions, decode = Functions(own=False), self.decode

        def model(x: torch.Tensor) -> torch.Tensor:
            return decode.step(functions, x)

        step = torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
        self.x = self.decode.inputs[0].clone()
        self.decode.plan(LENGTHS[0])
        step(self.x)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result: torch.Tensor = step(self.x)

    def call(self, number: int) -> torch.Tensor:
        """Plan for the length of that number, and replay."""
        self.decode.plan(LENGTHS[number])
        self.x.copy_(self.decode.inputs[number])
        self.result.fill_(torch.nan)
        self.graph.replay()
        return self.result


class Eager:
    """The same in eager code."""

    def __init__(self, batch: int) -> None:
        self.decode = Decode(batch, captured=False)
        self.expected = self.decode.expected()
        self.functions = Functions(own=False)

    def call(self, number: int) -> torch.Tensor:
        """Plan for the length of that number, and call."""
        self.decode.plan(LENGTHS[number])
        return self.decode.step(self.functions, self.decode.inputs[number])


class Soak:
    """What the threads share.

    Attributes:
        done: calls and checks of each kind of thread.
        faults: why the run has failed.
    """

    def __init__(self, seconds: float, every: int) -> None:
        self.end, self.every = time.monotonic() + seconds, every
        self.done: Counter[str] = Counter()
        self.faults: list[str] = []
        self._lock = threading.Lock()

    def going_on(self) -> bool:
        """Whether there is time left and nothing has failed."""
        return time.monotonic() < self.end and not self.faults

    def work(self, kind: str, subjects: Sequence[Replayed | Eager]) -> None:
        """Call ``subjects`` by turns, each with all lengths; one thread's whole life."""
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with self._failing(kind), torch.inference_mode(), torch.cuda.stream(stream):
            for count in itertools.count():
                if not self.going_on():
                    break
                subject = subjects[count % len(subjects)]
                number = count // len(subjects) % len(LENGTHS)
                result = subject.call(number)
                checked = count % self.every == 0
                if checked and not torch.equal(result, subject.expected[number]):
                    self.faults.append(
                        f"{kind}, call {count}: batch {subject.decode.batch}, first length "
                        f"{LENGTHS[number]}: other bits than FlashInfer's own functions gave"
                    )
                with self._lock:
                    self.done[f"{kind} calls"] += 1
                    self.done[f"{kind} checks"] += checked

    @contextmanager
    def _failing(self, kind: str) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.faults.append(f"{kind}: {traceback.format_exc()}")


def used() -> dict[str, float]:
    """Memory (MiB) of the process on the host, of torch's allocator, and of the whole card."""
    rollup = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    private = sum(int(line.split()[1]) for line in rollup if line.startswith("Private_"))
    free, total = torch.cuda.mem_get_info()
    return {
        "host": private / 1024,
        "allocated": torch.cuda.memory_allocated() / (1 << 20),
        "card": (total - free) / (1 << 20),
        "threads": float(threading.active_count()),
        "handles": float(len(list(Path("/proc/self/fd").iterdir()))),
    }


def means(looks: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """Of each of :data:`WINDOWS` stretches of the run."""
    size = len(looks) // WINDOWS
    windows = [looks[i * size : (i + 1) * size] for i in range(WINDOWS)]
    return [{name: sum(look[name] for look in w) / size for name in w[0]} for w in windows]


def grown(windows: Sequence[dict[str, float]]) -> list[str]:
    """What grew from the second window, when all is warm, to the last."""
    early, late = windows[1], windows[-1]
    bounds = dict.fromkeys(early, GROWTH) | {"threads": 0.5, "handles": 0.5}
    return [
        f"{name} grew from {early[name]:.1f} to {late[name]:.1f}, at most {bound:g} is allowed"
        for name, bound in bounds.items()
        if late[name] - early[name] > bound
    ]


def build_kernels() -> None:
    """Call every function once: FlashInfer builds its kernels one by one, half a minute each."""

    def ones(*size: int) -> torch.Tensor:
        return torch.ones(*size, device=DEVICE, dtype=torch.bfloat16)

    calls: list[Callable[[], Any]] = [
        lambda: flashinfer.rmsnorm(ones(1, 256), ones(256)),
        lambda: flashinfer.silu_and_mul(ones(1, 256)),
        lambda: Decode(1, captured=False).plan(LENGTHS[0]),
    ]
    with ThreadPoolExecutor(len(calls)) as pool:
        for built in [pool.submit(call) for call in calls]:
            built.result()


def run(minutes: float, every: int) -> tuple[dict[str, Any], list[str]]:
    """The whole of it: the report, and what is wrong."""
    build_kernels()
    with torch.inference_mode():
        replayed = [Replayed(batch) for batch in BATCHES]
        eager = [[Eager(batch) for batch in BATCHES] for _ in range(EAGER_THREADS)]
    torch.cuda.synchronize()
    soak = Soak(minutes * 60, every)
    sides = [("replayed", replayed), *(("eager", subjects) for subjects in eager)]
    threads = [threading.Thread(target=soak.work, args=side) for side in sides]
    looks = []
    for thread in threads:
        thread.start()
    while soak.going_on():
        time.sleep(LOOK)
        looks.append(used())
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    windows = means(looks) if len(looks) >= WINDOWS else []
    report = {
        "flashinfer": flashinfer.__version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "minutes": minutes,
        "done": soak.done,
        "windows": windows,
    }
    if not windows:
        soak.faults.append(f"{len(looks)} looks at memory are too few: give it more --minutes")
    return report, [*soak.faults, *(grown(windows) if windows else [])]


def main() -> None:
    """Run, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=4.0, help="without the builds before it")
    parser.add_argument("--every", type=int, default=5, help="which results are compared")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    report, faults = run(args.minutes, args.every)
    print(", ".join(f"{count} {name}" for name, count in report["done"].items()))
    for window in report["windows"]:
        print("  ".join(f"{name} {value:,.1f}" for name, value in window.items()))
    if args.json:
        measuring.save(args.json, report | {"faults": faults})
    if faults:
        raise SystemExit("\n".join(f"missed: {fault}" for fault in faults))


if __name__ == "__main__":
    main()
