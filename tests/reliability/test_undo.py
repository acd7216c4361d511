"""Taking it back: deactivate() under load, blocks without us, another version under a process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path

import children
import pytest
import releases
from conftest import RunChild

HERE = Path(__file__).parent
ROOT = releases.ROOT

START = f"""
    import importlib, json, os, signal, sys, threading, time
    sys.path.append({str(HERE)!r})
    import computing, shim, torch
    from shim import hook
    from computing import child_side, ours, replacements, rmsnorm, silu_and_mul

    x, weight = computing.arguments()

    def model():
        return silu_and_mul(rmsnorm(x, weight))

    wanted = model()
    verdicts = lambda: dict((r.patch, str(r.verdict)) for r in shim.status())
    kind = lambda error: error and error[0] + ": " + error[1].splitlines()[0]
"""

# The processes of replaced_child.py, and the event that each waits for.
PROCESSES = {
    "gate alone": "upgraded",
    "package begun": "upgraded",
    "required": "upgraded",
    "never compiled, upgraded": "upgraded",
    "never compiled, removed": "removed",
    "has compiled, upgraded": "upgraded",
    "has compiled, removed": "removed",
}
OTHER = "9.9.9"
MADE_ANEW = ("norm", "decode", "prefill")
MARK = "\nvars(__import__('sys')).setdefault('_other_version', []).append(__name__)\n"


def _wheel(checkout: Path, to: Path) -> Path:
    to.mkdir()
    build = "import hatchling.build, sys; hatchling.build.build_wheel(sys.argv[1])"
    children.output([sys.executable, "-c", build, to], cwd=checkout)
    (built,) = to.glob("*.whl")
    return built


@pytest.fixture
def wheels(tmp_path: Path) -> tuple[Path, Path]:
    """This version, and one whose modules tell that they were loaded."""
    checkout = tmp_path / "checkout"
    leave_out = (".git", ".venv*", ".cache", ".editable", "*_cache", "__pycache__", "dist", "docs")
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(*leave_out, "tests", "bench"))
    this = _wheel(checkout, tmp_path / "this")
    for file in (checkout / "shim").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if file == checkout / "shim" / "__init__.py":
            text = text.replace(f'__version__ = "{_version()}"', f'__version__ = "{OTHER}"')
            assert OTHER in text
        file.write_text(text + MARK, encoding="utf-8")
    return this, _wheel(checkout, tmp_path / "other")


def _version() -> str:
    import shim

    return shim.__version__


def _wait(until: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 600
    while not until():
        assert time.monotonic() < end, f"not done in time: {process.pid}"
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def test_in_a_block_all_is_as_without_us_and_after_it_what_was_compiled_is_valid_again(
    run_child: RunChild,
) -> None:
    look = """
    def look():
        error = kind(child_side.error_of(torch.compile(model, fullgraph=True, backend="eager")))
        parts = child_side.Counting()
        right = torch.equal(torch.compile(model, backend=parts)(), wanted)
        eager = torch.equal(model(), wanted)
        return [replacements(), ours(), error, right, len(parts.graphs), eager]
    """
    without = run_child(
        START + look + "\n    print(json.dumps(look()))", release="0.6.3", shim=False
    ).json
    assert without[0] == []
    assert without[2].startswith("Unsupported: ")
    code = (
        START
        + look
        + """
    before = replacements()
    in_force = [name for name, verdict in verdicts().items() if verdict == "applied"]
    identical = [sys.modules[name].__dict__.copy() for name in computing.MODULES]
    graphs = child_side.Counting()
    whole = torch.compile(model, fullgraph=True, backend=graphs)
    answers = dict(whole=torch.equal(whole(), wanted), graphs=len(graphs.graphs))
    with shim.disabled():
        answers["inside"] = look()
        answers["verdicts"] = sorted(set(verdicts().values()) & {"applied"})
        try:
            with shim.disabled():
                raise KeyError("the user's own")
        except KeyError:
            answers["nested"] = replacements()
        # What a reload makes is patched at the end, and so is what is imported for the first time.
        importlib.reload(sys.modules["flashinfer.norm"])
        importlib.import_module("flashinfer.concat_ops")
        shim.activate()
        answers["activated"] = replacements()
        mine = sys.modules["flashinfer.activation"].silu_and_mul
        theirs = [mine]
    answers["after"] = [
        set(before) <= set(replacements()), ours(),
        all(verdicts()[name] == "applied" for name in in_force),
        sys.modules["flashinfer.activation"].silu_and_mul is identical[1]["silu_and_mul"],
        mine is identical[1]["silu_and_mul"], computing.original_of(theirs[0]) is None,
        "flashinfer.concat_ops:concat_mla_k" in replacements(),
    ]
    again = torch.compile(lambda: silu_and_mul(x), fullgraph=True, backend=graphs)
    answers["again"] = torch.equal(again(), silu_and_mul(x))
    print(json.dumps(answers))
    """
    )
    child = run_child(code, release="0.6.3")
    assert child.json == {
        "whole": True,
        "graphs": 1,
        "inside": without,
        "verdicts": [],
        "nested": [],
        "activated": [],
        "after": [True, [True, True], True, True, True, True, True],
        "again": True,
    }


def test_a_function_that_is_compiled_on_both_sides_has_a_graph_for_each(
    run_child: RunChild,
) -> None:
    code = (
        START
        + """
    whole, counts, right = child_side.Counting(), [], []
    torch._dynamo.config.cache_size_limit = 64
    run = torch.compile(model, backend=whole)
    for _ in range(3):
        right.append(torch.equal(run(), wanted))
        counts.append(len(whole.graphs))
        with shim.disabled():
            right.append(torch.equal(run(), wanted))
            counts.append(len(whole.graphs))
    # Two blocks that overlap, in threads: the last one to end puts the patches in.
    first, second, entered = threading.Event(), threading.Event(), threading.Barrier(3)
    def block(leave):
        with shim.disabled():
            entered.wait()
            leave.wait()
    threads = [threading.Thread(target=block, args=(event,)) for event in (first, second)]
    for thread in threads: thread.start()
    entered.wait()
    overlap = [ours()]
    for event, thread in zip((first, second), threads):
        event.set()
        thread.join()
        overlap.append(ours())
    # Ctrl-C while a block that ends waits for what a thread compiles: the patches are in.
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has none
    compiling, done = threading.Event(), threading.Event()
    def backend(graph, inputs):
        compiling.set()
        done.wait()
        return graph.forward
    def interrupt():
        while not waits(sys._current_frames()[threading.main_thread().ident]):
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    def waits(frame):
        return frame and (frame.f_code.co_name == "no_compilation" or waits(frame.f_back))
    interrupted = []
    threads = [threading.Thread(target=torch.compile(lambda: silu_and_mul(x) + 1, backend=backend)),
               threading.Thread(target=interrupt)]
    try:
        with shim.disabled():
            threads[0].start()
            compiling.wait()
            threads[1].start()
    except KeyboardInterrupt:
        interrupted = ours()
    done.set()
    for thread in threads: thread.join()
    # Just as a block ends, before it has begun to.
    def interrupt_at(function):
        def just_then(frame, event, argument):
            if frame.f_code is function.__code__:
                sys.settrace(None)
                raise KeyboardInterrupt
        sys.settrace(just_then)
    try:
        with shim.disabled():
            interrupt_at(hook._end)
    except KeyboardInterrupt:
        interrupted += ours()
    # While functions are put back: all of them are.
    try:
        interrupt_at(shim.apply.withdraw)
        shim.deactivate()
    except KeyboardInterrupt:
        interrupted += [*ours(), "applied" in verdicts().values()]
    shim.activate()
    # deactivate() within a block has the last word.
    with shim.disabled():
        shim.deactivate()
    overlap.append(ours())
    # Copies of a function that is made anew within a block are put in again, too: of the only one.
    os.environ["FLASHINFER_SHIM_PATCHES"] = "rmsnorm"
    shim.activate()
    with shim.disabled():
        importlib.reload(sys.modules["flashinfer.norm"])
    anew = replacements()
    # So are copies of what was made anew while nothing was patched, a class and a partial too.
    del os.environ["FLASHINFER_SHIM_PATCHES"]
    shim.deactivate()
    importlib.reload(computing.flashinfer)
    shim.activate()
    before, lost = replacements(), []
    reload = lambda: [importlib.reload(sys.modules["flashinfer." + name]) for name in MADE_ANEW]
    for others in ({}, {}, {"FLASHINFER_SHIM_PRELOAD": "0"}):
        os.environ |= others
        shim.deactivate()
        reload()
        lost.append(replacements())
        shim.activate()
        lost.append(sorted(set(before) - set(replacements())))
    with shim.disabled():
        shim.deactivate()
        reload()
        shim.activate()
    with shim.disabled():
        shim.deactivate()
    reload()
    shim.activate()
    lost.append(sorted(set(before) - set(replacements())))
    kept = len(hook._process.resting)
    shim.deactivate()
    lost.append(replacements())
    print(json.dumps([right, counts, overlap, interrupted, anew, len(before), lost, kept]))
    """.replace("MADE_ANEW", repr(MADE_ANEW))
    )
    found = run_child(code, release="0.6.3").json
    right, counts, overlap, interrupted, anew, before, lost, kept = found
    assert all(right)
    # One graph with our ops, the pieces of upstream's, and nothing more from then on.
    assert counts[0] == 1
    assert counts[1] > 1
    assert counts[1:] == [counts[1]] * 5
    assert overlap == [[False, False], [False, False], [True, True], [False, False]]
    assert anew == ["flashinfer.norm:rmsnorm", "flashinfer:rmsnorm"]
    assert interrupted == [True] * 4 + [False] * 3
    assert before > 200
    assert lost == [[]] * 8
    assert kept == 0


def test_under_load_every_call_is_right_while_the_patches_go_and_come(
    run_child: RunChild, figure: Callable[[str], None]
) -> None:
    code = (
        START
        + """
    import collections, faulthandler, time
    faulthandler.dump_traceback_later(290, exit=True)
    torch.set_num_threads(1)
    torch._dynamo.config.cache_size_limit = 10**6
    torch._dynamo.config.accumulated_cache_size_limit = 10**6
    counts, faults, stop = collections.Counter(), [], threading.Event()
    # As an engine that drops its guards has it: what is compiled stays what it is.
    kept = torch.compile(model, fullgraph=True, backend="eager",
                         options={"guard_filter_fn": lambda guards: [False] * len(guards)})
    kept()
    broken = torch.compile(model, backend="eager")

    def fresh():
        scope = {"model": model, "rmsnorm": rmsnorm, "silu_and_mul": silu_and_mul, "x": x,
                 "weight": weight}
        exec("def once(): return silu_and_mul(rmsnorm(x, weight))", scope)
        try:
            result = torch.compile(scope["once"], fullgraph=True, backend="eager")()
            counts["compiled whole"] += 1
            return result
        except torch._dynamo.exc.Unsupported:
            counts["refused"] += 1
            return wanted

    def load(name, call):
        try:
            while not stop.is_set():
                if not torch.equal(call(), wanted):
                    raise AssertionError("another result")
                counts[name] += 1
                time.sleep(0.001)  # or the interpreter's lock hardly ever changes hands
        except BaseException as error:
            faults.append(name + ": " + repr(error)[:2000])

    calls = {"eager": model, "kept": kept, "broken": broken, "fresh": fresh}
    threads = [threading.Thread(target=load, args=item) for item in calls.items()]
    for thread in threads: thread.start()
    for number in range(ROUNDS):
        if number % 2:
            shim.deactivate()
            assert replacements() == []
            shim.activate()
        else:
            with shim.disabled():
                assert replacements() == []
        assert ours() == [True, True]
        counts["switches"] += 2
    stop.set()
    for thread in threads: thread.join()
    print(json.dumps([faults, counts]))
    """.replace("ROUNDS", "16")
    )
    faults, counts = run_child(code, release="0.6.3").json
    assert faults == []
    assert min(counts[name] for name in ("eager", "kept", "broken", "fresh", "switches")) > 0
    figure(
        f"undo: {counts['switches']} switches under load, {counts['eager']} eager calls, "
        f"{counts['kept'] + counts['broken']} of compiled functions, {counts['fresh']} compilations"
    )


@pytest.mark.long
def test_a_process_goes_on_with_one_version_when_the_package_is_replaced_and_removed(
    tmp_path: Path, wheels: tuple[Path, Path], figure: Callable[[str], None]
) -> None:
    this, other = wheels
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", f"--python={python}", "-q", "--disable-pip-version-check"]
    children.output([*pip, "install", "--no-deps", this])
    startup = children.output([python, "-I", "-m", "shim", "path"]).strip()
    directory = tmp_path / "found"
    directory.mkdir()
    entries = [startup, releases.path("0.6.3"), HERE, _site_packages()]
    process = subprocess.Popen(
        [python, HERE / "replaced_child.py", directory],
        env=children.environment(tmp_path, env={"PYTHONPATH": os.pathsep.join(map(str, entries))}),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        _wait(lambda: all((directory / f"{name}.ready").exists() for name in PROCESSES), process)
        children.output([*pip, "install", "--no-deps", other])
        (directory / "upgraded").touch()
        upgraded = [name for name, event in PROCESSES.items() if event == "upgraded"]
        _wait(lambda: all((directory / f"{name}.json").exists() for name in upgraded), process)
        children.output([*pip, "uninstall", "--yes", "flashinfer-shim"])
        (directory / "removed").touch()
        said, _ = process.communicate(timeout=600)
    finally:
        process.kill()
    assert (process.returncode, said) == (0, "")
    found = {n: json.loads((directory / f"{n}.json").read_text()) for n in PROCESSES}
    lines = {n: _our_lines(directory / f"{n}.err") for n in PROCESSES}

    # Nothing of it was loaded before: now all of it is the other version.
    gate = found.pop("gate alone")
    assert len(gate["of the other version"]) > 40
    assert (gate["patched"], gate["whole"]) == ([True, True], "flashinfer_shim.rmsnorm")
    assert lines.pop("gate alone") == []

    for name, result in found.items():
        # The gate's other half, which is loaded when FlashInfer is imported, is what stands aside.
        handover = ["_flashinfer_shim_handover"] if name == "package begun" else []
        assert result["of the other version"] == handover, name
        if name.startswith("has compiled"):
            assert result == {
                "with breaks": True,
                "whole": "flashinfer_shim.rmsnorm",
                "another": "flashinfer_shim.silu_and_mul",
                "error": None,
                "of the other version": [],
            }
            assert lines[name] == []
            continue
        (line,) = lines[name] if name != "required" else [result["whole"]]
        fate = "is no longer in" if name.endswith("removed") else "has been replaced"
        assert f"flashinfer-shim {_version()}" in line
        assert fate in line
        assert "start the process again" in line
        if name == "required":
            assert "has been replaced" in result["another"]
        else:
            assert result["with breaks"], result
            # Upstream's own function is traced, and refused or not as Dynamo sees fit.
            assert "flashinfer_shim" not in result["whole"]
            assert result["another"].startswith("Unsupported: "), result
    assert found["package begun"]["patched"] == [False, False]
    figure(f"undo: {len(PROCESSES)} processes outlived an upgrade or a removal, with one version")


def _site_packages() -> Path:
    import torch

    return Path(torch.__file__).parent.parent


def _our_lines(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if line.startswith("flashinfer-shim: ")]


def test_a_table_that_is_lost_meanwhile_leaves_what_is_compiled_to_flashinfer(
    run_child: RunChild, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "shim", copy / "shim", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "sitecustomize.py", copy)
    child = run_child(
        """
        import json, os
        import flashinfer
        import shim

        os.unlink(os.path.join(os.path.dirname(shim.__file__), "patches", "rows.json"))
        (told,) = [(r.verdict, r.reason) for r in shim.status() if r.patch == "rmsnorm"]
        ours = flashinfer.rmsnorm.__closure__
        (later,) = [c.cell_contents for c in ours if type(c.cell_contents).__name__ == "Later"]
        later.make()
        then = {r.patch: [r.verdict, r.reason, r.action] for r in shim.status()}
        traced = later.traced.__code__.co_filename
        print(json.dumps([told, traced, then["rmsnorm"], then["silu_and_mul"][0]]))
        """,
        env={"PYTHONPATH": os.pathsep.join(map(str, (copy, releases.path("0.6.3"))))},
    )
    (verdict, reason), traced, then, not_met = child.json
    assert verdict == "applied"
    assert "no longer complete (rows.json cannot be read: FileNotFoundError" in reason
    assert traced.endswith("flashinfer/norm.py")
    assert then[0] == "refused"
    assert then[1].startswith("a compiler that met it got no op: ")
    assert "no longer complete (rows.json" in then[1]
    assert then[2] == "start the process again"
    assert not_met == "applied"
    (line,) = child.stderr.splitlines()
    assert "until then FlashInfer's own functions are what is compiled" in line
