"""FLASHINFER_SHIM_JIT: what FlashInfer builds and loads is told, and refused inside a capture.

No machine of the tests has a GPU: a stream that captures is pretended, where one is wanted.
"""

from __future__ import annotations

import io
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import RunChild
from toolkit import Toolkit

from shim import announce, progress, watch

TESTS = Path(__file__).parent

# One module of one source, built by upstream's own ninja files.
PRELUDE = f"""
    import json, pathlib, sys
    sys.path.append({str(TESTS)!r})
    import child_side
    import torch, flashinfer, shim
    from flashinfer.jit.core import JitSpec, gen_jit_spec
    source = pathlib.Path("one.cu")
    source.write_text("// a kernel")
    spec = gen_jit_spec("one", [source.absolute()])
    begin = torch.cuda.CUDAGraph.capture_begin
"""
WATCHED = (
    PRELUDE
    + """
    def capture():
        try:
            torch.cuda.CUDAGraph.capture_begin(None)
        except Exception:
            pass  # there is no GPU

    def say(what):
        print(f"== {what}", file=sys.stderr, flush=True)

    def load():
        return type(spec.build_and_load()).__name__

    say("cold")
    loaded = [load()]
    def files():
        return {path.name: path.stat().st_mtime_ns for path in spec.build_dir.iterdir()}
    before = files()
    loaded.append(load())
    untouched = before == files()
    say("shadow")
    from shim.opaque import shadow
    from shim.opaque.identity import original_of
    from shim.patches.ops import OPS
    from shim.proof.making import fake
    child_side.pretend("9.0")
    with child_side.fake_cuda():
        needed = shadow.run(original_of(flashinfer.rmsnorm), OPS["rmsnorm"].example(fake(), 4))[1]
    say("captured")
    capture()
    back = torch.cuda.CUDAGraph.capture_begin is not begin
    source.write_text("// another kernel")
    loaded.append(load())
    say("inside")
    torch.cuda.is_initialized = torch.cuda.is_current_stream_capturing = lambda: True
    loaded.append(load())
    spec = gen_jit_spec("two", [source.absolute()])
    error = child_side.error_of(load)
    say("deactivated")
    shim.deactivate()
    loaded.append(load())
    say("active again, until before anything is captured")
    shim.activate()
    ours = torch.cuda.CUDAGraph.capture_begin is begin
    shim.deactivate()
    back &= ours and torch.cuda.CUDAGraph.capture_begin is not begin
    kept = [JitSpec.build_and_load.__module__, len(needed), back, untouched]
    print(json.dumps([set(loaded) == {"Module"}, error, kept]))
    """
)


@pytest.fixture
def toolkit(tmp_path: Path) -> Toolkit:
    return Toolkit(tmp_path / "cuda")


def test_builds_and_loads_are_told_and_those_that_come_late_are_warnings(
    run_child: RunChild, toolkit: Toolkit
) -> None:
    env = {**toolkit.env, "FLASHINFER_SHIM_JIT": "error", "FLASHINFER_SHIM_LOG": "info"}
    child = run_child(WATCHED, release="0.7.4", env=env)
    loaded, error, kept = child.json
    assert loaded, child
    assert kept == ["flashinfer.jit.core", 1, True, True]
    said = dict(part.split("\n", 1) for part in child.stderr.split("== ")[1:])
    built, again = said["cold"].splitlines()
    assert "module one: built in" in built
    assert "(neither an installed package nor the cache had it; first use in this process)" in built
    assert "module one: loaded in" in again
    assert again.endswith("(the cache had it; used before in this process)")
    assert said["shadow"] == said["deactivated"] == ""
    (late,) = said["captured"].splitlines()
    assert "built again in" in late
    assert "after a CUDA graph was captured; build it ahead with `flashinfer-shim prewarm`" in late
    assert said["inside"].endswith("(the cache had it; used before in this process)\n")
    kind, text = error
    assert kind == "RuntimeError"
    for words in ("FLASHINFER_SHIM_JIT=error", "module two", "once before capturing", "prewarm"):
        assert words in text
    # The third module was built once nobody watched.
    assert len(toolkit.compiled) == 3


def test_off_leaves_upstreams_functions_and_torchs_and_says_nothing(
    run_child: RunChild, toolkit: Toolkit
) -> None:
    code = """
    from flashinfer.jit import cpp_ext
    from shim.opaque.identity import original_of
    shim.warm()
    spec.build_and_load()
    functions = (JitSpec.build_and_load, cpp_ext.run_ninja)
    jit = [[str(r.verdict), r.reason] for r in shim.status() if r.patch.startswith("jit_")]
    ours = [original_of(f) is not None for f in functions]
    print(json.dumps([jit, ours, begin.__module__]))
    """
    child = run_child(PRELUDE + code, release="0.6.3", env=toolkit.env)
    off = ["disabled", "FLASHINFER_SHIM_JIT is off"]
    assert child.json == [[off, off], [False, False], "torch.cuda.graphs"], child
    assert child.stderr == ""


