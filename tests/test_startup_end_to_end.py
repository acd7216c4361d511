"""The real start-up, hook and patches on a real release, by the ways processes come to be."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import releases
import startup_trees as trees
from conftest import RunChild

from shim.patches import NAMES, USUAL

RELEASE = releases.asked("0.6.3")[0]

#: They wait for a setting.
SWITCHED = sorted({*NAMES} - {*USUAL})
DEFINE = (
    f"SWITCHED = {SWITCHED}"
    + """
import json, sys

def patched():
    import flashinfer
    package = sys.modules.get("shim") or sys.modules["_flashinfer_shim"]
    verdicts = {
        record.patch: str(record.verdict) for record in package.status()
        if record.target.partition(":")[0] in sys.modules and record.patch not in SWITCHED
    }
    ours = {name: verdicts.pop(name) for name in ("cuda_version", "fp4_quantize", "rmsnorm")}
    return [
        hasattr(flashinfer.fp4_quantize, "__wrapped__"),
        ours,
        sorted(set(verdicts.values()) - {"applied", "not needed"}),
    ]
"""
)
IN_FORCE = [True, dict.fromkeys(("cuda_version", "fp4_quantize", "rmsnorm"), "applied"), []]


@pytest.mark.core
def test_nothing_heavy_is_loaded_before_flashinfer_and_its_probe_loads_nothing(
    run_child: RunChild,
) -> None:
    child = run_child(
        DEFINE
        + """
import importlib.util
names = {"shim", "_flashinfer_shim", "wrapt", "packaging", "torch", "flashinfer"}
heavy = lambda: sorted(names & set(sys.modules))
before = heavy()
found = importlib.util.find_spec("flashinfer") is not None
print(json.dumps([before, found, heavy(), patched()]))
""",
        release=RELEASE,
    )
    assert child.json == [[], True, [], IN_FORCE], child
    assert child.stderr == ""


def test_the_patched_modules_look_native(run_child: RunChild) -> None:
    child = run_child(
        DEFINE
        + """
import importlib.machinery, importlib.resources, inspect, pkgutil
assert patched()[0]
import flashinfer.fp4_quantization, flashinfer.jit.cpp_ext
native = importlib.machinery.SourceFileLoader
for module in (flashinfer, flashinfer.fp4_quantization, flashinfer.jit.cpp_ext):
    assert type(module.__loader__) is type(module.__spec__.loader) is native, module
    assert inspect.getsource(module) == open(module.__file__).read()
source = (importlib.resources.files("flashinfer") / "fp4_quantization.py").read_bytes()
assert source == pkgutil.get_data("flashinfer", "fp4_quantization.py")
assert "fp4_quantization" in [each.name for each in pkgutil.iter_modules(flashinfer.__path__)]
print(json.dumps("native"))
""",
        release=RELEASE,
    )
    assert child.json == "native", child


@pytest.mark.core
def test_a_reloaded_module_is_patched_again(run_child: RunChild) -> None:
    child = run_child(
        DEFINE
        + """
import importlib, torch
first = patched()
import flashinfer.jit.cpp_ext as cpp_ext
before = cpp_ext.get_cuda_version
importlib.reload(cpp_ext)
torch.version.cuda = "12.9"  # as a CUDA build says; a CPU build leaves the answer to nvcc
asks = torch.compile(cpp_ext.is_cuda_version_at_least, backend="eager", fullgraph=True)
fresh = cpp_ext.get_cuda_version is not before
print(json.dumps([first, fresh, asks("12.8"), asks("13.0"), patched()]))
""",
        release=RELEASE,
    )
    assert child.json == [IN_FORCE, True, True, False, IN_FORCE], child


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_multiprocessing_child_is_patched(run_child: RunChild, method: str) -> None:
    child = run_child(
        DEFINE
        + f"""
import multiprocessing

def use(queue):
    queue.put(patched())

if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    queue = context.Queue()
    context.Process(target=use, args=(queue,)).start()
    print(json.dumps(queue.get(timeout=240)))
