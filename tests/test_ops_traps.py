"""Where releases and functions differ in ways that a shim falls over, one test each.

The numbers are those of the list of traps that was made from upstream's sources. 5, random numbers
drawn on the host, is in test_drawing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ops_cases
import pytest
from ops_cases import Json, Plan, World

from shim.patches import USUAL
from shim.patches.ops import FAMILIES, OPS

pytestmark = pytest.mark.early

Ask = Callable[..., Json]

OLD, NEW = World("0.6.3", packages=False), World("0.7.4", packages=False)
#: The first release with every function whose number of results depends on a flag.
FLAGS = World("0.6.13", packages=True)

#: The families whose functions the traps were found in.
TRIED = ("quantization", "norm", "activation", "rope", "page")

ALL_TRAPS = {
    OLD: "identity checks outputs devices scales aliases opinions parts_of_one_tensor inductor",
    NEW: "identity checks outputs devices scales aliases opinions parts_of_one_tensor inductor "
    "recipes whole",
    FLAGS: "results_by_flag",
}

OLD_AND_NEW = pytest.mark.parametrize("world", [OLD, NEW], ids=str)


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """What the child of a world answers to a trap; it runs once for all."""
    known: dict[World, Json] = {}

    def answer(world: World, trap: str) -> Any:
        if world not in known:
            known[world] = _run(world, ALL_TRAPS[world], tmp_path_factory.mktemp("traps"))
        return _answer(known[world], trap)

    return answer


def _run(world: World, traps: str, scratch: Path, **env: str) -> Json:
    request = {"ops": _asked(world), "traps": traps.split()}
    found: Json = ops_cases.run("ops_traps_child.py", [], request, world, scratch, env=env).json
    return found


def _asked(world: World) -> Json:
    tried = {op.name for family in TRIED for op in FAMILIES[family]}
    return {
        name: asdict(Plan(row.module, sizes=(32,), every=1, outputs=True, opcheck=()))
        for name, row in world.rows.items()
        if name in tried
    }


def _answer(answers: Json, trap: str) -> Any:
    found = answers[trap]
    if isinstance(found, dict) and "error" in found:
        pytest.fail(found["error"], pytrace=False)
    return found


@OLD_AND_NEW
def test_1_attributes_that_decorators_set_are_on_the_replacement(world: World, ask: Ask) -> None:
    assert ask(world, "identity") == {}


def test_2_functions_that_upstream_checks_take_skip_check_and_can_be_asked(ask: Ask) -> None:
    assert ask(OLD, "checks") == {}
    found = ask(NEW, "checks")
    assert "nvfp4_kv_quantize" in found
    assert all(answered == [True, True] for answered in found.values()), found


@OLD_AND_NEW
def test_3_an_output_that_is_given_comes_back_itself_from_an_op_of_its_own(
    world: World, ask: Ask
) -> None:
    found = ask(world, "outputs")
    assert {"rmsnorm", "silu_and_mul"} <= found.keys()
    for op, (same, ops) in found.items():
        assert same
        assert all(same)
        writing = op if OPS[op].every_call_counts else f"{op}_out"
        assert [name.partition(".v")[0] for name in ops] == [f"flashinfer_shim.{writing}"]


@OLD_AND_NEW
def test_4_inductor_keeps_what_ops_write_and_the_strides_they_return(
    world: World, ask: Ask
) -> None:
    found = ask(world, "inductor")
    assert found["differ"] == []
    assert found["ops"] > 0.8 * len(_asked(world))


def test_6_a_flag_that_decides_how_many_results_there_are_decides_it_compiled(ask: Ask) -> None:
    found = ask(FLAGS, "results_by_flag")
    assert found == {"nvfp4_quantize": [2, 3], "add_rmsnorm_fp4quant": [2, 3]}


@OLD_AND_NEW
def test_7_results_that_upstream_computes_on_the_host_lie_there(world: World, ask: Ask) -> None:
    found = ask(world, "devices")
    assert found == {
        "e2m1_and_ufp8sf_scale_to_float": ["cpu"],
        "mxfp4_dequantize": ["cpu"],
        "nvfp4_quantize": ["cuda"],
    }


@pytest.mark.parametrize(
    ("world", "linear"),
    [
        pytest.param(OLD, [128, 8], id="swizzled all the same"),
        pytest.param(NEW, [33, 8], id="linear"),
    ],
)
def test_8_scales_have_the_shapes_of_the_release(world: World, linear: list[int], ask: Ask) -> None:
    found = ask(world, "scales")
    # 33 rows of 96 columns, padded to 64: 128 rows of 4 scales.
    assert found["mxfp8_quantize"] == [[33, 128], [128 * 4]]
    shapes = {layout: shape for layout, (shape, _) in found["nvfp4_quantize"].items()}
    assert shapes == {"layout_128x4": [128, 8], "layout_8x4": [40, 8], "layout_linear": linear}


@OLD_AND_NEW
def test_9_queries_and_keys_that_are_parts_of_one_tensor_are_rotated_in_it(
    world: World, ask: Ask
) -> None:
    found = ask(world, "parts_of_one_tensor")
    assert found["eager"] == [[1, 1, 0], [2, 2, 1]]
    assert found["aot_eager"] == found["inductor"] == found["eager"]


@OLD_AND_NEW
def test_10_an_enum_travels_by_name_and_an_alias_is_the_same_function(
    world: World, ask: Ask
) -> None:
    layouts = {
        layout: travels for layout, (_, travels) in ask(world, "scales")["nvfp4_quantize"].items()
    }
    assert layouts == {
        "layout_128x4": "",
        "layout_8x4": "layout_8x4",
        "layout_linear": "layout_linear",
    }
    assert ask(world, "aliases") == {"defined": True, "second name": True}


def test_11_a_dataclass_none_and_a_sentinel_are_three_different_calls(ask: Ask) -> None:
    sentinel, none, recipe = ask(NEW, "recipes")
    assert (sentinel, none) == ("", "None")
    assert "e4m3_max=448" in recipe


def test_12_variables_that_choose_shapes_are_part_of_an_ops_name(ask: Ask, tmp_path: Path) -> None:
    set_otherwise = _run(NEW, "whole", tmp_path, FLASHINFER_NVFP4_4OVER6="1")
    plain, changed = ask(NEW, "whole"), _answer(set_otherwise, "whole")
    differ = {op for op in plain if plain[op] != changed[op]}
    assert "nvfp4_quantize" in differ
    assert "rmsnorm" not in differ


@pytest.mark.parametrize(
    ("world", "traps"),
    [
        pytest.param(OLD, "identity whole", id=str(OLD)),
        pytest.param(NEW, "identity whole substituted", id=str(NEW)),
    ],
)
def test_13_functions_that_upstream_wraps_for_logs_and_substitutes_are_ours_still(
    world: World, traps: str, tmp_path: Path
) -> None:
    answers = _run(
        world,
        traps,
        tmp_path,
        FLASHINFER_LOGLEVEL="1",
        FLASHINFER_LOGDEST="stderr",
        FLASHINFER_TRACE_APPLY="1",
    )
    stood_aside = {
        patch: record
        for patch, record in answers["records"].items()
        if patch in USUAL and record["verdict"] not in ("applied", "pending", "not needed")
    }
    assert stood_aside == {}
    assert _answer(answers, "identity") == {}
    for op, names in _answer(answers, "whole").items():
        assert [name.partition(".v")[0].removesuffix("_out") for name in names] == [
            f"flashinfer_shim.{op}"
        ]
    if "substituted" in traps:
        assert _answer(answers, "substituted") == {"wrapped": True, "taken back": True}
    # It needs libraries of CUDA, and is nobody's business who does not import it.
    assert answers["comm"] is False


@OLD_AND_NEW
def test_14_upstreams_own_fakes_are_wrong_and_not_asked(world: World, ask: Ask) -> None:
    assert ask(world, "opinions") == {"upstream's": [256, 1], "ours": [1, 32]}
