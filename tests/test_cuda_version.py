"""get_cuda_version: what it answers, that it traces, and what is said when toolkits disagree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import RunChild
from packaging.version import Version

from shim.toolchain import finding

TESTS = Path(__file__).parent

PRELUDE = f"""
    import json, sys
    sys.path.append({str(TESTS)!r})
    from child_side import *
    import torch
"""

TRACES = (
    PRELUDE
    + """
    pretend()
    torch.version.cuda = "12.8"
    import flashinfer
    from flashinfer.jit.cpp_ext import get_cuda_version, is_cuda_version_at_least
    copies = {
        f"{name}.{key}": value for name, module in list(sys.modules.items())
        if name.startswith("flashinfer") for key, value in list(vars(module).items())
        if key in ("is_cuda_version_at_least", "get_cuda_version")
    }

    def traced(function):
        def body(x):
            if function is get_cuda_version or function.__name__ == "get_cuda_version":
                return x + function().minor
            return x + 1 if function("12.8") and not function("12.9") else x
        torch._dynamo.reset()
        run = torch.compile(body, fullgraph=True, backend="eager")
        return error_of(lambda: run(torch.zeros(1))) or run(torch.zeros(1)).tolist()

    print(json.dumps({name: traced(copy) for name, copy in copies.items()}))
"""
)


def test_every_copy_traces_with_us_and_none_without(
    run_child: RunChild, each_signature: str
) -> None:
    without = run_child(TRACES, release=each_signature, shim=False).json
    assert {error[0] for error in without.values()} == {"Unsupported"}
    answers = run_child(TRACES, release=each_signature).json
    assert answers == {name: [8.0 if "get_cuda" in name else 1.0] for name in answers}
    assert len(answers) == len(without) >= 4


ANSWERS = (
    PRELUDE
    + """
    torch.version.cuda = CUDA
    from flashinfer.jit import cpp_ext
    f = cpp_ext.get_cuda_version
    subprocesses = 0  # importing FlashInfer starts some of its own
    first = error_of(f) or str(f())
    same = error_of(f) is not None or f() is f()
    hits = f.cache_info().hits
    f.cache_clear()
    cleared = f.cache_info().currsize
    f.cache_parameters()
    print(json.dumps([first, same, hits > 0, cleared, subprocesses]))
"""
)


def answers(run_child: RunChild, cuda: str | None, shim: bool = True, **env: str) -> list[object]:
    count = """
    import subprocess
    subprocesses = 0
    start = subprocess.Popen.__init__
    def counting(*args, **kwargs):
        global subprocesses
        subprocesses += 1
        start(*args, **kwargs)
    subprocess.Popen.__init__ = counting
