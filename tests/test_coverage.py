"""``coverage``: every public function of a real release, and what is said of it."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import children
import pytest
from check_command import check
from children import Child
from conftest import CopyRelease, RunChild
from releases import IS_WHOLE, ROOT, cuda_packages, path

from shim.cli.coverage_rules import apart, family
from shim.cli.coverage_sources import Definition
from shim.patches import ops

PASSED_ON = [each for passed in ops.PASSED_ON.values() for each in passed]

STATUSES = ("covered", "traces", "not_covered", "not_in_forward")
DOCUMENT = ROOT / "docs" / "coverage.md"
TYPES = {"string": str, "integer": int, "null": type(None), "list": list, "object": dict}


def ask(run_child: Callable[..., Child], *arguments: str, **options: Any) -> dict[str, Any]:
    """What ``coverage --json`` says; ``options`` are ``run_child``'s."""
    child = run_child(None, args=["-m", "shim", "coverage", "--json", *arguments], **options)
    assert (child.returncode, child.stderr) == (0, ""), child
    report: dict[str, Any] = json.loads(child.stdout)
    return report


def tell(run_child: RunChild, *arguments: str, stderr: str = "", **options: Any) -> Child:
    """The text that ``coverage`` prints at 80 columns, where it says no more than ``stderr``."""
    env = {"COLUMNS": "80", **options.pop("env", {})}
    child = run_child(None, args=["-m", "shim", "coverage", *arguments], env=env, **options)
    assert (child.returncode, child.stderr) == (0, stderr), child
    return child


def statuses(report: dict[str, Any]) -> dict[str, str]:
    """By ``module:name``, the status of each function."""
    return {function["defined"]: function["status"] for function in report["functions"]}


def by_name(report: dict[str, Any], name: str) -> dict[str, Any]:
    """The one function of that name."""
    [function] = [each for each in report["functions"] if each["name"] == name]
    found: dict[str, Any] = function
    return found


# What every release shows


def test_the_list_of_a_release_agrees_with_itself_and_with_check(
    each_release: str, run_child: RunChild
) -> None:
    report = ask(run_child, release=each_release)
    functions = report["functions"]
    assert len(statuses(report)) == len(functions), "a function is listed twice"

    counted = Counter(function["status"] for function in functions)
    assert report["totals"] == {
        "functions": len(functions),
        **{status: counted[status] for status in STATUSES},
    }
    assert set(counted) <= set(STATUSES)
    for key, total in report["totals"].items():
        assert sum(each[key] for each in report["families"].values()) == total

    for function in functions:
        explained = function["status"] in ("not_covered", "not_in_forward")
        assert bool(function["reason"]) == explained, function
        assert (function["patch"] is None) == (function["verdict"] is None), function
        if function["status"] == "covered":
            assert function["verdict"] == "pending", function

    patches = check(run_child, release=each_release).report["patches"]
    pending = {each["target"] for each in patches if each["verdict"] == "pending"}
    passed_on = {f"{each.module}:{each.name}" for each in PASSED_ON}
    covered = {each["defined"] for each in functions if each["status"] == "covered"}
    assert pending == covered - passed_on, pending ^ (covered - passed_on)
    # Else the table of releases has a gap: it takes a function for missing that is there.
    missing = {each["patch"] for each in patches if "no such function" in each["reason"]}
    listed = {each["defined"].partition(":")[2] for each in functions}
    # Of two functions of one name a release may have the one and lack the other.
    found = {each.rpartition(":")[2] for each in covered}
    assert not missing & listed - found, missing & listed - found

    assert "flashinfer.rmsnorm" in by_name(report, "rmsnorm")["exported"]


# What is public


@functools.cache
def parsed(release: str) -> frozenset[str]:
    """What a parser finds decorated, as ``module:name``; names without an underscore in front."""
    package = path(release) / "flashinfer"
    found = set()
    for file in package.rglob("*.py"):
        source = file.read_bytes()
        if b"@flashinfer_" in source and "data" not in file.relative_to(package).parts:
            module = ".".join(file.relative_to(package.parent).with_suffix("").parts)
            module = module.removesuffix(".__init__")
            found |= {f"{module}:{name}" for name in decorated(ast.parse(source).body)}
    return frozenset(found)


