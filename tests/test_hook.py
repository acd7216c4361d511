"""What a process that imports FlashInfer ends up with: real releases, real start-up, no mocks.

Where a fault cannot be made with real files, it is injected into our own code in the child.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from children import deviating
from conftest import CopyRelease, RunChild
from packaging.version import Version

from shim.patches import FAMILIES, NAMES, PATCHES, USUAL

TESTS = Path(__file__).parent

REPORT = f"""
    import json, sys
    sys.path.append({str(TESTS)!r})
    import flashinfer
    from child_side import records
    import shim
    print(json.dumps(records()))
"""

FP4_FILE = "flashinfer/fp4_quantization.py"  # in 0.6.3


@pytest.mark.core
def test_every_patch_applies_on_every_release_without_a_word(
    run_child: RunChild, each_release: str
) -> None:
    child = run_child(REPORT, release=each_release)
    assert deviating(child.json) == {}, child
    # The probes may not say "not needed" of what the release has and we know.
    version = Version(each_release)
    known = {patch.name for patch in PATCHES if patch.contract.row_for(version)}
    assert known == {name for name, r in child.json.items() if r["verdict"] != "not needed"}
    assert {"cuda_version", "fp4_quantize", "rmsnorm"} <= known
    assert child.stderr == ""
    assert len(child.stdout.splitlines()) == 1


def test_a_release_without_a_function_does_not_need_its_patch(run_child: RunChild) -> None:
    records = run_child(REPORT, release="0.5.0").json
    assert records["rmsnorm_quant"]["verdict"] == "not needed"
    assert records["rmsnorm_quant"]["reason"] == "release 0.5.0 has no such function"
    assert run_child(REPORT, release="0.6.3").json["rmsnorm_quant"]["verdict"] == "applied"


def test_without_us_nothing_is_patched(run_child: RunChild) -> None:
    child = run_child(
        "import flashinfer, json, sys\n"
        "print(json.dumps([flashinfer.fp4_quantize.__code__.co_filename, 'shim' in sys.modules]))",
        release="0.6.3",
        shim=False,
    )
    filename, loaded = child.json
    assert filename.endswith(FP4_FILE)
    assert not loaded


def test_no_reference_to_an_original_is_left_in_any_flashinfer_module(
    run_child: RunChild, each_signature: str
) -> None:
    child = run_child(
        """
        import json, sys
        import flashinfer, shim
        from shim.opaque.identity import original_of
        from shim.replacing import resolve
        ours = [
            resolve(sys.modules[module], function)
            for record in shim.status() if record.verdict == "applied"
            for module, function in [record.target.split(":")] if "." not in function
        ]
        originals = [original_of(f) or f.__wrapped__ for f in ours]
        held = lambda wanted: [
            f"{name}.{key}" for name, module in list(sys.modules.items())
            if name.startswith("flashinfer")
            for key, value in list(vars(module).items()) if any(value is w for w in wanted)
        ]
        print(json.dumps([len(ours), held(originals), held(ours)]))
        """,
        release=each_signature,
    )
    count, left, replaced = child.json
    assert count >= 20
    assert left == []
    assert len(replaced) >= count
    assert {
        "flashinfer.fp4_quantize",
        "flashinfer.rmsnorm",
        "flashinfer.jit.cpp_ext.get_cuda_version",
    } <= set(replaced)


# --- standing aside -----------------------------------------------------------------------------


UNTOUCHED = f"""
    import json, sys
    sys.path.append({str(TESTS)!r})
    import flashinfer
    import flashinfer.jit.cpp_ext as cpp_ext
    from child_side import records
    files = [flashinfer.fp4_quantize.__code__.co_filename,
             cpp_ext.get_cuda_version.__wrapped__.__code__.co_filename]
    print(json.dumps([files, records()]))
