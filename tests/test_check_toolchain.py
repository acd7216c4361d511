"""``check``: each fault of the toolchain is told with what comes of it and what to do."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from check_command import check, fake_torch, file, nvcc, path_with_this_python, pythonpath, toolkit
from conftest import RunChild
from packaging.version import Version
from releases import ROOT, path
from toolchain_cases import broken_toolkits, chain

from shim.cli.check_toolchain_warnings import gpu_warnings, toolchain_warnings
from shim.cli.check_warnings import Warn
from shim.toolchain import asking, cache, driver


def warned(environ: dict[str, str], **options: Any) -> dict[str, Warn]:
    """The warnings of a toolchain by their codes."""
    release = options.get("release", "0.6.3")
    found = toolchain_warnings(chain(environ, **options), Version(release))
    assert all(warn.text and warn.action for warn in found)
    return {warn.code: warn for warn in found}


@pytest.fixture(autouse=True)
def nothing_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its home directory, driver and mounts are not what these tests are about."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(driver, "FILES", ())


# --- nvcc -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "found", "alone", "action"),
    [
        ("leading colon", "is a list, as PATH is", "answers torch's 13.0", "/good"),
        ("blank", "has blanks or quotes around it", "answers torch's 13.0", "/good"),
        ("tilde", "begins with ~", "answers torch's 13.0", "CUDA_HOME"),
        ("dangling", "is a link to", "answers torch's 13.0", "CUDA_HOME"),
        ("loop", "Too many levels of symbolic links", "raises OSError", "CUDA_HOME"),
        ("bare", "holds no bin/nvcc", "answers torch's 13.0", "CUDA_HOME"),
        ("file", "is a file, not a directory", "raises NotADirectoryError", "CUDA_HOME"),
        ("its bin", "bin' holds no bin/nvcc", "answers torch's 13.0", "CUDA_HOME={}/good"),
        ("its nvcc", "is a file, not a dir", "raises NotADirectoryError", "CUDA_HOME={}/good"),
        ("empty CUDA_PATH", "it is set to nothing", "answers torch's 13.0", "CUDA_PATH"),
        ("plain", "is not executable", "raises PermissionError", "CUDA_HOME"),
        ("directory", "is not a file", "raises PermissionError", "CUDA_HOME"),
        ("no_shebang", "neither a program nor a script", "raises OSError", "CUDA_HOME"),
        ("no_interpreter", "a script for /nowhere/sh", "answers torch's 13.0", "CUDA_HOME"),
        ("fails", "ends with status 3: 'release 12.9", "answers torch's 13.0", "CUDA_HOME"),
        ("garbage", "states no release: 'nothing of use'", "answers torch's 13.0", "CUDA_HOME"),
    ],
)
def test_an_nvcc_that_cannot_be_used(
    case: str, found: str, alone: str, action: str, tmp_path: Path
) -> None:
    environ = broken_toolkits(tmp_path)[case]
    warn = warned(environ, ask=True)["nvcc_unusable"]
    assert found in warn.text
    assert f"get_cuda_version {alone}" in warn.text
    assert action.format(tmp_path) in warn.action
    if alone.startswith("raises"):
        assert "with us it answers torch's 13.0" in warn.text
        ours = warned(environ | {"FLASHINFER_SHIM_CUDA_VERSION": "nvcc"}, ask=True)
        assert ours["nvcc_unusable"].text == warn.text  # it is said at run time, and torch answers


@pytest.mark.parametrize("case", ["good", "trailing slash", "on PATH", "CUDA_HOME first"])
def test_an_nvcc_that_can_be_used_is_no_warning(case: str, tmp_path: Path) -> None:
    environ = broken_toolkits(tmp_path)[case]
    assert warned(environ, ask=True, torch_cuda="12.9") == {}


def test_an_nvcc_that_hangs_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "TIMEOUT_S", 0.5)
    environ = toolkit(tmp_path / "cuda", "13.0")
    nvcc(tmp_path / "cuda", f"sleep 600 & echo $! > {tmp_path}/pid; wait")
    warn = warned(environ, ask=True)["nvcc_unusable"]
    assert "has said nothing after 0.5 s, and was ended" in warn.text
    assert "get_cuda_version waits for it for ever, with us it answers torch's 13.0" in warn.text
    pid = (tmp_path / "pid").read_text().strip()
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
    assert "nvcc_unusable" not in warned(environ)  # nothing is started unless it is asked for


def test_no_toolkit_at_all_matters_to_a_torch_with_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shim.toolchain.finding.DEFAULT_HOME", str(tmp_path / "none"))
    assert "build none" in warned({"PATH": str(tmp_path)})["no_toolkit"].text
    assert warned({"PATH": str(tmp_path)}, torch_cuda=None) == {}


def test_a_script_on_path_hides_the_toolkit(tmp_path: Path) -> None:
    nvcc(tmp_path, "echo 'release 13.0, V13.0.1'")
    environ = {"PATH": str(tmp_path / "bin")}
    warn = warned(environ, ask=True)["toolkit_incomplete"]
    assert "no include/cuda_runtime.h and no lib64/libcudart.so" in warn.text
    assert "CUDA_HOME" in warn.action


def test_an_nvcc_that_says_another_release_than_its_files(tmp_path: Path) -> None:
    environ = toolkit(tmp_path / "cuda", "13.0")
    nvcc(tmp_path / "cuda", "echo 'release 13.3, V13.3.1'")
    assert warned(environ) == {}
    found = warned(environ, ask=True, release="0.7.4")
    assert "says that it is 13.3, the toolkit's files say 13.0" in found["nvcc_contradicts"].text
    # By its own word it is newer than torch, and FlashInfer decides something at 13.2.
    assert "direct" not in found["toolkit_differs"].text
    assert "CUDA 13.2 brought" in found["toolkit_differs"].text


@pytest.mark.parametrize(
    ("home", "found"), [("cuda", "is relative"), ("/usr/", "not spelled /usr")]
)
def test_a_directory_that_is_spelled_so_that_a_build_fails(
    home: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit(tmp_path / "cuda", "13.0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shim.toolchain.finding.fault", lambda toolkit: None)  # an nvcc in /usr
    assert found in warned({"CUDA_HOME": home})["nvcc_unusable"].text


def test_another_nvcc_without_a_release_is_a_warning_where_it_was_asked(tmp_path: Path) -> None:
    environ = toolkit(tmp_path / "cuda", "12.8") | {"FLASHINFER_NVCC": str(tmp_path / "gone")}
    assert warned(environ, torch_cuda="12.8") == {}
    text = warned(environ, torch_cuda="12.8", ask=True)["nvcc_override"].text
    assert "whose --version cannot be started: No such file or directory: no module" in text
    nvcc(tmp_path / "other", "echo 'nothing of use'")
    environ["FLASHINFER_NVCC"] = str(tmp_path / "other/bin/nvcc")
    text = warned(environ, torch_cuda="12.8", ask=True)["nvcc_override"].text
    assert "states no release: 'nothing of use'" in text


def test_another_nvcc_that_builds_than_the_one_that_is_asked(tmp_path: Path) -> None:
    environ = toolkit(tmp_path / "old", "12.8")
    toolkit(tmp_path / "new", "13.0")
    environ["FLASHINFER_NVCC"] = f"ccache {tmp_path / 'new' / 'bin' / 'nvcc'}"
    warn = warned(environ, torch_cuda="12.8")["nvcc_override"]
    assert "of CUDA 13.0, and asks the nvcc of CUDA 12.8" in warn.text
    environ["FLASHINFER_NVCC"] = "$cuda_home/bin/nvcc"
    for ask in (False, True):
        assert warned(environ, torch_cuda="12.8", ask=ask) == {}


# --- what FlashInfer is told ----------------------------------------------------------------------

REFUSING = """
case "$*" in
*--version*) echo 'Cuda compilation tools, release {release}, V{release}.1' ;;
*{flag}*) echo "nvcc fatal   : no {flag}" >&2; exit 1 ;;
esac
"""


@pytest.mark.parametrize(
    ("release", "cuda", "torch_cuda", "lists", "breaks"),
    [
        ("0.6.3", "12.6", "12.9", "9.0a", ("-static-global-template-stub=false", "cuda_fp4.h")),
        ("0.6.3", "12.8", "13.0", "9.0a", None),  # it decides nothing between these two
        ("0.6.9", "12.8", "13.0", "12.0", ("sm_120f: nothing can be built for 12.0",)),
        ("0.7.4", "12.8", "13.0", "12.1", ("sm_121a: nothing can be built for 12.1",)),
        ("0.7.4", "12.8", "13.0", "12.0", ("sm_120f: nothing can be built for 12.0",)),
        ("0.6.9", "12.8", "13.0", "9.0a", None),
        ("0.6.18.post1", "12.8", "13.0", "10.0a", ("sm_100f: packed KDA decode",)),
        ("0.7.4", "13.0", "13.4", "12.0f", ("PTX of ISA 9.2",)),
    ],
)
def test_an_nvcc_older_than_torch_breaks_what_is_named(
    release: str,
    cuda: str,
    torch_cuda: str,
    lists: str,
    breaks: tuple[str, ...] | None,
    tmp_path: Path,
) -> None:
    environ = toolkit(tmp_path / "cuda", cuda) | {"FLASHINFER_CUDA_ARCH_LIST": lists}
    found = warned(environ, release=release, torch_cuda=torch_cuda).get("toolkit_differs")
    if breaks is None:
        assert found is None
    else:
        assert found is not None
        assert f"is {cuda}, torch was built with {torch_cuda}" in found.text
        assert [each for each in breaks if each not in found.text] == []
        assert "FLASHINFER_SHIM_CUDA_VERSION=nvcc" in found.action
    chosen = environ | {"FLASHINFER_SHIM_CUDA_VERSION": "nvcc"}
    assert "toolkit_differs" not in warned(chosen, release=release, torch_cuda=torch_cuda)


def test_what_flashinfer_chooses_without_us_and_with_us(tmp_path: Path) -> None:
    environ = toolkit(tmp_path / "cuda", "12.8") | {"FLASHINFER_CUDA_ARCH_LIST": "12.0"}
    chosen = {
        release: [
            (each.by_nvcc, each.by_torch)
            for each in chain(environ, release=release).differences
            if each.choice.of.startswith("target")
        ]
        for release in ("0.6.3", "0.6.9", "0.7.4")
    }
    none = "none: FlashInfer has no target"
    assert chosen == {
        "0.6.3": [],
        "0.6.9": [(none, "sm_120f")],
        "0.7.4": [("sm_120a", "sm_120f")],
    }


def test_the_flag_that_nvcc_refuses_is_asked_of_nvcc_itself(tmp_path: Path) -> None:
    environ = toolkit(tmp_path / "cuda", "12.8") | {"FLASHINFER_CUDA_ARCH_LIST": "9.0a 12.0"}
    nvcc(tmp_path / "cuda", REFUSING.format(release="12.8", flag="compute_120f"))
    here = chain(environ, release="0.7.4", ask=True)
    flag = "-gencode=arch=compute_120f,code=sm_120f"
    assert here.refused == {flag: "nvcc fatal   : no compute_120f"}
    beyond = warned(environ, release="0.7.4", ask=True)["arch_beyond_nvcc"]
    assert "cannot target sm_120f (since CUDA 12.9)" in beyond.text
    assert "(nvcc fatal   : no compute_120f)" in beyond.text
    # One that refuses everything says nothing of the flag.
    nvcc(tmp_path / "cuda", REFUSING.format(release="13.0", flag="none.cu"))
    assert chain(environ, release="0.7.4", ask=True).refused == {}
    found = warned(environ, release="0.7.4", ask=True)
    assert "takes no call at all" in found["nvcc_unusable"].text
    assert "'nvcc fatal   : no none.cu': no module" in found["nvcc_unusable"].text
    assert "arch_beyond_nvcc" not in found
    assert asking.refused([f"{tmp_path}/cuda/bin/nvcc"], ["-gencode=x"]) == {}


def test_an_nvcc_newer_than_torch_is_left_unused(tmp_path: Path) -> None:
    found = warned(toolkit(tmp_path / "cuda", "13.0"), release="0.7.4", torch_cuda="12.6")
    said = found["toolkit_differs"].text
    assert "leaves out what CUDA 13.0 brought, which this nvcc can do: every module" in said
    assert "libcudart.so.13 of the toolkit, torch loads libcudart.so.12" in (
        found["cudart_differs"].text
    )


# --- architectures --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "release", "code", "found", "action"),
    [
        ("9.0;10.0", "0.6.3", "arch_list", "import of FlashInfer 0.6.3 raise ValueError", "9.0 10"),
        ("", "0.7.4", "arch_list", "raise ValueError", "or unset FLASHINFER_CUDA_ARCH_LIST"),
        ("12", "0.7.4", "arch_list", "raise ValueError", "LIST='12.0'"),
        ("sm_90a 103a", "0.7.4", "arch_list", "raise ValueError", "LIST='9.0a 10.3a'"),
        ("9.0+PTX", "0.7.4", "arch_list", "hands '9.0+PTX' on as it is", "LIST='9.0'"),
        ("9.0", "0.6.3", "arch_unspecific", "compiles for sm_90 as it is written", "LIST='9.0a'"),
        ("9.0", "0.7.4", None, "", ""),
        ("7.0 9.0a", "0.6.3", "arch_beyond_nvcc", "cannot target sm_70", "take the entry out"),
        ("10.7a", "0.6.3", "arch_beyond_nvcc", "sm_107a (since CUDA 13.4)", "CUDA_HOME"),
        ("10.7a", "0.7.4", None, "", ""),  # compiled for its family
    ],
)
def test_a_list_of_architectures_that_is_wrong(
    text: str, release: str, code: str | None, found: str, action: str, tmp_path: Path
) -> None:
    environ = toolkit(tmp_path / "cuda", "13.0") | {"FLASHINFER_CUDA_ARCH_LIST": text}
    told = warned(environ, release=release)
    assert list(told) == ([code] if code else [])
    for warn in told.values():
        assert found in warn.text
        assert action in warn.action


def test_a_list_that_only_nvccs_version_makes_wrong(tmp_path: Path) -> None:
    environ = toolkit(tmp_path / "cuda", "12.6") | {"FLASHINFER_CUDA_ARCH_LIST": "12.0"}
    by_torch = warned(environ, release="0.6.9", torch_cuda="12.9")
    assert "arch_list" not in by_torch
    assert "sm_120f" in by_torch["arch_beyond_nvcc"].text
    environ["FLASHINFER_SHIM_CUDA_VERSION"] = "nvcc"
    by_nvcc = warned(environ, release="0.6.9", torch_cuda="12.9")
    assert "raise RuntimeError: compute capability 12.0 requires" in by_nvcc["arch_list"].text
    assert "new enough" in by_nvcc["arch_list"].action


@pytest.mark.parametrize(
    ("text", "capabilities", "missed"),
    [
        ("9.0a", ["9.0", "9.0"], None),
        ("8.0", ["8.6"], None),
        ("8.6", ["8.0"], "8.0"),
        ("12.0f", ["12.1"], None),
        ("12.0a", ["12.1"], "12.1"),
        ("9.0a 10.0a", ["9.0", "12.0"], "12.0"),
        (None, ["12.0"], None),
    ],
)
def test_a_gpu_that_the_list_leaves_out(
    text: str | None, capabilities: list[str], missed: str | None, tmp_path: Path
) -> None:
    environ = toolkit(tmp_path / "cuda", "13.0")
    if text is not None:
        environ["FLASHINFER_CUDA_ARCH_LIST"] = text
    told = gpu_warnings(chain(environ), Version("0.6.3"), capabilities)
    found = [warn.text for warn in told if warn.code == "arch_misses_gpu"]
    assert len(found) == (missed is not None)
    assert all(f"compute capability {missed}:" in each for each in found)


@pytest.mark.parametrize(
    ("release", "cuda", "torch_cuda", "capability", "found"),
    [
        ("0.6.3", "12.6", "12.9", "12.0", {"arch_beyond_nvcc": "cannot target sm_120a"}),
        ("0.6.3", "12.8", "12.9", "12.0", {}),
        ("0.6.9", "12.8", "12.8", "12.0", {"arch_beyond_nvcc": "12.0 requires CUDA 12.9"}),
        (
            "0.6.9",
            "12.8",
            "12.9",
            "12.1",
            {"arch_beyond_nvcc": "cannot target sm_121a", "torch_asks": "is compiled for sm_120f"},
        ),
        ("0.7.4", "13.0", "13.0", "12.0", {}),
        ("0.7.4", "13.0", "13.0", "10.7", {}),
        ("0.7.4", "12.6", "12.9", "9.0", {}),
    ],
)
def test_a_gpu_that_nvcc_or_flashinfer_has_no_target_for(
    release: str,
    cuda: str,
    torch_cuda: str,
    capability: str,
    found: dict[str, str],
    tmp_path: Path,
) -> None:
    here = chain(toolkit(tmp_path / "cuda", cuda), release=release, torch_cuda=torch_cuda)
    told = {warn.code: warn.text for warn in gpu_warnings(here, Version(release), [capability])}
    assert told.keys() == found.keys()
    assert all(found[code] in text for code, text in told.items())


def test_what_flashinfer_asks_torch_itself_is_told_with_us_and_without(tmp_path: Path) -> None:
    environ = toolkit(tmp_path / "cuda", "12.8") | {"FLASHINFER_CUDA_ARCH_LIST": "12.0a"}
    for setting in ("torch", "nvcc"):
        environ["FLASHINFER_SHIM_CUDA_VERSION"] = setting
        assert list(warned(environ, release="0.6.13", torch_cuda="12.9")) == ["torch_asks"]
    assert warned(environ, release="0.6.3", torch_cuda="12.9") == {}


# --- driver ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "runs", "torch_cuda", "old"),
    [
        ("550.54.15", "12.4", "13.0", True),
        ("550.54.15", "12.4", "12.9", False),
        ("580.65.06", "13.0", "13.0", False),
        ("450.80.02", "11.0", "12.4", True),
        ("396.26", "None", "12.4", True),
        ("999.1", "None", "13.0", False),
    ],
)
def test_a_driver_of_an_older_major_release_runs_nothing(
    version: str,
    runs: str,
    torch_cuda: str,
    old: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue Feb 20 2024\n"
    monkeypatch.setattr(driver, "FILES", (tmp_path / "none", file(tmp_path / "version", line)))
    here = driver.find()
    assert here is not None
    assert (here.version, str(here.cuda)) == (version, runs)
    environ = toolkit(tmp_path / "cuda", torch_cuda)
    found = warned(environ, torch_cuda=torch_cuda)
    assert list(found) == (["driver_old"] if old else [])


# --- the cache ------------------------------------------------------------------------------------


def cached(folder: Path, **environ: str) -> dict[str, Warn]:
    """The warnings of an environment whose toolkit is in order."""
    return warned(toolkit(folder / "cuda", "13.0") | environ)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    file(tmp_path / "file" / ".cache")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    for name, found in (("file", "is a file, not a directory"), ("dangling", "is a link to")):
        warn = cached(tmp_path, FLASHINFER_WORKSPACE_BASE=str(tmp_path / name))["cache_unusable"]
        assert found in warn.text
        assert "its import fails" in warn.text
        assert "FLASHINFER_WORKSPACE_BASE" in warn.action


@pytest.mark.parametrize("made", [".", ".cache/flashinfer/0.6.3/90a/cached_ops"])
def test_a_cache_that_belongs_to_another_user(made: str, run_child: RunChild) -> None:
    # Not below pytest's own directory, which nobody else may enter.
    with tempfile.TemporaryDirectory() as base:
        directory = Path(base, made)
        directory.mkdir(parents=True, exist_ok=True)
        for each in (directory, *directory.parents):
            if each.is_relative_to(base):
                each.chmod(0o555 if each == directory else 0o777)
        child = run_child(
            f"""
            import json, os
            from shim.toolchain import cache
            if os.getuid() == 0:
                os.setreuid(65534, 0)  # root may write anywhere; access() asks for the real user
            look = lambda: cache.look({{"FLASHINFER_WORKSPACE_BASE": {base!r}}}, "0.6.3").problem
            found = look()
            os.chmod({str(directory)!r}, 0o777)
            print(json.dumps([found, look()]))
            """
        )
        assert child.json == [f"{directory} is not writable for this user", ""]


@pytest.mark.parametrize(
    ("mount", "code", "found"),
    [
        ("rw,relatime - nfs4 host:/export rw", "cache_shared", "on nfs4"),
        ("rw,relatime - lustre host:/export rw", "cache_shared", "on lustre"),
        ("ro,relatime - ext4 /dev/sda ro", "cache_unusable", "mounted read-only"),
        ("rw,relatime - overlay overlay ro", "cache_unusable", "mounted read-only"),
        ("rw,noexec - tmpfs tmpfs rw", "cache_noexec", "cannot be loaded"),
        ("rw,relatime - overlay overlay rw", None, ""),
        ("rw,relatime - fuse.overlayfs overlay rw", None, ""),
    ],
)
def test_the_file_system_of_the_cache(
    mount: str, code: str | None, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "a base"
    base.mkdir()
    point = str(base).replace(" ", "\\040")
    text = f"27 1 8:1 / / rw - ext4 /dev/root rw\n28 27 0:9 / {point} {mount}\n29 28 torn\n"
    monkeypatch.setattr(cache, "MOUNTS", file(tmp_path / "mountinfo", text))
    told = cached(tmp_path, FLASHINFER_WORKSPACE_BASE=str(base))
    assert list(told) == ([code] if code else [])
    assert all(found in warn.text for warn in told.values())
    assert cached(tmp_path, FLASHINFER_WORKSPACE_BASE=str(tmp_path)) == {}  # on the one above


@pytest.mark.parametrize(
    ("blocks", "inodes", "code", "found"),
    [
        (0, 9, "cache_unusable", "is full"),
        (1 << 30, 0, "cache_unusable", "no inode left"),
        (100 << 8, 9, "cache_space", "has 105 MB left"),
        (1 << 30, 9, None, ""),
    ],
)
def test_the_room_in_the_cache(
    blocks: int,
    inodes: int,
    code: str | None,
    found: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = (4096, 4096, 1 << 40, blocks, blocks, 1 << 20, inodes, inodes, 0, 255)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(room))
    told = cached(tmp_path)
    assert list(told) == ([code] if code else [])
    assert all(found in warn.text for warn in told.values())


def test_a_base_of_nothing_is_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warn = cached(tmp_path, FLASHINFER_WORKSPACE_BASE="")["cache_relative"]
    assert "'.cache/flashinfer', relative to each process's working directory" in warn.text
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    warn = cached(tmp_path, FLASHINFER_WORKSPACE_BASE="")["cache_unusable"]
    assert "is relative, and the working directory is gone" in warn.text


def test_a_user_without_a_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    warn = cached(tmp_path, FLASHINFER_WORKSPACE_BASE=str(tmp_path))["cache_unusable"]
    assert "there is no home directory" in warn.text
    assert warn.action.startswith("set HOME")


# --- locks ----------------------------------------------------------------------------------------


def lock_file(base: Path, text: str = "", hours: float = 0) -> Path:
    """A lock of a build, taken so long ago."""
    lock = file(base / ".cache/flashinfer/0.6.3/90a/cached_ops/tmp/norm.lock", text)
    taken = lock.stat().st_mtime - hours * 3600
    os.utime(lock, (taken, taken))
    return lock


def ended() -> int:
    """The number of a process that was."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def stale(folder: Path) -> Iterable[str]:
    found = cached(folder, FLASHINFER_WORKSPACE_BASE=str(folder))
    return [warn.text for code, warn in found.items() if code == "stale_lock"]