def decorated(body: Sequence[ast.stmt], owner: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            words = [ast.unparse(each).partition("(")[0] for each in node.decorator_list]
            marked = any(re.fullmatch(r"(\w+\.)*flashinfer_(\w+_)?api", word) for word in words)
            if marked and not node.name.startswith("_"):
                yield owner + node.name
        elif isinstance(node, ast.ClassDef):
            if not node.name.startswith("_"):
                yield from decorated(node.body, f"{owner}{node.name}.")
        else:
            for part in ("body", "orelse", "finalbody", "handlers"):
                yield from decorated(getattr(node, part, []), owner)


@pytest.mark.parametrize("release", ["0.6.3", "0.6.18.post1", "0.7.4"])
def test_what_is_decorated_is_what_a_parser_finds(release: str, run_child: RunChild) -> None:
    functions = ask(run_child, release=release)["functions"]
    assert parsed(release) <= {each["defined"] for each in functions}
    bare = {e["defined"] for e in functions if not e["exported"] and e["patch"] is None}
    assert bare <= parsed(release)


IMPORTED = """
import functools, importlib, inspect, json, pkgutil, sys
sys.path.append({tests!r})
from child_side import *

pretend()
import flashinfer
import torch


def made_here(value):
    while isinstance(value, functools.partial):
        value = value.func
    value = inspect.unwrap(value) if callable(value) else value
    kinds = (inspect.isfunction(value), inspect.isclass(value))
    return any(kinds) and value.__module__.startswith("flashinfer")


modules = [flashinfer]
for info in pkgutil.iter_modules(flashinfer.__path__, "flashinfer."):
    module = sys.modules.get(info.name)
    if module and hasattr(module, "__all__") and not info.name.startswith("flashinfer._"):
        modules.append(module)
exported = [
    f"{{module.__name__}}.{{name}}"
    for module in modules
    for name in getattr(module, "__all__", vars(module))
    if not name.startswith("_") and made_here(vars(module).get(name))
]

import ops_kernels
from shim.patches.ops import TRACES
from shim.proof.making import fake

sys.path += {packages!r}  # some modules can only be imported with them
ops_kernels.answer_for_the_machine()
examples = {{each.name: each.example for traces in TRACES.values() for each in traces}}
traced = {{}}
for defined in {traced!r}:
    module, _, name = defined.partition(":")
    backend = Counting()
    with fake_cuda():
        function = getattr(importlib.import_module(module), name)
        compiled = torch.compile(function, fullgraph=True, backend=backend, dynamic=True)
        faults = [error_of(lambda: compiled(**examples[name](fake(), m))) for m in (4, 1, 7, 129)]
    traced[defined] = [faults, backend.ops()]
print(json.dumps(dict(exported=exported, traced=traced, ours="shim.hook" in sys.modules)))
"""


@dataclass(frozen=True)
class Real:
    """What ``coverage`` says of a release, and what an import of it, without us, shows."""

    report: dict[str, Any]
    imported: dict[str, Any]


@pytest.fixture(scope="module", params=[*["0.5.0", "0.6.18.post1"] * IS_WHOLE, "0.6.3", "0.7.4"])
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Real:
    run = functools.partial(children.run_child, scratch=tmp_path_factory.mktemp("real"))
    report = ask(run, release=request.param)
    traced = [defined for defined, status in statuses(report).items() if status == "traces"]
    packages = [str(entry) for entry in cuda_packages()]
    code = IMPORTED.format(tests=str(ROOT / "tests"), traced=traced, packages=packages)
    return Real(report, run(code, release=request.param, shim=False).json)


def test_what_an_import_finds_exported_is_listed(real: Real) -> None:
    functions, classes = real.report["functions"], real.report["classes"]
    listed = {name for each in (*functions, *classes) for name in each["exported"]}
    assert len(real.imported["exported"]) > 100
    assert not set(real.imported["exported"]) - listed


def test_what_is_said_to_trace_by_itself_does(real: Real) -> None:
    assert not real.imported["ours"]
    assert "flashinfer.page:get_seq_lens" in real.imported["traced"]
    for defined, (faults, graphs) in real.imported["traced"].items():
        assert faults == [None] * 4, defined
        assert graphs, defined
        assert not [op for graph in graphs for op in graph if "flashinfer" in op], defined


@pytest.mark.parametrize("release", ["0.6.18.post1", "0.7.4"])
def test_what_is_called_through_others_is(release: str, run_child: RunChild) -> None:
    report = ask(run_child, release=release)
    behind = {
        each["defined"]: {each["defined"].partition(":")[2], *map(last_part, each["exported"])}
        for each in report["functions"]
        if each["reason"] == "is called through other public functions"
    }
    assert behind
    package = path(release) / "flashinfer"
    words: dict[str, set[str]] = {}
    for file in package.rglob("*.py"):
        inside = file.relative_to(package).parts
        # The package of a backend exports its functions and calls none.
        exports = inside[-1] == "__init__.py" and re.search("kernels|backend", str(inside))
        if not exports and not {"data", "trace"} & {*inside}:
            module = ".".join(file.relative_to(package.parent).with_suffix("").parts)
            words[module] = set(re.findall(r"\w+", file.read_text(errors="replace")))
    idle = [
        defined
        for defined, names in behind.items()
        if not any(
            names & used for module, used in words.items() if module != defined.partition(":")[0]
        )
    ]
    assert idle == []


def last_part(name: str) -> str:
    return name.rpartition(".")[2]


CALLS = """
import importlib, json, sys
sys.path.append({tests!r})
from child_side import Counting, fake_cuda, pretend
pretend("10.0")
import torch
from shim.patches.ops import OPS, PASSED_ON
from shim.proof.making import fake

found = {{}}
for each in [each for passed in PASSED_ON.values() for each in passed]:
    function = getattr(importlib.import_module(each.module), each.name)
    backend = Counting()
    with fake_cuda():
        torch.compile(function, fullgraph=True, backend=backend)(**OPS[each.op].example(fake(), 4))
    found[each.op] = backend.ops()
print(json.dumps(found))
"""


def test_what_passes_its_call_on_compiles_into_that_op(run_child: RunChild) -> None:
    found = run_child(CALLS.format(tests=str(ROOT / "tests")), release="0.7.4").json
    assert found.keys() == {each.op for each in PASSED_ON}
    for op, graphs in found.items():
        calls = [call.rpartition(".")[0] for graph in graphs for call in graph]
        assert list(filter(None, calls)) == [f"flashinfer_shim.{op}"]


def test_a_declared_reason_is_given(real: Real) -> None:
    declared = {each.name: each.reason for entries in ops.UNCOVERED.values() for each in entries}
    said = {each["defined"].partition(":")[2]: each["reason"] for each in real.report["functions"]}
    found = {name: said[name] for name in declared.keys() & said.keys()}
    assert "segment_packbits" in found
    assert found == {name: declared[name] for name in found}


def test_a_function_that_a_release_lacks_is_not_listed(run_child: RunChild) -> None:
    old, new = (ask(run_child, release=release) for release in ("0.5.0", "0.7.4"))
    assert not [each for each in old["functions"] if each["name"] == "fused_rmsnorm_silu"]
    assert by_name(new, "fused_rmsnorm_silu")["defined"] == "flashinfer.norm:fused_rmsnorm_silu"


def test_two_names_of_one_function_are_one_entry(run_child: RunChild) -> None:
    report = ask(run_child, "nvfp4_block_scale_interleave", release="0.6.18.post1")
    [function] = report["functions"]
    assert function["name"] == "block_scale_interleave"
    assert "flashinfer.nvfp4_block_scale_interleave" in function["exported"]
    assert "flashinfer.block_scale_interleave" in function["exported"]


def test_a_function_is_called_as_it_is_exported(run_child: RunChild) -> None:
    report = ask(run_child, "vllm_all_reduce", release="0.6.3")
    [function] = report["functions"]
    assert function["defined"] == "flashinfer.comm.vllm_ar:all_reduce"
    assert function["name"] == "vllm_all_reduce"


def test_methods_are_functions_and_classes_are_not(run_child: RunChild) -> None:
    report = ask(run_child, "BatchDecodeWithPagedKVCacheWrapper", release="0.6.3")
    names = {each["name"]: each["status"] for each in report["functions"]}
    assert names == {
        "BatchDecodeWithPagedKVCacheWrapper.plan": "not_in_forward",
        "BatchDecodeWithPagedKVCacheWrapper.run": "covered",
        "BatchDecodeWithPagedKVCacheWrapper.forward": "covered",
        "BatchDecodeWithPagedKVCacheWrapper.forward_return_lse": "covered",
    }
    assert [each["name"] for each in report["classes"]] == ["BatchDecodeWithPagedKVCacheWrapper"]
    assert report["totals"]["functions"] == 4


def test_a_partial_is_another_name_of_the_function_in_it(run_child: RunChild) -> None:
    report = ask(run_child, "single_prefill_with_kv_cache_return_lse", release="0.6.3")
    names = [(each["name"], each["status"]) for each in report["functions"]]
    assert names == [("single_prefill_with_kv_cache", "covered")]


# Covered or not


def test_a_reason_is_not_given_for_an_op() -> None:
    declared = [each.name for entries in ops.UNCOVERED.values() for each in entries]
    declared += [each.name for traces in ops.TRACES.values() for each in traces]
    assert len(declared) == len(set(declared))
    assert not set(declared) & ops.OPS.keys()


def test_an_unknown_release_covers_nothing_unless_adapt_vouches_for_it(
    run_child: RunChild, unknown_release: Path
) -> None:
    report = ask(run_child, release=unknown_release)
    assert report["totals"]["covered"] == 0
    rmsnorm = by_name(report, "rmsnorm")
    assert (rmsnorm["status"], rmsnorm["patch"], rmsnorm["verdict"]) == (
        "not_covered",
        "rmsnorm",
        "refused",
    )
    assert "99.0 is not in the table" in rmsnorm["reason"]

    adapted = ask(run_child, release=unknown_release, env={"FLASHINFER_SHIM_POLICY": "adapt"})
    assert by_name(adapted, "rmsnorm")["status"] == "covered"


def test_a_changed_function_is_not_covered(run_child: RunChild, copy_release: CopyRelease) -> None:
    def change(text: str) -> str:
        head, define, rest = text.partition("\ndef rmsnorm(")
        return (
            head + define + rest.replace("out = torch.empty_like(input)", "out = input.clone()", 1)
        )

    report = ask(run_child, release=copy_release("0.6.3", edit={"flashinfer/norm.py": change}))
    assert by_name(report, "rmsnorm")["status"] == "not_covered"
    assert "is not the one that 0.6.3 released" in by_name(report, "rmsnorm")["reason"]
    assert by_name(report, "fused_add_rmsnorm")["status"] == "covered"


def test_what_is_switched_off_is_covered_all_the_same(run_child: RunChild) -> None:
    report = ask(run_child, "rmsnorm", release="0.6.3", env={"FLASHINFER_SHIM": "off"})
    assert report["totals"]["covered"] == 1


FORWARD = (
    *("fp4_quantize", "rmsnorm", "fused_add_rmsnorm", "mm_fp4", "silu_and_mul", "mxfp8_quantize"),
    *("apply_rope_with_cos_sin_cache_inplace", "bmm_fp8", "gemm_fp8_nt_groupwise", "xqa"),
    *(
        "trtllm_fp8_block_scale_moe",
        "cutlass_fused_moe",
        "allreduce_fusion",
        "merge_state_in_place",
    ),
    *("top_k_top_p_sampling_from_probs", "top_k_renorm_probs", "softmax", "append_paged_kv_cache"),
    *("single_decode_with_kv_cache", "BatchPrefillWithRaggedKVCacheWrapper.run", "mm_mxfp8"),
    *("trtllm_batch_decode_with_kv_cache", "moe_a2a_dispatch", "SegmentGEMMWrapper.run"),
    *("get_batch_indices_positions", "MoeAlltoAll.get_combine_payload_tensor_in_workspace"),
    *("cake_mhc_det_train_forward_prepare", "get_seq_lens"),
)


@pytest.mark.parametrize("name", FORWARD)
def test_what_a_forward_calls_is_not_set_apart(name: str) -> None:
    assert apart(Definition("flashinfer.anything", name)) == ""


def test_a_launch_is_not_set_apart_by_its_module() -> None:
    assert apart(Definition("flashinfer.jit.anything", "run_anything")) == ""


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("jit.gemm", "anything"),
        ("testing.utils", "bench_gpu_time"),
        ("trace.templates.norm", "anything"),
        ("decode", "BatchDecodeWithPagedKVCacheWrapper.plan"),
        ("decode", "fast_decode_plan"),
        ("norm", "gen_norm_module"),
        ("quantization.fp4_quantization", "get_fp4_quantization_module"),
        ("comm.allreduce", "create_allreduce_fusion_workspace"),
        ("fused_moe.core", "cutlass_fused_moe_workspace_size"),
        ("autotuner", "autotune"),
        ("cute_dsl.utils", "is_cute_dsl_available"),
        ("trtllm_low_latency_gemm", "prepare_low_latency_gemm_weights"),
        ("cake_rmsnorm_train", "cake_rmsnorm_train_backward"),
    ],
)
def test_what_no_forward_calls_is_set_apart(module: str, name: str) -> None:
    assert apart(Definition(f"flashinfer.{module}", name))


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("norm", "norm"),
        ("norm.kernels.rmsnorm", "norm"),
        ("fp4_quantization", "quantization"),
        ("quantization.fp8_quantization", "quantization"),
        ("gemm.gemm_base", "gemm"),
        ("fused_moe.core", "fused_moe"),
        ("comm.trtllm_moe_alltoall", "comm"),
        ("mla._core", "attention"),
        ("topk", "sampling"),
        ("something_new.part", "something_new"),
    ],
)
def test_a_family_is_told_by_the_module(module: str, expected: str) -> None:
    assert family(Definition(f"flashinfer.{module}", "anything")) == expected


