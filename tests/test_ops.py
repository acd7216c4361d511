"""Every declared op, on every release that has it, without and with CuTe DSL and cuTile.

An op gets these tests by its entry in ``shim/patches/ops`` alone. FlashInfer without us is the
judge: it fails under the compiler, and with kernels that do nothing its own Python tells what a
call returns. The children work through all ops of a release at once; a test looks at one answer.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ops_cases
import pytest
from ops_cases import MOST_GRAPHS, WORLDS, Json, World
from ops_limits import LATE, LIMITS

from shim.patches.ops import OPS

pytestmark = [pytest.mark.core, pytest.mark.early]

EVERY_OP = pytest.mark.parametrize(
    ("world", "op"),
    [pytest.param(world, op, id=f"{world}-{op}") for world in WORLDS for op in world.ops],
)

#: The case that is the example itself.
PLAIN = ops_cases.case(32)

#: What returns memory that no kernel writes, beside what it is called for: opcheck cannot tell.
UNWRITTEN = frozenset({"cutlass_fused_moe"})

#: What torch says where it cannot compute with a format, as opcheck must to compare.
_CANNOT = re.compile("not implemented for '(Float8|Float4)")

#: What Dynamo raises where it cannot go on: versions of torch differ in which.
REFUSALS = ("Unsupported", "UserError", "TorchRuntimeError")

#: A refused view is a RuntimeError of a tensor with data and a ValueError of one without.
REFUSED_VIEWS = ("view size is not compatible", "Cannot view a tensor")


@pytest.fixture(autouse=True)
def within_limits(request: pytest.FixtureRequest) -> None:
    """Let fail what cannot be told here; ``ops_limits`` says why."""
    op = request.node.callspec.params.get("op")
    why = LIMITS.get((request.node.originalname, op))
    if why:
        request.node.add_marker(pytest.mark.xfail(reason=why, strict=False))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the children, which run once for all tests of their world."""
    return tmp_path_factory.mktemp("ops")


def without_us(world: World, op: str, shared: Path) -> Json:
    found: Json = ops_cases.answers(world, shared, shim=False)[op]
    return found


def with_us(world: World, op: str, shared: Path) -> Json:
    found: Json = ops_cases.answers(world, shared, shim=True)["ops"][op]
    return found


def skip_what_a_kernel_returns(world: World, op: str, shared: Path) -> None:
    """Where upstream's Python passes on what a kernel returns, nobody here knows what it is."""
    if _real(world, op, without_us(world, op, shared)).get("type") == "Made":
        pytest.skip("its result is made by the kernel")


def cases_of(world: World, op: str) -> list[Json]:
    return ops_cases.cases()[:: world.ops[op].every]


def judged(outcome: Json, *, device: bool = False) -> Any:
    """What two outcomes must agree on: error types, or all that tells where elements lie.

    Strides of dimensions without a second element tell nothing, and torch itself sets them
    otherwise without data. The device is told where both have one.
    """
    if "error" in outcome:
        refused = outcome["text"].startswith(REFUSED_VIEWS)
        return "a refused view" if refused else outcome["error"]
    tensors = []
    for tensor in outcome["tensors"]:
        size, stride = tensor["size"], tensor["stride"]
        told = {} if 0 in size else {i: stride[i] for i, n in enumerate(size) if n > 1}
        same = ("size", "offset", "dtype", "shares", *(["device"] if device else []))
        tensors.append({**{name: tensor[name] for name in same}, "strides": told})
    return [outcome["type"], tensors]


@EVERY_OP
def test_it_fails_without_us(world: World, op: str, shared: Path) -> None:
    error = without_us(world, op, shared)["premise"]
    assert error is not None, "the compiler takes it as it is"
    assert error[0] in REFUSALS, error


@EVERY_OP
def test_a_capture_takes_a_call_that_ran_and_refuses_one_that_would_load(
    world: World, op: str, shared: Path
) -> None:
    if OPS[op].draws is not None:
        pytest.skip("no capture takes a call that moves on a generator")
    skip_what_a_kernel_returns(world, op, shared)
    captured = with_us(world, op, shared)["captured"]
    if "not run" in captured:
        pytest.skip(f"it does not run here: {captured['not run']}")
    assert captured["again"] is None, captured
    refused = captured["first"] and "inside a CUDA graph capture" in captured["first"][1]
    assert bool(refused) == bool(captured["kernels"]), captured


@EVERY_OP
def test_its_example_is_a_valid_call(world: World, op: str, shared: Path) -> None:
    found = _real(world, op, without_us(world, op, shared))
    assert "error" not in found, found


def _real(world: World, op: str, upstream: Json) -> Json:
    """Upstream's own outcome of the example, with data."""
    found: Json = upstream["real"][cases_of(world, op).index(PLAIN)]
    return found


