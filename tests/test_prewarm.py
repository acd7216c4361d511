"""`flashinfer-shim prewarm`: FlashInfer's own builds, ahead of time, once for all ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import children
import pytest
from conftest import CopyRelease, RunChild
from toolkit import SOURCES, Toolkit, with_sources

from shim import limited
from shim.cli import main
from shim.prewarm import building
from shim.prewarm.child import _announce

PREWARM = ["-m", "shim", "prewarm", "rmsnorm", "gemma_rmsnorm", "--json", "--arch", "9.0a"]

# FlashInfer alone gets the module from where we left it. Its library holds no kernel, and needs
# none to be found up to date and to be loaded.
LOADS = """
    import json, sys
    from flashinfer.jit.norm import gen_norm_module
    spec = gen_norm_module()
    def files():
        return {path.name: path.stat().st_mtime_ns for path in spec.build_dir.iterdir()}
    before = files()
    module = spec.build_and_load()
    print(json.dumps([before == files(), "norm.so" in before, type(module).__name__]))
"""


@pytest.fixture
def toolkit(tmp_path: Path) -> Toolkit:
    return Toolkit(tmp_path / "cuda")


def only_module(child: children.Child) -> dict[str, Any]:
    """The one that is planned: both ops need the same."""
    (run,) = json.loads(child.stdout)["runs"]
    (module,) = run["modules"]
    assert module["module"] == "norm"
    assert module["ops"] == ["rmsnorm", "gemma_rmsnorm"]
    return module  # type: ignore[no-any-return]


def test_what_is_built_is_loaded_by_flashinfer_itself_without_a_rebuild(
    run_child: RunChild, copy_release: CopyRelease, toolkit: Toolkit
) -> None:
    tree = with_sources(copy_release, "0.7.4")
    child = run_child(None, args=PREWARM, release=tree, env=toolkit.env)
    assert child.returncode == 0, child
    assert only_module(child)["state"] == "built", child
    assert sorted(toolkit.compiled) == sorted(SOURCES)

    child = run_child(LOADS, release=tree, env=toolkit.env, shim=False)
    assert child.json == [True, True, "Module"], child
    assert len(toolkit.compiled) == len(SOURCES)


def test_a_killed_prewarm_leaves_neither_a_lock_nor_a_process_nor_a_broken_module(
    run_child: RunChild, copy_release: CopyRelease, toolkit: Toolkit, tmp_path: Path
) -> None:
    tree = with_sources(copy_release, "0.6.3")
    os.mkfifo(toolkit.hold)
    held = os.open(toolkit.hold, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(held, True)
    prewarm = subprocess.Popen(
        [sys.executable, *PREWARM],
        env=children.environment(tmp_path, release=tree, env=toolkit.env),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with open(toolkit.hold, "w") as open_until_then, open(held) as compilers:
        assert compilers.readline().strip().endswith(".cu")
        prewarm.send_signal(signal.SIGKILL)
        prewarm.wait()
        open_until_then.close()
        compilers.read()  # to its end, which comes when no compiler lives
    toolkit.hold.unlink()

    child = run_child(None, args=PREWARM, release=tree, env=toolkit.env)
    assert child.returncode == 0, child
    module = only_module(child)
    assert module["state"] == "built", child
    assert "half" not in "".join(
        p.read_text("latin-1") for p in Path(module["path"]).parent.glob("*.o")
    )


def test_a_process_that_has_got_the_number_of_a_child_of_ours_is_not_killed() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        limited.end_session(other.pid)
        assert other.communicate(b"alive")[0] == b"alive"


def test_of_four_ranks_one_builds_and_one_that_is_killed_leaves_the_lock_to_the_next(
    run_child: RunChild, copy_release: CopyRelease, toolkit: Toolkit
) -> None:
    child = run_child(
        """
        import json, os, sys
        from flashinfer.jit.norm import gen_norm_module
        from shim.prewarm import building
        spec = gen_norm_module()
        spec.build_dir.mkdir(parents=True)
        directory = spec.lock_path.parent
        start, go = os.pipe()
        answers, answer = os.pipe()

        def rank(number):
            if os.fork() == 0:
                os.read(start, 1)
                with building.alone(directory, lambda owner: None):
                    if number == 0:
                        os.kill(os.getpid(), 9)
                    state = building.build(spec, lambda **event: None)["state"]
                os.write(answer, (state + " ").encode())
                os._exit(0)

        rank(0)
        os.write(go, b"x")
        killed = os.wait()[1]
        for number in range(1, 5):
            rank(number)
        os.write(go, b"xxxx")
        statuses = [os.wait()[1] for _ in range(4)]
        states = os.read(answers, 4096).decode().split()
        print(json.dumps([killed, statuses, sorted(states)]))
        """,
        release=with_sources(copy_release, "0.6.3"),
        env=toolkit.env,
    )
    assert child.json == [9, [0] * 4, ["built", "present", "present", "present"]], child
    assert sorted(toolkit.compiled) == sorted(SOURCES)


def test_a_process_that_waits_says_for_whom(tmp_path: Path) -> None:
    told: list[str] = []
    with building.alone(tmp_path, told.append):
        pass
    assert told == []
    code = (
        "import sys\nfrom pathlib import Path\nfrom shim.prewarm import building\n"
        "with building.alone(Path(sys.argv[1]), print):\n    print('in', flush=True)\n    input()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=children.ROOT
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"

        def waiting(owner: str) -> None:
            told.append(owner)
            other.kill()  # SIGKILL

        with building.alone(tmp_path, waiting):
            pass
    assert told == [f"process {other.pid} on {os.uname().nodename}"]


def test_an_architecture_that_nvcc_does_not_know_is_refused_in_its_own_words(
    toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def asked(target: str) -> str:
        flags = [f"-gencode=arch=compute_{target},code=sm_{target}", "-O3"]
        return building.refusal(SimpleNamespace(extra_cuda_cflags=flags), {})

    monkeypatch.setattr(building, "nvcc", lambda: [str(toolkit.nvcc)])
    assert asked("90a") == ""
    # What is there already is not asked for: nothing has to be compiled.
    jit: Any = ModuleType("flashinfer.jit")
    jit.env = SimpleNamespace(FLASHINFER_JIT_DIR=tmp_path)
    monkeypatch.setitem(sys.modules, "flashinfer", ModuleType("flashinfer"))
    monkeypatch.setitem(sys.modules, "flashinfer.jit", jit)
    flags = ["-gencode=arch=compute_120f,code=sm_120f"]
    libraries = {name: tmp_path / f"{name}.so" for name in ("there", "missing")}
    libraries["there"].touch()
    specs = {
        name: SimpleNamespace(extra_cuda_cflags=flags, get_library_path=partial(Path, path))
        for name, path in libraries.items()
    }
    made, told = SimpleNamespace(specs=specs, ops={name: [] for name in specs}), []
    _announce(made, {}, lambda **event: told.append(event))
    errors = {module["module"]: module["error"] for module in told[0]["modules"]}
    assert [*made.specs, errors["there"]] == ["there", ""]
    assert "cannot target sm_120f" in errors["missing"]
    assert asked("120f") == (
        f"{toolkit.nvcc} cannot target sm_120f: "
        "nvcc fatal   : Unsupported gpu architecture 'compute_120f'"
    )


def test_without_a_gpu_there_is_no_native_architecture(
    run_child: RunChild, toolkit: Toolkit
) -> None:
    env = {**toolkit.env, "FLASHINFER_CUDA_ARCH_LIST": None}
    child = run_child(None, args=["-m", "shim", "prewarm", "rmsnorm"], release="0.6.3", env=env)
    assert child.returncode == 1, child
    assert "native: there is no GPU here whose architecture could be built for" in child.stdout
    assert toolkit.compiled == []


def test_without_a_compiler_or_ninja_it_says_what_is_missing_and_what_to_do(
    toolkit: Toolkit,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def said() -> str:
        assert main(["prewarm", "rmsnorm", "--arch", "9.0a"]) == 1
        out, err = capfd.readouterr()
        assert out == ""
        return err

    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nothing"))
    told = said()
    assert str(tmp_path / "nothing") in told
    assert "(CUDA_HOME); set CUDA_HOME to a CUDA toolkit with bin/nvcc" in told
    monkeypatch.setenv("CUDA_HOME", str(toolkit.home))
    assert "FlashInfer is not installed in this environment" in said()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no ninja on PATH, by which FlashInfer builds: pip install ninja" in said()


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["rmsnrom"], "'rmsnrom' is no op that `flashinfer-shim coverage` lists"),
        (["cuda_version"], "'cuda_version' is no op"),
        (["--arch", "sm_90a"], "'sm_90a' is neither native nor of the form"),
        (["--jobs", "0"], "'0' is not a number from 1 on"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_done(
    arguments: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["prewarm", *arguments])
    assert exit.value.code == 2
    assert fault in capsys.readouterr().err