"""


def test_an_unknown_release_is_left_untouched_with_one_clear_line(
    run_child: RunChild, unknown_release: Path
) -> None:
    child = run_child(UNTOUCHED, release=unknown_release)
    files, records = child.json
    assert all(str(unknown_release) in file for file in files), files
    assert {records[name]["verdict"] for name in USUAL} == {"refused"}
    (line,) = child.stderr.splitlines()
    for word in ("flashinfer-shim:", "99.0", f"(all {len(USUAL)} patches", "POLICY=adapt"):
        assert word in line


def test_adapt_takes_the_unknown_release_whose_contract_fits(
    run_child: RunChild, unknown_release: Path
) -> None:
    child = run_child(REPORT, release=unknown_release, env={"FLASHINFER_SHIM_POLICY": "adapt"})
    assert deviating(child.json) == {}
    assert child.json["fp4_quantize"]["verdict"] == child.json["rmsnorm"]["verdict"] == "applied"
    assert child.stderr == ""


def test_require_turns_a_refusal_into_an_import_error_with_the_reason(
    run_child: RunChild, unknown_release: Path
) -> None:
    child = run_child(
        "import flashinfer", release=unknown_release, env={"FLASHINFER_SHIM": "require"}
    )
    assert child.returncode == 1
    last = child.stderr.splitlines()[-1]
    assert last.startswith("shim.errors.ShimError: FLASHINFER_SHIM=require")
    assert "99.0 is not in the table" in last


def test_require_says_nothing_where_everything_applies(run_child: RunChild) -> None:
    child = run_child(REPORT, release="0.6.3", env={"FLASHINFER_SHIM": "require"})
    assert deviating(child.json) == {}
    assert child.stderr == ""


def test_a_process_tree_says_its_line_once(run_child: RunChild, unknown_release: Path) -> None:
    child = run_child(
        """
        import subprocess, sys
        import flashinfer
        for _ in range(2):
            subprocess.run([sys.executable, "-c", "import flashinfer"], check=True)
        """,
        release=unknown_release,
    )
    assert child.returncode == 0, child
    assert len(child.stderr.splitlines()) == 1, child


def test_silence_can_be_asked_for(run_child: RunChild, unknown_release: Path) -> None:
    child = run_child(
        "import flashinfer", release=unknown_release, env={"FLASHINFER_SHIM_LOG": "off"}
    )
    assert (child.returncode, child.stderr) == (0, ""), child


def test_an_edited_body_is_refused_and_the_other_patches_still_apply(
    run_child: RunChild, copy_release: CopyRelease
) -> None:
    edited = copy_release(
        "0.6.3",
        edit={FP4_FILE: lambda text: text.replace("return x_q, sf\n", "return (x_q, sf)\n")},
    )
    child = run_child(REPORT, release=edited)
    assert list(deviating(child.json)) == ["fp4_quantize"]
    assert child.json["fp4_quantize"]["verdict"] == "refused"
    assert "its body is not the one" in child.json["fp4_quantize"]["reason"]
    assert "flashinfer-python==0.6.3" in child.stderr


def disabled(text: str) -> str:
    edited = text.replace(
        "@flashinfer_api\ndef fp4_quantize(", "@torch.compiler.disable\ndef fp4_quantize("
    )
    assert edited != text
    return edited


def test_a_users_own_compiler_disable_edit_is_seen_through(
    run_child: RunChild, copy_release: CopyRelease
) -> None:
    edited = copy_release("0.6.3", edit={FP4_FILE: disabled})
    compiles = f"""
        import json, sys
        sys.path.append({str(TESTS)!r})
        from child_side import *
        pretend()
        import torch
        from flashinfer import fp4_quantize
        with fake_cuda():
            x = torch.empty(32, 256, dtype=torch.bfloat16, device="cuda")
            f = torch.compile(lambda x: fp4_quantize(x, x), fullgraph=True, backend=Counting())
            print(json.dumps(error_of(lambda: f(x))))
    """
    without = run_child(compiles, release=edited, shim=False).json
    assert without is not None
    assert "disable" in without[1]
    assert run_child(compiles, release=edited).json is None


NORM, QUANTIZATION = set(FAMILIES["norm"]), set(FAMILIES["quantization"])


@pytest.mark.parametrize(
    ("env", "enabled"),
    [
        ({"FLASHINFER_SHIM": "off"}, set()),
        ({"FLASHINFER_SHIM_PATCHES": "-fp4_quantize"}, {*USUAL} - {"fp4_quantize"}),
        ({"FLASHINFER_SHIM_PATCHES": "fp4_quantize"}, {"fp4_quantize"}),
        ({"FLASHINFER_SHIM_PATCHES": "-quantization"}, {*USUAL} - QUANTIZATION),
        (
            {"FLASHINFER_SHIM_PATCHES": "norm,-rmsnorm,page"},
            NORM - {"rmsnorm"} | {*FAMILIES["page"]},
        ),
    ],
)
def test_the_user_can_switch_patches_and_families_off(
    run_child: RunChild, env: dict[str, str], enabled: set[str]
) -> None:
    child = run_child(REPORT, release="0.6.3", env=env)
    assert {n for n, r in child.json.items() if r["verdict"] != "disabled"} == enabled
    assert deviating(child.json).keys() == {*USUAL} - enabled
    assert child.stderr == ""


def test_a_wrong_setting_is_one_line_and_breaks_nothing(run_child: RunChild) -> None:
    child = run_child(REPORT, release="0.6.3", env={"FLASHINFER_SHIM_POLICY": "bold"})
    assert deviating(child.json) == {}
    (line,) = child.stderr.splitlines()
    assert "FLASHINFER_SHIM_POLICY='bold' is not one of tested, adapt" in line


def test_a_wrong_setting_raises_where_the_shim_is_required(run_child: RunChild) -> None:
    env = {"FLASHINFER_SHIM": "require", "FLASHINFER_SHIM_POLICY": "bold"}
    child = run_child("import flashinfer", release="0.6.3", env=env)
    assert child.returncode == 1
    assert "FLASHINFER_SHIM_POLICY='bold'" in child.stderr.splitlines()[-1]


def test_at_level_info_each_module_is_one_line_that_names_its_patched_functions(
    run_child: RunChild,
) -> None:
    child = run_child(
        """
        import json, flashinfer, shim
        print(json.dumps([r.target.split(":") for r in shim.status() if r.verdict == "applied"]))
        """,
        release="0.6.3",
        env={"FLASHINFER_SHIM_LOG": "info"},
    )
    targets = child.json
    said = dict(line.split(": ")[1:3] for line in child.stderr.splitlines())
    for module in {module for module, _ in targets}:
        functions = [name for where, name in targets if where == module]
        assert said[f"patched in {module}"].split(", ") == functions
    assert len(child.stderr.splitlines()) == len(said) == len({module for module, _ in targets})


# --- faults of our own --------------------------------------------------------------------------

BREAK_BUILD = """
    import torch, shim.patches.fp4_quantize as ours
    def build(site): raise RuntimeError("wheels came off")
    ours.build = build