# The command


def test_torch_and_flashinfer_are_not_imported_and_no_process_is_started(
    run_child: RunChild,
) -> None:
    child = run_child(
        """
        import json, sys
        events = []
        watched = ("subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.system", "socket.")
        sys.addaudithook(lambda event, _: event.startswith(watched) and events.append(event))
        from shim.cli import main
        status = main(["coverage"])
        roots = {name.partition(".")[0] for name in sys.modules}
        print(json.dumps([status, sorted(roots & {"torch", "flashinfer"}), events]))
        """,
        release="0.6.18.post1",
    )
    assert child.json == [0, [], []], child
    assert "append_paged_kv_cache" in child.stdout


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (("rmsnorm",), {"rmsnorm"}),
        (("flashinfer.norm.rmsnorm",), {"rmsnorm"}),
        (("append_paged_*",), {"append_paged_kv_cache", "append_paged_mla_kv_cache"}),
        (("packbits", "layernorm"), {"packbits", "layernorm"}),
    ],
)
def test_it_can_be_asked_for_some(
    asked: Sequence[str], found: set[str], run_child: RunChild
) -> None:
    report = ask(run_child, *asked, release="0.6.3")
    assert {each["name"] for each in report["functions"]} == found
    assert report["totals"]["functions"] == len(found)


