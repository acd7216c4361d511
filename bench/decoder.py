"""A small Llama-style decoder whose every operation that FlashInfer offers is FlashInfer's.

    PYTHONPATH=CHECKOUT:FLASHINFER python3 bench/decoder.py [--save FILE]

bench/plots.py draws what runs have saved.

It decodes several prompts four ways: in eager code; each layer compiled with fullgraph=True by the
backends eager and inductor; and each compiled layer captured in a CUDA graph, which is replayed
with the attention planned anew between steps. The tokens, greedy and sampled with equal seeds, must
be the same all four ways. Exit status: 0 if they are. Without the shim the first call of FlashInfer
ends the second way.

Weights are random: the tokens mean nothing, the shapes are those of a 1B model with four layers.
Products in bf16 are torch's (FlashInfer has no bf16 kernel for compute capability 9.0), the
feed-forward's first one is FlashInfer's FP8 product.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import flashinfer
import torch

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, INTERMEDIATE = 4, 2048, 16, 4, 128, 5632
VOCABULARY, PAGE, LONGEST = 32000, 16, 8
DECODED = 64
BATCHES = (1, 4, 16, 64)
WAYS = ("eager", "fullgraph, backend eager", "fullgraph, inductor", "CUDA graph per layer")
FP8 = torch.float8_e4m3fn

Step = Callable[..., Any]


class Cache:
    """Pages of keys and values for a batch whose sequences all have the same length."""

    def __init__(self, batch: int) -> None:
        device = "cuda"
        self.batch, self.length = batch, 0
        self.per_sequence = -(-(LONGEST + DECODED) // PAGE)
        pages = batch * self.per_sequence
        self.layers = [
            torch.zeros(pages, 2, PAGE, KV_HEADS, HEAD, dtype=torch.bfloat16, device=device)
            for _ in range(LAYERS)
        ]
        # Graphs read these at fixed addresses, so a step writes into them.
        self.indptr = torch.zeros(batch + 1, dtype=torch.int32, device=device)
        self.indices = torch.zeros(pages, dtype=torch.int32, device=device)
        self.last_page = torch.ones(batch, dtype=torch.int32, device=device)
        self.rows = torch.arange(batch, dtype=torch.int32, device=device)
        self.positions = torch.zeros(batch, dtype=torch.int32, device=device)
        self.wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            torch.zeros(128 << 20, dtype=torch.uint8, device=device),
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=False,
            paged_kv_indptr_buffer=torch.zeros_like(self.indptr),
            paged_kv_indices_buffer=torch.zeros_like(self.indices),
            paged_kv_last_page_len_buffer=torch.zeros_like(self.last_page),
        )

    def extend(self) -> None:
        """Make room for one token in each sequence, and plan the attention anew."""
        self.length += 1
        used = -(-self.length // PAGE)
        first = torch.arange(self.batch, dtype=torch.int32) * self.per_sequence
        indices = (first[:, None] + torch.arange(used, dtype=torch.int32)).flatten()
        indptr = torch.arange(self.batch + 1, dtype=torch.int32) * used
        last_page = torch.full((self.batch,), self.length - (used - 1) * PAGE, dtype=torch.int32)
        self.indptr.copy_(indptr)
        self.indices[: len(indices)].copy_(indices)
        self.last_page.copy_(last_page)
        self.positions.fill_(self.length - 1)
        self.wrapper.plan(
            indptr,
            indices.cuda(),
            last_page,
            HEADS,
            KV_HEADS,
            HEAD,
            PAGE,
            q_data_type=torch.bfloat16,
            kv_data_type=torch.bfloat16,
        )


class Layer(torch.nn.Module):
    """One layer: attention on the paged cache, and a gated feed-forward."""

    def __init__(self, rope: torch.Tensor, *, first: bool) -> None:
        super().__init__()
        self.first, self.rope = first, rope
        self.norms = torch.nn.ParameterList([weight(HIDDEN, scale=0.1, about=1) for _ in "ab"])
        self.qkv = weight(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD)
        self.out = weight(HEADS * HEAD, HIDDEN)
        # The product wants its second factor column-major.
        self.gate_up = torch.nn.Parameter(
            weight(2 * INTERMEDIATE, HIDDEN).mul(8).to(FP8)[None].transpose(-2, -1),
            requires_grad=False,
        )
        self.down = weight(INTERMEDIATE, HIDDEN)
        self.scales = torch.nn.ParameterList(
            [torch.full((1,), value, device="cuda") for value in (1.0, 1 / 8)]
        ).requires_grad_(False)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, cache: Cache, pages: torch.Tensor
    ) -> torch.Tensor:
        """The next ``x`` (batch, hidden); ``residual`` is added to in place."""
        if self.first:
            x = flashinfer.rmsnorm(x, self.norms[0])
        else:
            flashinfer.fused_add_rmsnorm(x, residual, self.norms[0])
        projected: Any = x @ self.qkv
        q, k, v = projected.split([HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD], dim=-1)
        flashinfer.apply_rope_with_cos_sin_cache_inplace(cache.positions, q, k, HEAD, self.rope)
        flashinfer.append_paged_kv_cache(
            k.reshape(-1, KV_HEADS, HEAD),
            v.reshape(-1, KV_HEADS, HEAD),
            cache.rows,
            cache.positions,
            pages,
            cache.indices,
            cache.indptr,
            cache.last_page,
        )
        attended = cache.wrapper.run(q.reshape(-1, HEADS, HEAD), pages)
        x = attended.reshape(-1, HEADS * HEAD) @ self.out
        flashinfer.fused_add_rmsnorm(x, residual, self.norms[1])
        gated = flashinfer.bmm_fp8(
            x.clamp(-448, 448).to(FP8)[None],
            self.gate_up,
            self.scales[0],
            self.scales[1],
            torch.bfloat16,
        )
        result: torch.Tensor = flashinfer.silu_and_mul(gated[0]) @ self.down
        return result


class Head(torch.nn.Module):
    """The last norm and the probabilities of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = weight(HIDDEN, scale=0.1, about=1)
        self.vocabulary = weight(HIDDEN, VOCABULARY)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """(batch, vocabulary), float32."""
        flashinfer.fused_add_rmsnorm(x, residual, self.norm)
        result: torch.Tensor = flashinfer.softmax((x @ self.vocabulary).float())
        return result


