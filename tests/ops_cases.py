"""What test_ops asks of every op, and the answers.

One child without us and one with us work for each release, with and without NVIDIA's packages for
kernels written in Python. Which op is in which release is read from its contract.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import children
import pytest
import releases
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from ops_limits import LARGE, TOO_LARGE
from packaging.version import Version
from releases import IS_CORE, IS_WHOLE

from shim.contract import Row
from shim.patches import PATCHES
from shim.patches.ops import OPS

Json = dict[str, Any]

#: The batch sizes that one compiled function serves; none of the examples has another dimension of
#: the first one's size, which the compiler would take for the same.
SIZES = (200, 48, 1, 129, 32, 0, 7, 512)
#: What they may cost: one graph for all, one for 1, one for 0.
MOST_GRAPHS = 3

LAYOUTS = (
    "contiguous",
    "behind others",
    "columns of a wider one",
    "every second row",
    "every second element",
    "transposed",
)

#: Releases in which functions take other paths where those packages are installed.
WITH_PACKAGES = ("0.6.3", "0.6.13", "0.6.18.post1", "0.7.4")

#: First and last of the releases whose ``flashinfer.comm`` cannot be imported without them.
NO_COMM_WITHOUT = (Version("0.6.10"), Version("0.6.13"))

#: Releases on which ops are tried that only some other card has.
ENDS = ("0.6.13", "0.7.4")

#: One op of each family: what a cell of the matrix of versions tries, see ``cells``.
CORE = (
    *("rmsnorm", "silu_and_mul", "apply_rope_pos_ids_inplace", "append_paged_kv_cache"),
    *("mxfp8_quantize", "bmm_fp8", "trtllm_fp8_block_scale_moe", "top_p_sampling_from_probs"),
    *("top_k", "merge_state", "single_prefill_with_kv_cache", "chunk_gated_delta_rule"),
    "trtllm_allreduce_fusion",
)

#: What ``torch.library.opcheck`` checks; to compile is its longest, which other tests do as well.
OPCHECKS = (
    *("test_schema", "test_autograd_registration", "test_faketensor"),
    *["test_aot_dispatch_dynamic"] * IS_WHOLE,
)


@dataclass(frozen=True)
class Plan:
    """What is asked of one op in one world: less where its code is that of the release before.

    Where not all worlds are gone through, all is asked in the last of them that has the op, less in
    those where its code is another, and nothing in the others.

    Attributes:
        module: that defines it.
        sizes: to compile it for.
        every: how many cases to step over.
        outputs: whether to compile it with outputs given too.
        opcheck: what torch is to check of it, on the first release that has it and on the last.
    """

    module: str
    sizes: tuple[int, ...]
    every: int
    outputs: bool
    opcheck: tuple[str, ...]


@dataclass(frozen=True)
class World:
    """One release, with or without NVIDIA's packages for kernels written in Python, on one card."""

    release: str
    packages: bool
    arch: str = "10.0a"

    def __str__(self) -> str:
        told = "" if self.arch == World.arch else f"+sm{self.arch}"
        return f"{self.release}{'+cute' if self.packages else ''}{told}"

    @functools.cached_property
    def ops(self) -> Mapping[str, Plan]:
        """The functions' ops that the release has, and what is asked of each."""
        rows = self.rows
        if IS_CORE:
            rows = {name: row for name, row in rows.items() if name in CORE}
        plans = {name: self._plan(name, row) for name, row in rows.items()}
        return {name: plan for name, plan in plans.items() if plan}

    @functools.cached_property
    def rows(self) -> Mapping[str, Row]:
        """What is known of the functions' ops that the release has."""
        rows = {
            name: _row(name, self.release)
            for name, op in OPS.items()
            if (op.arch or "10.0") == self.arch.rstrip("af") and not op.owner
        }
        found = {name: row for name, row in rows.items() if row is not None}
        if not self.packages:
            found = {n: row for n, row in found.items() if not self._needs_packages(n, row.module)}
        return found

    def _plan(self, op: str, row: Row) -> Plan | None:
        tried = [
            w.release
            for w in WORLDS
            if (w.packages, w.arch) == (self.packages, self.arch) and _row(op, w.release)
        ]
        place, last = tried.index(self.release), len(tried) - 1
        if IS_WHOLE:
            full = place == 0 or _row(op, tried[place - 1]) != row
        else:
            full = place == last and not IS_CORE
            if not full and not IS_CORE and _row(op, tried[place + 1]) == row:
                return None  # it is tried there
        return Plan(
            module=row.module,
            sizes=SIZES if full and IS_WHOLE else SIZES[1:4],
            every=1 if full else 3,
            outputs=full,
            opcheck=OPCHECKS
            if op not in TOO_LARGE
            and (IS_WHOLE or (full and op not in LARGE))
            and place in (0, last)
            and (not self.packages or self._needs_packages(op, row.module))
            else (),
        )

    def _needs_packages(self, op: str, module: str) -> bool:
        """Whether a package of NVIDIA's has to be there for a call, or its module's import."""
        first, last = NO_COMM_WITHOUT
        if module.startswith("flashinfer.comm.") and first <= Version(self.release) <= last:
            return True
        return bool({"cutlass", "cuda.tile"} & {*OPS[op].requires}) or module.startswith(
            "flashinfer.cute_dsl."
        )