""",
        release=RELEASE,
    )
    assert child.json == IN_FORCE, child


def test_python_dash_m_flashinfer_runs_patched(run_child: RunChild) -> None:
    without = run_child(None, args=["-m", "flashinfer", "--help"], release=RELEASE, shim=False)
    with_us = run_child(None, args=["-m", "flashinfer", "--help"], release=RELEASE)
    assert without.returncode == 0, without
    assert (with_us.stdout, with_us.stderr, with_us.returncode) == (
        without.stdout,
        without.stderr,
        without.returncode,
    )


def test_a_foreign_shim_in_the_working_directory_changes_nothing(
    run_child: RunChild, tmp_path: Path
) -> None:
    trees.write(tmp_path, {"shim/__init__.py": "mine = 'foreign'"})
    child = run_child(
        "import shim\n" + DEFINE.replace('sys.modules.get("shim") or', "") + "\n"
        "print(json.dumps([patched(), shim.mine]))",
        release=RELEASE,
    )
    assert child.json == [IN_FORCE, "foreign"], child
    assert child.stderr == ""


def test_a_wheel_removed_while_pythonpath_points_at_it_is_silent(
    run_child: RunChild, tmp_path: Path, release_path: Callable[[str], Path]
) -> None:
    site_packages = tmp_path / "site-packages"
    shutil.copytree(releases.ROOT / "shim", site_packages / "shim")
    startup = site_packages / "shim" / "startup"
    startup.mkdir()
    shutil.copy(trees.SITECUSTOMIZE, startup)
    environment = trees.path(startup, site_packages, release_path(RELEASE))
    child = run_child(DEFINE + "print(json.dumps(patched()))", env=environment)
    assert child.json == IN_FORCE, child

    shutil.rmtree(site_packages)
    child = run_child("import flashinfer; print(flashinfer.__version__)", env=environment)
    assert (child.stdout, child.stderr) == (RELEASE + "\n", "")


def test_a_refusal_with_stderr_closed_leaves_the_import_alone(
    run_child: RunChild, tmp_path: Path, release_path: Callable[[str], Path]
) -> None:
    # An unknown release: the one line that tells so has nowhere to go.
    lib = trees.write(
        tmp_path / "lib",
        {
            "flashinfer/__init__.py": "__version__ = '99.0'",
            "flashinfer_python-99.0.dist-info/METADATA": "Name: flashinfer-python\nVersion: 99.0\n",
        },
    )
    code = "import flashinfer, sys; print(flashinfer.__version__, sys.stderr is None)"
    environment = trees.path(releases.ROOT, lib)
    shown = run_child(None, args=["-c", code], env=environment)
    assert shown.stdout == "99.0 False\n"
    assert "99.0" in shown.stderr
    child = run_child(
        None, python="sh", args=["-c", f'"$0" -c "{code}" 2>&-', sys.executable], env=environment
    )
    assert child.stdout == "99.0 True\n", child


def test_require_stops_the_import_of_an_unknown_release_every_time(
    run_child: RunChild, tmp_path: Path
) -> None:
    lib = trees.write(tmp_path / "lib", {"flashinfer/__init__.py": "__version__ = '99.0'"})
    child = run_child(
        """
        import sys
        for _ in range(2):
            try:
                import flashinfer
            except ImportError as error:
                print("FLASHINFER_SHIM=require" in str(error), "flashinfer" in sys.modules)
        """,
        env=trees.path(releases.ROOT, lib) | {"FLASHINFER_SHIM": "require"},
    )
    assert child.stdout == "True False\n" * 2, child


def test_the_path_command_and_the_documented_line_patch_a_child(
    run_child: RunChild, release_path: Callable[[str], Path]
) -> None:
    line = (
        'export PYTHONPATH="$("$0" -m shim path)${PYTHONPATH:+:$PYTHONPATH}"; '
        'exec "$0" -c "import flashinfer; print(hasattr(flashinfer.fp4_quantize, \'__wrapped__\'))"'
    )
    environment = {"PYTHONPATH": os.pathsep.join([str(release_path(RELEASE)), str(releases.ROOT)])}
    child = run_child(None, python="sh", args=["-c", line, sys.executable], env=environment)
    assert (child.stdout, child.stderr) == ("True\n", "")