def weight(*size: int, scale: float | None = None, about: float = 0) -> torch.nn.Parameter:
    drawn = torch.randn(*size, device="cuda") * (size[0] ** -0.5 if scale is None else scale)
    return torch.nn.Parameter((drawn + about).bfloat16(), requires_grad=False)


def rope_table() -> torch.Tensor:
    """Cosines, then sines, of every position: (positions, head), float32."""
    frequencies = 10000.0 ** (-torch.arange(0, HEAD, 2, device="cuda") / HEAD)
    angles = torch.arange(LONGEST + DECODED, device="cuda")[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def greedy(probs: torch.Tensor) -> torch.Tensor:
    return probs.argmax(dim=-1)


def sampled(probs: torch.Tensor) -> torch.Tensor:
    tokens: torch.Tensor = flashinfer.top_p_sampling_from_probs(probs, 0.9)
    return tokens


class Model:
    """The layers as they are, and as each way of running them has them."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        rope = rope_table()
        self.embedding = weight(VOCABULARY, HIDDEN, scale=1)
        self.layers = [Layer(rope, first=number == 0) for number in range(LAYERS)]
        self.head = Head()

    def steps(self, way: str, choose: Step, cache: Cache) -> tuple[list[Step], Step, Step]:
        """The layers, the head and the choice of a token, ready to be called."""
        if way == "eager":
            return list(self.layers), self.head, choose
        torch._dynamo.reset()
        backend = "inductor" if way == "fullgraph, inductor" else "eager"

        def compiled(function: Step) -> Step:
            made: Step = torch.compile(function, fullgraph=True, backend=backend, dynamic=False)
            return made

        layers, head = [compiled(layer) for layer in self.layers], compiled(self.head)
        if way == "CUDA graph per layer":
            pages = cache.layers
            layers = [Captured(layers[i], cache, pages[i]) for i in range(LAYERS)]
            head = Captured(head)
        return layers, head, compiled(choose)


class Captured:
    """A step as a CUDA graph: its tensors' addresses stay, what they hold changes."""

    def __init__(self, step: Step, *rest: Any) -> None:
        self.step, self.rest = step, rest
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: torch.Tensor

    def __call__(self, x: torch.Tensor, residual: torch.Tensor, *_: Any) -> torch.Tensor:
        if self.graph is None:
            self._capture(x, residual)
        assert self.graph is not None
        self.x.copy_(x)
        self.residual.copy_(residual)
        self.graph.replay()
        residual.copy_(self.residual)
        return self.result

    def _capture(self, x: torch.Tensor, residual: torch.Tensor) -> None:
        # Compiled, and every kernel loaded, before anything is recorded. What the step writes into
        # the cache meanwhile is what it will write there when it is replayed.
        self.step(x.clone(), residual.clone(), *self.rest)
        self.x, self.residual = x.clone(), residual.clone()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = self.step(self.x, self.residual, *self.rest)


def decode(model: Model, way: str, choose: Step, prompts: torch.Tensor, timed: bool) -> Any:
    """Decode; the tokens (batch, DECODED), or tokens per second where ``timed``."""
    batch = len(prompts)
    cache = Cache(batch)
    layers, head, pick = model.steps(way, choose, cache)

    def run() -> tuple[torch.Tensor, float]:
        cache.length = 0
        torch.manual_seed(1)
        token, taken, start = prompts[:, 0], [], 0.0
        for position in range(LONGEST + DECODED - 1):
            if position == LONGEST - 1:
                torch.cuda.synchronize()
                start = time.perf_counter()
            cache.extend()
            x = torch.nn.functional.embedding(token, model.embedding)
            residual = x.clone()
            for layer, pages in zip(layers, cache.layers, strict=True):
                x = layer(x, residual, cache, pages)
            probs = head(x, residual)
            if position + 1 < LONGEST:
                token = prompts[:, position + 1]
            else:
                token = pick(probs).long()
                taken.append(token)
        torch.cuda.synchronize()
        return torch.stack(taken, dim=1), time.perf_counter() - start

    tokens, _ = run()
    if not timed:
        return tokens
    seconds = min(run()[1] for _ in range(3))
    return batch * DECODED / seconds


def build_kernels() -> None:
    """Call every function once: FlashInfer builds its kernels one by one, half a minute each."""

    def tensor(*size: int) -> torch.Tensor:
        return torch.ones(*size, device="cuda").bfloat16()

    cache, page = Cache(1), tensor(1, 2, PAGE, KV_HEADS, HEAD)
    rows = torch.zeros(1, dtype=torch.int32, device="cuda")
    ends = torch.tensor([0, 1], dtype=torch.int32, device="cuda")
    fp8, one = tensor(1, 256, 256).to(FP8), torch.ones(1, device="cuda")
    heads, probs = tensor(1, KV_HEADS, HEAD), torch.ones(1, 8, device="cuda")
    calls: list[Callable[[], Any]] = [
        lambda: flashinfer.rmsnorm(tensor(1, HIDDEN), tensor(HIDDEN)),
        lambda: flashinfer.apply_rope_with_cos_sin_cache_inplace(
            rows, tensor(1, HEAD), tensor(1, HEAD), HEAD, rope_table()
        ),
        lambda: flashinfer.append_paged_kv_cache(
            heads, heads, rows, rows, page, rows, ends, rows + 1
        ),
        cache.extend,
        lambda: flashinfer.bmm_fp8(fp8, fp8.mT, one, one, torch.bfloat16),
        lambda: flashinfer.silu_and_mul(tensor(1, HIDDEN)),
        lambda: flashinfer.top_p_sampling_from_probs(flashinfer.softmax(probs), 0.9),
    ]
    with ThreadPoolExecutor(len(calls)) as pool:
        for built in [pool.submit(call) for call in calls]:
            built.result()


def measure(batches: Sequence[int], save: Callable[[Any], None]) -> dict[str, Any]:
    """The report, which is handed to ``save`` whenever there is more of it."""
    build_kernels()
    model = Model()
    torch.manual_seed(2)
    prompts = torch.randint(VOCABULARY, (max(4, *batches), LONGEST), device="cuda")
    same: dict[str, dict[str, bool]] = {}
    for choose in (greedy, sampled):
        expected = decode(model, "eager", choose, prompts[:4], timed=False)
        found = {
            way: torch.equal(expected, decode(model, way, choose, prompts[:4], timed=False))
            for way in WAYS
        }
        same[choose.__name__] = found
        print(f"same tokens, {choose.__name__}: {found}", flush=True)
    speed: dict[str, dict[str, float]] = {way: {} for way in WAYS}
    report = {
        "date": datetime.date.today().isoformat(),
        "flashinfer": flashinfer.__version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "same tokens": same,
        "tokens per second": speed,
    }
    for batch in batches:
        for way in WAYS:
            rate = decode(model, way, sampled, prompts[:batch], timed=True)
            speed[way][str(batch)] = round(rate, 1)
            print(f"batch {batch}, {way}: {rate:.0f} tokens/s", flush=True)
        save(report)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", metavar="FILE")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--build", action="store_true", help="build the kernels, nothing else")
    options = parser.parse_args()
    if options.build:
        build_kernels()
        return 0

    def save(report: Any) -> None:
        if options.save:
            Path(options.save).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    report = measure(options.batches, save)
    return 0 if all(all(found.values()) for found in report["same tokens"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