#: Of declared ops.
CONTRACTS = {patch.name: patch.contract for patch in PATCHES if patch.name in OPS}


def _row(op: str, release: str) -> Row | None:
    version = Version(release)
    return CONTRACTS[op].row_for(version)


_WHOLE = (
    *(World(release, packages=False) for release in releases.RELEASES),
    *(World(release, packages=True) for release in WITH_PACKAGES),
    *(World(release, packages=False, arch=arch) for release in ENDS for arch in ("9.0a", "12.0f")),
    *(World(release, packages=True, arch="12.0f") for release in WITH_PACKAGES[-2:]),
    World("0.7.4", packages=False, arch="11.0a"),
    World(WITH_PACKAGES[-1], packages=True, arch="9.0a"),
    World(WITH_PACKAGES[-1], packages=True, arch="10.7a"),
)
#: The ends of the table, and what differs most between them.
_ONE_RUN = ("0.5.0", "0.6.3", "0.6.18.post1+cute", "0.7.4", "0.7.4+sm9.0a")
WORLDS = tuple(
    world
    for world in _WHOLE
    if IS_WHOLE
    or (IS_CORE and str(world) in releases.RELEASES)
    or (not IS_CORE and str(world) in _ONE_RUN)
)


def case(
    m: int,
    *layouts: str,
    dtype: str = "bfloat16",
    rank: str = "as it is",
    out: str | None = None,
    outs: int = 9,
) -> Json:
    """One variation of an example; ``ops_making`` says what it means."""
    return {
        "m": m,
        "dtype": dtype,
        "rank": rank,
        "layouts": layouts or LAYOUTS[:1],
        "out": out,
        "outs": outs,
    }


@functools.cache
def cases() -> list[Json]:
    """The variations: the plain ones in a grid, and what hypothesis mixes, the same every time."""
    grid = [case(m, layout) for m in (0, 1, 129) for layout in LAYOUTS]
    grid += [case(32), case(32, out=LAYOUTS[0]), case(1, out=LAYOUTS[0])]
    mixed: list[Json] = []

    @settings(derandomize=True, database=None, max_examples=12, phases=[Phase.generate])
    @given(
        st.integers(0, 300),
        st.lists(st.sampled_from(LAYOUTS), min_size=2, max_size=6),
        st.sampled_from(("bfloat16", "float16", "float32")),
        st.sampled_from(("as it is", "batched", "flat")),
        st.sampled_from((None, *LAYOUTS)),
        st.integers(1, 2),
    )
    def mix(m: int, layouts: list[str], dtype: str, rank: str, out: str | None, outs: int) -> None:
        mixed.append(case(m, *layouts, dtype=dtype, rank=rank, out=out, outs=outs))

    mix()
    return grid + mixed


def answers(world: World, shared: Path, *, shim: bool) -> Json:
    """What the child of one side said. It runs once for all tests of a process."""
    found = _answers(world, shared, shim)
    if isinstance(found, str):
        pytest.fail(found, pytrace=False)
    return found


@functools.cache
def _answers(world: World, shared: Path, shim: bool) -> Json | str:
    """The answers, or what a child said that failed."""
    plans = {name: asdict(plan) for name, plan in world.ops.items()}
    side = "with" if shim else "without"
    request = {"ops": plans, "cases": cases()}
    child = run("ops_child.py", [side], request, world, shared / f"{world}-{side}", shim=shim)
    if child.returncode != 0:
        return str(child)
    answered: Json = child.json
    return answered


def run(
    script: str,
    args: Sequence[str],
    request: Json,
    world: World,
    scratch: Path,
    *,
    shim: bool = True,
    env: Mapping[str, str] | None = None,
) -> children.Child:
    """Run a script of the tests in a world; the request is its last argument."""
    scratch.mkdir(exist_ok=True)
    file = scratch / "request.json"
    file.write_text(json.dumps(request))
    entries = [releases.ROOT] * shim + [releases.path(world.release)]
    if world.packages:
        entries += releases.cuda_packages()
    variables = {
        "PYTHONPATH": os.pathsep.join(map(str, entries)),
        "FLASHINFER_CUDA_ARCH_LIST": world.arch,
    }
    if world.packages and world.arch != World.arch:
        # CuTe DSL asks the card itself, and some of upstream's kernels ask CuTe DSL.
        variables["CUTE_DSL_ARCH"] = f"sm_{world.arch.replace('.', '')}"
    return children.run_child(
        None,
        scratch=scratch,
        env={**variables, **(env or {})},
        args=[Path(__file__).with_name(script), *args, file],
        timeout=600,
    )