"""
    code = count + ANSWERS.replace("CUDA\n", f"{cuda!r}\n")
    code = code.replace(", subprocesses]", ", subprocesses > 0]")
    answer: list[object] = run_child(code, release="0.6.3", shim=shim, env=env).json
    return answer


def fake_nvcc(root: Path, release: str, version_json: bool = True) -> Path:
    nvcc = root / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.1'\n")
    nvcc.chmod(0o755)
    if version_json:
        stated = {"cuda": {"version": f"{release}.0"}, "cuda_nvcc": {"version": f"{release}.61"}}
        (root / "version.json").write_text(json.dumps(stated))
    return root


def test_it_answers_torchs_cuda_cached_and_without_a_process(
    run_child: RunChild, tmp_path: Path
) -> None:
    home = str(fake_nvcc(tmp_path / "cuda", "13.0", version_json=False))
    assert answers(run_child, "13.0", CUDA_HOME=home) == ["13.0", True, True, 0, False]
    # The original starts nvcc.
    assert answers(run_child, "13.0", shim=False, CUDA_HOME=home)[0] == "13.0"
    assert answers(run_child, "13.0", shim=False, CUDA_HOME=home)[4] is True


def test_with_a_cpu_build_of_torch_the_original_answers(
    run_child: RunChild, tmp_path: Path
) -> None:
    home = str(fake_nvcc(tmp_path / "cuda", "12.6"))
    assert answers(run_child, None, CUDA_HOME=home)[0] == "12.6"


def test_where_the_original_raises_its_own_text_is_raised(
    run_child: RunChild, tmp_path: Path
) -> None:
    ours = answers(run_child, None, CUDA_HOME=str(tmp_path))[0]
    assert ours == answers(run_child, None, shim=False, CUDA_HOME=str(tmp_path))[0]
    assert isinstance(ours, list)
    assert ours[0] == "RuntimeError"


def test_nvcc_is_asked_where_the_user_wants_its_version(
    run_child: RunChild, tmp_path: Path
) -> None:
    home = str(fake_nvcc(tmp_path / "cuda", "12.9"))
    answer = answers(run_child, "13.0", CUDA_HOME=home, FLASHINFER_SHIM_CUDA_VERSION="nvcc")
    assert answer[:3] == ["12.9", True, True]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("echo nothing of use", "--version states no release: 'nothing of use'; torch"),
        ("sleep 600", "--version has said nothing after 0.5 s, and was ended; torch"),
    ],
)
def test_where_nvcc_cannot_be_asked_torch_answers_and_a_line_says_so(
    run_child: RunChild, tmp_path: Path, body: str, problem: str
) -> None:
    code = (
        PRELUDE
        + """
    from shim.toolchain import asking
    asking.TIMEOUT_S = 0.5
    torch.version.cuda = "13.0"
    from flashinfer.jit.cpp_ext import get_cuda_version
    print(json.dumps(str(get_cuda_version())))
    """
    )
    broken = tmp_path / "cuda"
    (broken / "bin").mkdir(parents=True)
    (broken / "bin" / "nvcc").write_text(f"#!/bin/sh\n{body}\n")
    (broken / "bin" / "nvcc").chmod(0o755)
    env = {"CUDA_HOME": str(broken), "FLASHINFER_SHIM_CUDA_VERSION": "nvcc"}
    child = run_child(code, release="0.6.3", env=env)
    assert child.json == "13.0"
    (line,) = child.stderr.splitlines()
    assert problem in line
    assert "CUDA_HOME" in line


@pytest.mark.parametrize(
    ("toolkit", "torch_cuda", "env", "lines"),
    [
        ("12.6", "13.0", {}, 1),
        ("12.8", "13.0", {}, 0),  # this release decides nothing between these two
        ("13.0", "13.0", {}, 0),
        ("13.0", "12.8", {}, 0),
        ("12.6", "13.0", {"FLASHINFER_SHIM_CUDA_VERSION": "nvcc"}, 0),
        ("12.6", "13.0", {"FLASHINFER_SHIM_LOG": "off"}, 0),
    ],
)
def test_a_toolkit_older_than_torchs_cuda_is_one_line_that_names_the_toggle(
    run_child: RunChild,
    tmp_path: Path,
    toolkit: str,
    torch_cuda: str,
    env: dict[str, str],
    lines: int,
) -> None:
    home = fake_nvcc(tmp_path / "cuda", toolkit)
    code = f"import torch\ntorch.version.cuda = {torch_cuda!r}\nimport flashinfer"
    child = run_child(code, release="0.6.3", env={"CUDA_HOME": str(home), **env})
    assert child.returncode == 0, child
    said = child.stderr.splitlines()
    assert len(said) == lines, child
    if lines:
        assert "nvcc does not know the option -static-global-template-stub=false" in said[0]
        assert "FLASHINFER_SHIM_CUDA_VERSION=nvcc" in said[0]
        assert toolkit in said[0]
        assert torch_cuda in said[0]


# --- the toolkit, without a process -------------------------------------------------------------


def test_the_toolkit_is_chosen_as_flashinfer_chooses_it(tmp_path: Path) -> None:
    home = fake_nvcc(tmp_path / "home", "12.8")
    path = fake_nvcc(tmp_path / "path", "12.9")
    on_path = fake_nvcc(tmp_path / "on_path", "13.0")
    environ = {"PATH": str(on_path / "bin")}
    found = finding.find(environ)
    assert found is not None
    assert (found.home, found.chosen_by) == (str(on_path), "nvcc on PATH")
    found = finding.find({**environ, "CUDA_PATH": str(path)})
    assert found is not None
    assert (found.home, found.chosen_by, found.release) == (str(path), "CUDA_PATH", Version("12.9"))
    found = finding.find({**environ, "CUDA_PATH": str(path), "CUDA_HOME": str(home)})
    assert found is not None
    assert (found.home, found.nvcc, found.release) == (str(home), True, Version("12.8"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cuda": 1}', '{"cuda": {"version": "x"}}', "{"])
def test_a_version_json_that_states_nothing_gives_no_release(tmp_path: Path, text: str) -> None:
    (tmp_path / "version.json").write_text(text)
    found = finding.find({"CUDA_HOME": str(tmp_path)})
    assert found is not None
    assert (found.release, found.nvcc) == (None, False)


def test_cuda_h_states_the_release_where_version_json_is_missing(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda.h").write_text("/* x */\n#define CUDA_VERSION 12080\n")
    found = finding.find({"CUDA_HOME": str(tmp_path)})
    assert found is not None
    assert found.release == Version("12.8")