def test_it_can_be_asked_for_a_family(run_child: RunChild) -> None:
    report, whole = (ask(run_child, *some, release="0.6.3") for some in (["rope"], []))
    assert report["functions"] == [e for e in whole["functions"] if e["family"] == "rope"]
    assert set(report["families"]) == {"rope"}


@pytest.mark.parametrize("release", ["0.6.3", "0.7.4"])
def test_the_text_keeps_to_80_columns_and_leaves_no_function_out(
    release: str, run_child: RunChild
) -> None:
    child, report = tell(run_child, release=release), ask(run_child, release=release)
    prose, counts = child.stdout.split("\n\n", 1)[1].split("\n\n", 1)
    wide = [line for line in prose.splitlines() if len(line) > 80]
    assert not [line for line in wide if " " in line.strip()], child  # a name is not broken
    prose = re.sub(r"(?m)^\S.*$", "", prose)  # families; then what is said of the names
    said = Counter(re.findall(r"[\w.]+", re.sub(r"(?ms)^  \S.*?\(\d+\):\s", "", prose)))
    assert said == Counter(each["name"] for each in report["functions"])
    for family_, total in report["families"].items():
        row = [family_, *map(str, total.values())]
        assert any(" ".join(line.split()) == " ".join(row) for line in counts.splitlines()), row
    totals = report["totals"]
    assert counts.splitlines()[-2].startswith(
        f"{totals['functions']} public functions: {totals['covered']} covered, "
    ), child