# --- what is said of one module -----------------------------------------------------------------


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said, in a process of which nothing is known yet."""
    said: list[str] = []
    monkeypatch.setattr(watch, "_process", watch._Process())
    monkeypatch.setattr(announce, "info", lambda line: said.append(f"info: {line}"))
    monkeypatch.setattr(announce, "event", lambda line: said.append(f"warn: {line}"))
    return said


def spec(library: Path, *, is_aot: bool = False) -> Any:
    return SimpleNamespace(name="one", is_aot=is_aot, get_library_path=lambda: library)


def ninja_file(tmp_path: Path) -> Path:
    (tmp_path / "one").mkdir(exist_ok=True)
    return tmp_path / "one" / "build.ninja"


def test_what_was_installed_is_loaded_as_it_is(lines: list[str], tmp_path: Path) -> None:
    with watch.loading(spec(tmp_path / "one.so", is_aot=True)):
        pass
    assert "one: loaded in 0.0 s (it was installed; first use in this process)" in lines[0]
    assert lines[0].startswith("info: ")


def test_what_another_process_has_built_is_not_called_built(
    lines: list[str], tmp_path: Path
) -> None:
    file = ninja_file(tmp_path)
    library = file.with_name("one.so")
    with watch.loading(spec(library)):
        library.touch()  # while this process waits for upstream's lock
        with watch.building(file):
            pass
    assert "one: loaded in 0.0 s (another process has built it meanwhile;" in lines[0]


def test_a_build_that_nobody_loads_is_told_too(lines: list[str], tmp_path: Path) -> None:
    watch.warm()
    file = ninja_file(tmp_path)
    with watch.building(file):
        file.with_name("one.so").touch()
    assert lines[0].startswith("warn: FlashInfer's module one: built in 0.0 s")
    assert "after shim.warm() was called" in lines[0]
    with watch.building(tmp_path / "flashinfer_jit.ninja"):
        pass
    assert "flashinfer_jit: built in 0.0 s (several modules at once;" in lines[1]


def test_a_module_that_is_there_is_neither_a_warning_nor_refused_when_it_is_asked_for_again(
    lines: list[str], tmp_path: Path
) -> None:
    (tmp_path / "one.so").touch()
    one = spec(tmp_path / "one.so")
    watch.warm()
    watch.start(raising=True, capturing=lambda: False)
    for _ in range(2):
        with watch.loading(one):
            pass
    watch.start(raising=True, capturing=lambda: True)
    with watch.loading(one):
        pass
    assert [line[:5] for line in lines] == ["warn:", "info:", "info:"]
    two = SimpleNamespace(name="two", get_library_path=lambda: tmp_path / "two.so")
    with pytest.raises(RuntimeError, match="module two is wanted inside"), watch.loading(two):
        pass


def test_a_fault_of_upstreams_is_raised_and_told(lines: list[str], tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no space"), watch.loading(spec(tmp_path / "one.so")):
        raise OSError("no space")
    assert "one: failed in 0.0 s (OSError; first use in this process)" in lines[0]


def test_a_module_that_tells_nothing_of_itself_is_loaded_all_the_same(lines: list[str]) -> None:
    with watch.loading(object()):
        pass
    assert "compiled in" in lines[0]


def test_a_module_that_is_loaded_within_another_is_told_by_itself(
    lines: list[str], tmp_path: Path
) -> None:
    inner = SimpleNamespace(name="two", get_library_path=lambda: tmp_path / "two.so")
    with watch.loading(spec(tmp_path / "one.so")), watch.loading(inner):
        pass
    assert ["two" in lines[0], "one" in lines[1]] == [True, True]


# --- progress -----------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """Says when something was written."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal, self.written = terminal, threading.Event()

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


def test_a_terminal_shows_what_takes_so_long_and_is_clean_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal(terminal=True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    with progress.progress("one is being built"):
        assert terminal.written.wait(60)
    first, *_ = terminal.getvalue().split("\r\x1b[K")[1:]
    assert first == "flashinfer-shim: one is being built, 0 s"
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_file_or_a_terminal_where_nothing_is_to_be_said_shows_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    for terminal, level in ((False, "warn"), (True, "off")):
        stream = Terminal(terminal=terminal)
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(announce, "_level", announce.LEVELS[level])
        before = threading.active_count()
        with progress.progress("one is being built"):
            assert threading.active_count() == before
        assert stream.getvalue() == ""