"""


def test_one_failing_builder_leaves_its_function_untouched_and_the_others_of_the_module_applied(
    run_child: RunChild,
) -> None:
    child = run_child(
        BREAK_BUILD
        + f"""
    import json, sys
    sys.path.append({str(TESTS)!r})
    import flashinfer, shim
    from child_side import records
    record = {{r.patch: r for r in shim.status()}}["fp4_quantize"]
    print(json.dumps([record.traceback, record.action,
                      flashinfer.fp4_quantize.__code__.co_filename, records()]))
    """,
        release="0.6.3",
    )
    traceback, action, file, records = child.json
    assert records["fp4_quantize"]["verdict"] == "failed"
    assert "wheels came off" in traceback
    assert "in build" in traceback
    assert "FLASHINFER_SHIM_PATCHES=-fp4_quantize" in action
    assert file.endswith(FP4_FILE)
    # It was built first, and these are of the same module.
    assert list(deviating(records)) == ["fp4_quantize"]
    assert records["nvfp4_batched_quantize"]["verdict"] == "applied"
    assert records["block_scale_interleave"]["verdict"] == "applied"
    (line,) = child.stderr.splitlines()
    assert "(fp4_quantize failed)" in line
    assert "wheels came off" in line


def test_what_fails_in_many_modules_for_one_reason_is_one_line(run_child: RunChild) -> None:
    child = run_child(
        """
        import torch, shim.patches.declared_op as ours
        def build(site): raise RuntimeError("wheels came off")
        ours.build = build
        import json, flashinfer, shim
        failed = [r.target.partition(":")[0] for r in shim.status() if r.verdict == "failed"]
        by_name = {r.patch: str(r.verdict) for r in shim.status()}
        print(json.dumps([failed, by_name["cuda_version"], by_name["fp4_quantize"]]))
        """,
        release="0.6.3",
    )
    failed, cuda_version, fp4_quantize = child.json
    assert cuda_version == fp4_quantize == "applied"
    assert len(failed) > 2 * len(set(failed))
    (line,) = child.stderr.splitlines()
    assert "wheels came off" in line
    assert "shim.status() says what to do about each" in line


def test_our_fault_raises_where_the_shim_is_required(run_child: RunChild) -> None:
    child = run_child(
        BREAK_BUILD + "\n    import flashinfer",
        release="0.6.3",
        env={"FLASHINFER_SHIM": "require"},
    )
    assert child.returncode == 1
    assert "wheels came off" in child.stderr.splitlines()[-1]


def test_a_module_is_patched_wholly_or_not_at_all(run_child: RunChild) -> None:
    child = run_child(
        """
        import json, sys, types
        import shim.replacing, shim.hook
        from shim.opaque.identity import original_of
        put = shim.replacing.put
        def failing(module, path, replacement):
            put(module, path, replacement)
            if path == "fp4_quantize":
                raise MemoryError("half way")
        shim.replacing.put = failing
        import flashinfer
        left = [
            f"{name}.{key}" for name, module in list(sys.modules.items())
            if name.startswith("flashinfer")
            for key, value in list(vars(module).items())
            if original_of(value) is not None
            and value.__module__ == "flashinfer.fp4_quantization"
        ]
        print(json.dumps([left, {r.patch: [str(r.verdict), r.target] for r in shim.status()}]))
        """,
        release="0.6.3",
    )
    left, records = child.json
    assert left == []
    of_the_module = {
        name: verdict
        for name, (verdict, target) in records.items()
        if target.startswith("flashinfer.fp4_quantization:")
    }
    assert len(of_the_module) >= 3
    assert set(of_the_module.values()) <= {"failed", "not needed"}
    assert of_the_module["fp4_quantize"] == of_the_module["block_scale_interleave"] == "failed"
    failed = {name for name, (verdict, _) in records.items() if verdict == "failed"}
    assert failed <= of_the_module.keys()


def test_a_function_that_somebody_else_replaced_is_left_to_them(run_child: RunChild) -> None:
    child = run_child(
        """
        import json, sys
        sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "Gate"]
        import flashinfer, shim
        def theirs(*args, **kwargs): ...
        flashinfer.fp4_quantization.fp4_quantize = theirs
        records = {r.patch: r for r in shim.activate()}
        print(json.dumps([str(records["fp4_quantize"].verdict), records["fp4_quantize"].reason,
                          flashinfer.fp4_quantization.fp4_quantize is theirs]))
        """,
        release="0.6.3",
    )
    verdict, reason, kept = child.json
    assert (verdict, kept) == ("refused", True)
    assert "replaced by the function of" in reason
    assert len(child.stderr.splitlines()) == 1


# --- compiling one by one -----------------------------------------------------------------------


def test_ten_patched_functions_compiled_one_by_one_do_not_reach_the_recompile_limit(
    run_child: RunChild,
) -> None:
    # Dynamo counts by code object, and gives up at eight for one.
    child = run_child(
        f"""
        import json, sys
        sys.path.append({str(TESTS)!r})
        from child_side import *
        pretend()
        import torch
        import shim
        from shim.patches.ops import OPS
        from shim.proof.making import fake
        import flashinfer
        functions = {{
            r.patch: getattr(sys.modules[r.target.partition(":")[0]], OPS[r.patch].path)
            for r in shim.status()
            if r.patch in OPS and r.verdict == "applied" and not OPS[r.patch].owner
        }}
        chosen = list(functions)[:10]
        errors = {{}}
        with fake_cuda():
            for name in chosen:
                compiled = torch.compile(functions[name], fullgraph=True, backend="eager")
                arguments = OPS[name].example(fake(), 16)
                errors[name] = error_of(lambda: compiled(**arguments))
        codes = {{functions[name].__code__ for name in chosen}}
        limit = torch._dynamo.config.recompile_limit
        print(json.dumps([errors, len(codes), limit]))
        """,
        release="0.6.3",
    )
    errors, codes, limit = child.json
    assert errors == dict.fromkeys(errors)
    assert len(errors) == codes == 10 > limit


# --- importing in other ways --------------------------------------------------------------------


def test_a_module_that_is_reloaded_or_imported_again_is_patched_again(run_child: RunChild) -> None:
    child = run_child(
        f"""
        import importlib, json, sys
        sys.path.append({str(TESTS)!r})
        import child_side, flashinfer, shim, torch
        answers = []
        earlier = flashinfer.fp4_quantize
        before = [r.verdict for r in shim.status()]
        def look():
            module = sys.modules["flashinfer.fp4_quantization"]
            answers.append(hasattr(module.fp4_quantize, "__wrapped__"))
            answers.append([r.verdict for r in shim.status()] == before)
        look()
        importlib.reload(sys.modules["flashinfer.fp4_quantization"])
        look()
        # A copy that was made before may be the first of which there is an op.
        with child_side.fake_cuda():
            x = torch.empty(32, 256, dtype=torch.bfloat16, device="cuda")
            scale = torch.empty(1, device="cuda")
            copied = child_side.error_of(lambda: earlier(x, scale))
        for name in [n for n in sys.modules if n.split(".")[0] == "flashinfer"]:
            del sys.modules[name]
        import flashinfer
        look()
        print(json.dumps([answers, copied]))
        """,
        release="0.6.3",
    )
    assert child.json == [[True] * 6, None]
    assert child.stderr == ""


def test_upstream_logging_wrappers_are_patched_too(run_child: RunChild) -> None:
    child = run_child(
        REPORT,
        release="0.6.3",
        env={"FLASHINFER_LOGLEVEL": "1", "FLASHINFER_LOGDEST": "stderr"},
    )
    assert deviating(child.json) == {}


def test_flashinfer_modules_look_native_after_a_patch(run_child: RunChild) -> None:
    child = run_child(
        """
        import importlib.machinery, importlib.resources, inspect, json
        import flashinfer, flashinfer.fp4_quantization as module
        print(json.dumps([
            type(module.__loader__) is importlib.machinery.SourceFileLoader,
            module.__spec__.loader is module.__loader__,
            type(flashinfer.__spec__.loader) is importlib.machinery.SourceFileLoader,
            importlib.resources.files("flashinfer").joinpath("fp4_quantization.py").is_file(),
            inspect.getsource(module).startswith('\"""'),
            inspect.getsource(module.fp4_quantize).startswith("@flashinfer_api"),
        ]))
        """,
        release="0.6.3",
    )
    assert child.json == [True] * 6


def test_python_dash_m_flashinfer_runs(run_child: RunChild) -> None:
    plain = run_child(None, args=("-m", "flashinfer", "--help"), release="0.6.3", shim=False)
    ours = run_child(None, args=("-m", "flashinfer", "--help"), release="0.6.3")
    assert plain.returncode == 0, plain
    assert (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr)


def test_a_wrapper_that_a_user_put_around_the_function_is_not_patched_away(
    run_child: RunChild,
) -> None:
    child = run_child(
        """
        import functools, json, sys
        gate = [f for f in sys.meta_path if type(f).__name__ == "Gate"]
        sys.meta_path[:] = [f for f in sys.meta_path if f not in gate]
        import flashinfer, shim
        module = flashinfer.fp4_quantization
        def wrapping(function):
            @functools.wraps(function)
            def theirs(*args, **kwargs):
                return function(*args, **kwargs)
            return theirs
        upstream = module.fp4_quantize
        before = module.fp4_quantize = wrapping(upstream)
        verdicts = {r.patch: str(r.verdict) for r in shim.activate()}
        answers = [verdicts["fp4_quantize"], module.fp4_quantize is before]
        module.fp4_quantize = upstream
        shim.deactivate()
        shim.activate()
        around_ours = module.fp4_quantize = wrapping(module.fp4_quantize)
        shim.activate()
        answers += [module.fp4_quantize is around_ours]
        print(json.dumps(answers))
        """,
        release="0.6.3",
    )
    assert child.json == ["refused", True, True]


def test_a_package_that_is_executed_again_keeps_its_patches_in_the_ledger(
    run_child: RunChild,
) -> None:
    child = run_child(
        """
        import importlib, json
        import flashinfer, shim
        before = [str(r.verdict) for r in shim.status()]
        importlib.reload(flashinfer)
        print(json.dumps([before, [str(r.verdict) for r in shim.status()]]))
        """,
        release="0.6.3",
    )
    before, after = child.json
    assert before == after
    assert "applied" in after


def test_whatever_stands_for_flashinfer_in_a_test_does_not_break_activate(
    run_child: RunChild,
) -> None:
    child = run_child(
        """
        import json, sys, types
        from unittest import mock
        import shim
        verdicts = []
        for stand_in in (None, types.ModuleType("flashinfer"), mock.MagicMock()):
            sys.modules["flashinfer"] = stand_in
            verdicts += [str(r.verdict) for r in shim.activate()]
        print(json.dumps(verdicts))
        """,
        release="0.6.3",
    )
    assert child.json == ["pending"] * 3 * len(NAMES)