@EVERY_OP
def test_it_compiles_whole_in_three_graphs_of_nothing_else(
    world: World, op: str, shared: Path
) -> None:
    answer = with_us(world, op, shared)
    assert answer["is ours"]
    for compiled in answer["compiled"]:
        into_outputs = compiled["outputs given"] and not OPS[op].every_call_counts
        graphs, name = compiled["graphs"], f"{op}_out" if into_outputs else op
        assert 1 <= len(graphs) <= MOST_GRAPHS, [graphs, compiled["outcomes"]]
        for calls in graphs:
            # A number that is symbolic, and the tensors of a list, are torch's own doing; into the
            # outputs of an op whose calls all count its results are copied.
            apart = ("_operator.getitem", ".item", "aten.copy_")
            ours = [call for call in calls if call not in apart]
            assert ours == [f"flashinfer_shim.{name}"]


@EVERY_OP
def test_compiled_it_returns_what_upstream_does(world: World, op: str, shared: Path) -> None:
    skip_what_a_kernel_returns(world, op, shared)
    expected = without_us(world, op, shared)["of the sizes"]
    plain, *given = with_us(world, op, shared)["compiled"]
    sizes = world.ops[op].sizes
    for m, upstream, ours in zip(sizes, expected, plain["outcomes"], strict=True):
        if "error" in upstream:
            assert "error" in ours or _raises_when_run(op), m
        else:
            assert judged(ours) == judged(upstream), [m, ours]
    for compiled in given:
        for m, upstream, ours in zip(sizes, expected, compiled["outcomes"], strict=False):
            assert "error" in upstream or "error" not in ours, [m, ours]


@EVERY_OP
def test_its_fake_is_what_upstream_returns(world: World, op: str, shared: Path) -> None:
    skip_what_a_kernel_returns(world, op, shared)
    upstream, ours = without_us(world, op, shared), with_us(world, op, shared)
    differ = []
    for case, real, without_data, fake in zip(
        cases_of(world, op), upstream["real"], upstream["without data"], ours["fake"], strict=True
    ):
        if "error" in real and "error" not in fake:
            # Some steps of upstream's are refused with data alone, such as the greatest of nothing.
            agrees = _raises_when_run(op) or "error" not in without_data
        else:
            agrees = judged(fake) == judged(real)
        if without_data is not None and "error" not in {**without_data, **fake}:
            agrees = agrees and judged(fake, device=True) == judged(without_data, device=True)
        if not agrees:
            differ.append([case, real, without_data, fake])
    assert differ == []


def _raises_when_run(op: str) -> bool:
    """Whether upstream's Python is not asked while tracing: nothing is returned, or a rule says it.

    Then the graph raises what it raises, which the next test sees. So it does where some of that
    Python is not asked.
    """
    return OPS[op].returns == "()" or OPS[op].fake is not None or op in LATE


@EVERY_OP
def test_run_it_is_upstream(world: World, op: str, shared: Path) -> None:
    skip_what_a_kernel_returns(world, op, shared)
    expected = without_us(world, op, shared)["real"]
    found = with_us(world, op, shared)["run"]
    differ = [
        [*each]
        for each in zip(cases_of(world, op), expected, found, strict=True)
        if each[1] != each[2]
    ]
    assert differ == []


@EVERY_OP
def test_real_and_traced_calls_do_not_disturb_each_other(
    world: World, op: str, shared: Path
) -> None:
    skip_what_a_kernel_returns(world, op, shared)
    turns = with_us(world, op, shared)["in turn"]
    assert "error" not in turns, turns["error"]
    for turn, traced in zip(turns, (True, False, True), strict=True):
        assert turn["fake"] == [traced] * len(turn["tensors"])
        assert (turn["kernels"] == 0) == traced, turn
    expected = judged(_real(world, op, without_us(world, op, shared)))
    assert [judged(turn) for turn in turns] == [expected] * 3


@EVERY_OP
def test_what_it_writes_into_is_seen_by_compiler_and_caller(
    world: World, op: str, shared: Path
) -> None:
    skip_what_a_kernel_returns(world, op, shared)
    answer = with_us(world, op, shared)
    found = answer["mutation"]
    if found is None:
        assert not answer["always written"]
        return
    assert "error" not in found, found["error"]
    assert all(found["written"]), "the kernel was not told to write"
    assert found["later nodes"]
    assert found["caller"]
    # An op whose calls all count writes into nothing: its outputs are copied.
    assert len(found["functionalized"]) == (not OPS[op].every_call_counts)


@pytest.mark.parametrize(
    ("world", "op"),
    [
        pytest.param(world, op, id=f"{world}-{op}")
        for world in WORLDS
        for op, plan in world.ops.items()
        if plan.opcheck
    ],
)
def test_opcheck_passes(world: World, op: str, shared: Path) -> None:
    skip_what_a_kernel_returns(world, op, shared)
    unwritten = {"test_aot_dispatch_dynamic"} if op in UNWRITTEN else set()
    for found in with_us(world, op, shared)["opcheck"]:
        told = {test: why for test, why in found.items() if test not in unwritten}
        failed = {test: why for test, why in told.items() if why and not _CANNOT.search(why)}
        assert failed == {}


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_nothing_is_left_behind(world: World, shared: Path) -> None:
    left = ops_cases.answers(world, shared, shim=True)["left behind"]
    assert left == {"kept": [], "filled": []}