def test_asked_for_some_it_tells_of_each(run_child: RunChild) -> None:
    said = (
        "flashinfer-shim coverage: this FlashInfer has no public function, class or family called "
        "nothing; without names, all are listed\n"
    )
    names = ("rmsnorm", "segment_packbits", "nothing")
    child = tell(run_child, *names, stderr=said, release="0.6.3")
    lines = child.stdout.splitlines()
    assert "rmsnorm: covered by the patch rmsnorm" in lines, child
    assert "    in flashinfer.norm; exported as flashinfer.rmsnorm" in lines, child
    assert any(line.startswith("segment_packbits: not covered, its output") for line in lines), (
        child
    )


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_names_that_nothing_has_are_wrong_usage(run_child: RunChild, options: list[str]) -> None:
    args = ["-m", "shim", "coverage", *options, "nothing", "nobody*"]
    child = run_child(None, args=args, release="0.6.3")
    assert (child.returncode, child.stdout) == (2, ""), child
    assert "called nothing, nobody*; without names, all are listed" in child.stderr


def keys(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The documented name of each key below ``value``, with what stands there."""
    if isinstance(value, list):
        for each in value:
            if isinstance(each, dict):
                yield from keys(each, f"{name}[].")
    elif isinstance(value, dict):
        for key, inner in value.items():
            here = f"{name}{'*' if name == 'families.' else key}"
            if here not in ("flashinfer", "totals"):
                yield here, inner
            if here != "families.*":
                yield from keys(inner, here if isinstance(inner, list) else f"{here}.")


def test_the_document_names_every_key_and_its_type(run_child: RunChild) -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (\S[^|]*) \|", DOCUMENT.read_text(), re.MULTILINE)
    documented = {key: kind for key, kind in rows if kind.split()[0] in TYPES}
    found = dict(keys(ask(run_child, release="0.6.3")))
    assert found.keys() == documented.keys()
    for key, value in keys(ask(run_child, release="0.6.3")):
        words = documented[key].removesuffix(" of strings").split(" or ")
        assert isinstance(value, tuple(TYPES[word] for word in words)), (key, value)


# What cannot be read


def garbage(text: str) -> str:
    return "def (((:\n" + text.replace("\ndef ", "\n\x00 def ")


@pytest.mark.parametrize("release", ["0.5.0", "0.7.4"])
def test_a_file_that_no_python_reads_takes_its_functions_with_it_and_no_others(
    release: str, run_child: RunChild, copy_release: CopyRelease
) -> None:
    report = ask(run_child, release=copy_release(release, edit={"flashinfer/rope.py": garbage}))
    covered = {each["name"] for each in report["functions"] if each["status"] == "covered"}
    assert "rmsnorm" in covered
    assert not {each for each in covered if "rope" in each and each.startswith("apply")}


def test_a_file_that_cannot_be_opened_is_named(
    run_child: RunChild, copy_release: CopyRelease
) -> None:
    tree = copy_release("0.6.3", edit={"flashinfer/rope.py": lambda text: text + "\n"})
    broken = tree / "flashinfer" / "rope.py"
    broken.unlink()
    broken.symlink_to(tree / "gone.py")
    assert ask(run_child, release=tree)["unreadable"] == [str(broken)]
    assert f"Warning: {broken} cannot be read." in tell(run_child, release=tree).stdout


def test_bytes_that_are_no_text_are_read_past(
    run_child: RunChild, copy_release: CopyRelease
) -> None:
    tree = copy_release("0.6.3", edit={"flashinfer/page.py": lambda text: text + "\n"})
    page = tree / "flashinfer" / "page.py"
    page.write_bytes(page.read_bytes() + b"\n# \xff\xfe\n")
    report = ask(run_child, release=tree)
    assert (
        "flashinfer.append_paged_kv_cache" in by_name(report, "append_paged_kv_cache")["exported"]
    )


def test_no_flashinfer_is_status_2_and_nothing_on_stdout(run_child: RunChild) -> None:
    child = run_child(None, args=["-m", "shim", "coverage", "--json"])
    assert (child.returncode, child.stdout) == (2, ""), child
    assert child.stderr == (
        "flashinfer-shim coverage: FlashInfer is not installed in this environment: "
        "pip install flashinfer-python\n"
    )


def test_wrong_usage_is_status_2_and_nothing_on_stdout(run_child: RunChild) -> None:
    child = run_child(None, args=["-m", "shim", "coverage", "--colour"], release="0.6.3")
    assert (child.returncode, child.stdout) == (2, ""), child
    assert "--colour" in child.stderr