def test_a_lock_that_a_killed_build_left_behind_holds_nobody_up(tmp_path: Path) -> None:
    lock_file(tmp_path, hours=9)
    assert stale(tmp_path) == []


def test_a_lock_that_is_held_for_hours_is_told_with_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = lock_file(tmp_path, hours=9)
    with lock.open("r+") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        (here,) = cache.look({"FLASHINFER_WORKSPACE_BASE": str(tmp_path)}, "0.6.3").locks
        if here.holder is None:
            pytest.skip("/proc/locks does not show this lock")
        # Taking it leaves the file as it is: that a build goes on shows by the process.
        assert stale(tmp_path) == []
        monkeypatch.setattr(cache, "_running_s", lambda process: (9 * 3600.0,))
        (text,) = stale(tmp_path)
        assert f"{lock} is held by process {os.getpid()}, and for 9 h no sign of a build" in text
        file(lock.parent.parent / "norm" / "norm.o")
        assert stale(tmp_path) == []


def test_who_waits_for_a_lock_does_not_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = lock_file(tmp_path).stat()
    place = f"{os.major(state.st_dev):02x}:{os.minor(state.st_dev):02x}:{state.st_ino} 0 EOF\n"
    lines = (f"7: FLOCK  ADVISORY  WRITE 4711 {place}", f"7: -> FLOCK  ADVISORY  WRITE 1 {place}")
    monkeypatch.setattr(cache, "LOCKS", file(tmp_path / "locks", "".join(lines)))
    (lock,) = cache.look({"FLASHINFER_WORKSPACE_BASE": str(tmp_path)}, "0.6.3").locks
    assert lock.holder == 4711


