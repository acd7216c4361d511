"""``check``: what is installed beside FlashInfer, and what a user is warned of."""

from __future__ import annotations

import os
import platform
import sys
import venv
from pathlib import Path

import pytest
from check_command import check, dist_info, fake_torch, pythonpath, toolkit
from conftest import CopyRelease, RunChild
from releases import ROOT, path

import shim
from shim.cli.check_deep import ChildReport, gpu_warnings


def test_it_shows_this_python_and_this_copy_of_the_shim(run_child: RunChild) -> None:
    report = check(run_child, release="0.6.3").report
    assert report["python"] == {"version": platform.python_version(), "executable": sys.executable}
    assert report["shim"] == {
        "version": shim.__version__,
        "package": str(ROOT / "shim"),
        "kind": "checkout",
        "startup": str(ROOT),
    }


def test_torch_and_its_cuda_are_read_and_not_imported(run_child: RunChild, tmp_path: Path) -> None:
    torch = fake_torch(tmp_path / "fake", cuda="12.8")
    checked = check(run_child, env=pythonpath(ROOT, torch, path("0.6.3")))
    assert checked.report["torch"] == {
        "version": "2.11.0+cu",
        "cuda": "12.8",
        "package": str(torch / "torch"),
    }


def test_a_build_of_torch_without_cuda_has_none(run_child: RunChild) -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA")
    report = check(run_child, release="0.6.3").report
    assert report["torch"]["version"] == torch.__version__
    assert report["torch"]["cuda"] is None


def test_the_toolkit_is_read_from_files_and_a_toolchain_in_order_is_no_warning(
    run_child: RunChild, tmp_path: Path
) -> None:
    torch = fake_torch(tmp_path / "fake", "12.9")
    env = pythonpath(ROOT, torch, path("0.6.3")) | toolkit(tmp_path / "cuda", "12.9")
    checked = check(run_child, env=env)
    assert checked.child.returncode == 0
    assert checked.report["toolkit"] == {
        "home": str(tmp_path / "cuda"),
        "chosen_by": "CUDA_HOME",
        "nvcc": True,
        "release": "12.9",
    }
    assert checked.report["told"]["without_us"] == {"version": "12.9", "source": "nvcc"}
    assert checked.report["told"]["with_us"] == {"version": "12.9", "source": "torch"}
    assert checked.warnings == [], checked


@pytest.mark.parametrize(
    ("name", "version", "fits"),
    [
        ("flashinfer-cubin", "0.6.3", True),
        ("flashinfer-cubin", "0.6.4", False),
        ("flashinfer-jit-cache", "0.6.3+cu130", True),
        ("flashinfer-jit-cache", "0.6.30+cu130", False),  # it starts with 0.6.3
        ("flashinfer-jit-cache", "0.6.3.post1+cu130", False),
    ],
)
def test_a_companion_has_to_be_of_the_same_release(
    name: str, version: str, fits: bool, run_child: RunChild, tmp_path: Path
) -> None:
    dist_info(tmp_path / "more", name, version)
    checked = check(run_child, env=pythonpath(ROOT, path("0.6.3"), tmp_path / "more"))
    assert checked.report["companions"] == {name: version}
    assert checked.warnings == ([] if fits else ["companion_release"]), checked


def test_a_companion_has_to_be_of_torchs_cuda(run_child: RunChild, tmp_path: Path) -> None:
    torch = fake_torch(tmp_path / "fake", "12.9")
    dist_info(tmp_path / "more", "flashinfer-jit-cache", "0.6.3+cu130")
    env = pythonpath(ROOT, torch, path("0.6.3"), tmp_path / "more")
    checked = check(run_child, env=env | toolkit(tmp_path / "cuda", "12.9"))
    assert checked.warnings == ["companion_cuda"], checked
    assert "libcudart.so.13" in checked.report["warnings"][0]["text"]


def test_a_function_that_a_user_disabled_by_hand_is_seen_through(
    run_child: RunChild, copy_release: CopyRelease
) -> None:
    def disable(text: str) -> str:
        line = "@flashinfer_api\ndef fp4_quantize("
        return text.replace(line, f"@torch.compiler.disable\n{line}")

    tree = copy_release("0.6.3", edit={"flashinfer/fp4_quantization.py": disable})
    checked = check(run_child, release=tree)
    assert checked.verdicts["fp4_quantize"] == "pending", checked
    assert checked.warnings == ["edited_function"], checked
    assert "@torch.compiler.disable" in checked.report["warnings"][0]["text"]


def test_users_of_upstreams_own_op_are_warned_where_it_inverts_the_scale(
    each_release: str, run_child: RunChild
) -> None:
    # The op passes what it is given by position, and enable_pdl lands in the parameter before it.
    files = path(each_release).glob("flashinfer/**/fp4_quantization.py")
    define = "def _fp4_quantize_custom_op("
    ops = [text.split(define)[1] for file in files if define in (text := file.read_text())]
    inverting = any("enable_pdl=enable_pdl" not in op.partition("\n\n")[0] for op in ops)

    checked = check(run_child, release=each_release)
    assert ("upstream_op" in checked.warnings) is inverting, checked


def test_a_python_of_another_environment_on_path_is_a_warning(
    run_child: RunChild, tmp_path: Path
) -> None:
    venv.create(tmp_path / "other", with_pip=False)
    first = os.pathsep.join([str(tmp_path / "other" / "bin"), os.environ.get("PATH", os.defpath)])
    checked = check(run_child, release="0.6.3", env={"PATH": first})
    assert checked.warnings == ["other_python"], checked
    assert str(tmp_path / "other" / "bin" / "python") in checked.report["warnings"][0]["text"]


@pytest.mark.parametrize(("capability", "warned"), [("9.0", True), ("8.9", True), ("12.0", False)])
def test_a_gpu_without_fp4_conversion_is_a_warning(capability: str, warned: bool) -> None:
    children = [ChildReport("python -c", capabilities=(capability,))] * 2
    assert [warn.code for warn in gpu_warnings(children)] == ["no_fp4_hardware"] * warned