def test_a_lock_that_is_the_file_itself_outlives_its_process(tmp_path: Path) -> None:
    pid = ended()
    lock = lock_file(tmp_path, f"{pid}\n{os.uname().nodename}\n")
    assert f"{lock} is held by process {pid}, which has ended: all" in next(iter(stale(tmp_path)))
    lock_file(tmp_path, f"{os.getpid()}\n{os.uname().nodename}\n")
    assert stale(tmp_path) == []
    lock_file(tmp_path, f"{pid}\nanother-host\n", hours=9)
    (text,) = stale(tmp_path)
    assert "a process of another machine or container, and was made 9 h ago" in text
    lock_file(tmp_path, "\u00b2")  # a digit, and no number
    assert stale(tmp_path) == []


# --- the command ----------------------------------------------------------------------------------


def test_the_toolchain_is_one_screen(run_child: RunChild, tmp_path: Path) -> None:
    torch = fake_torch(tmp_path / "fake", "12.9")
    env = pythonpath(ROOT, torch, path("0.7.4")) | toolkit(tmp_path / "cuda\udcff", "12.6")
    env |= {"COLUMNS": "100", "PATH": path_with_this_python()}
    env["PYTHONIOENCODING"] = "utf-8:strict"
    env["FLASHINFER_CUDA_ARCH_LIST"] = "9.0a"
    child = run_child(None, args=["-m", "shim", "check", "--toolchain"], env=env)
    assert child.returncode == 0, child
    assert len(child.stdout.splitlines()) <= 50, child
    letters = re.sub(r"\s", "", child.stdout)
    for expected in (
        r"/cuda\udcff(CUDA_HOME)",
        "nvcc12.6byitsownword",
        "compiledforsm_90a",
        "modulecache",
        "withoutus:nvcc's12.6",
        "withus:torch's12.9",
        "Warning:",
        "willbeapplied",
    ):
        assert expected in letters, child


def test_nvcc_is_started_by_the_option_alone(run_child: RunChild, tmp_path: Path) -> None:
    env = toolkit(tmp_path / "cuda", "13.0")
    nvcc(tmp_path / "cuda", f"echo started >> {tmp_path}/log; echo 'release 13.0, V13.0.1'")
    without = check(run_child, release="0.6.3", env=env)
    assert without.report["nvcc"] is None
    assert not (tmp_path / "log").exists()
    asked = check(run_child, "--toolchain", release="0.6.3", env=env)
    assert asked.report["nvcc"] == {"release": "13.0", "problem": ""}
    assert (tmp_path / "log").read_text().startswith("started")
    assert asked.warnings == [], asked
    assert json.dumps(asked.report["told"]["differences"]) == "[]"
