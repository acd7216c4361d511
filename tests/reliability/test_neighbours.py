"""Other libraries that come into every process: each runs once, and so do we, in either order.

They are the real ones, in a virtual environment in which a ``.pth`` file counts what is executed
before any ``sitecustomize`` is.
"""

from __future__ import annotations

import json
import py_compile
import re
import shutil
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import releases
import startup_trees as trees
from check_command import parse
from children import Child
from conftest import RunChild
from releases import ROOT

DDTRACE = "from ddtrace.commands.ddtrace_run import main; main()"
OPENTELEMETRY = "from opentelemetry.instrumentation.auto_instrumentation import run; run()"

#: How often each file was executed, by the end of its name.
COUNT = """
import sys

sys.executed = []

def count(event, arguments):
    if event == "exec" and arguments[0].co_name == "<module>":
        sys.executed.append(arguments[0].co_filename)

sys.addaudithook(count)
"""

#: What became of us, and of a call of FlashInfer's that is compiled.
WORK = """
import json, sys
import child_side
import torch
import flashinfer

def compiled():
    backend = child_side.Counting()
    call = lambda x, w: flashinfer.norm.rmsnorm(x, w)
    norm = torch.compile(call, fullgraph=True, backend=backend)
    try:
        with child_side.fake_cuda():
            half = dict(dtype=torch.float16)
            norm(torch.empty(4, 64, **half), torch.empty(64, **half))
    except Exception as error:  # one side
        return type(error).__name__  # one side
    return [".".join(op.split(".")[:2]) for ops in backend.ops() for op in ops]  # one side

def is_imported(record):
    return record.target.partition(":")[0] in sys.modules  # one side

gates = [f for f in sys.meta_path if getattr(f, "flashinfer_shim_gate", False) is True]
executed = getattr(sys, "executed", [])
shim = sys.modules.get("shim")
records = [*shim.status()] if gates else []
print(json.dumps({
    "compiled": compiled(),
    "gates": len(gates),
    "faults": [gate.fault for gate in gates if gate.fault],
    "shim": shim and shim.__version__,
    "verdicts": sorted({str(record.verdict) for record in records}),
    "left": [r.patch for r in records if r.verdict == "pending" and is_imported(r)],
    "reasons": sorted({r.reason for r in records if r.verdict == "refused"}),
    "executed": {end: sum(each.endswith(end) for each in executed) for end in sys.argv[1:]},
    "neighbours": [name for name in ("ddtrace", "opentelemetry.sdk", "coverage")
                   if name in sys.modules],
}))
"""

OURS = ["flashinfer_shim.rmsnorm"]
USER = "sitecustomize_of_the_user"
QUIET = {
    "DD_TRACE_ENABLED": "false",
    "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
    "DD_REMOTE_CONFIGURATION_ENABLED": "false",
    "DD_CRASHTRACKING_ENABLED": "false",
    "OTEL_TRACES_EXPORTER": "none",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
    # Its import alone warns, on a machine without a GPU.
    "PYTHONWARNINGS": "ignore",
}


class Neighbourhood:
    """Children of an environment with all neighbours in it, on the path of one release."""

    def __init__(self, python: Path, run_child: RunChild, scratch: Path, release: str) -> None:
        self.python, self._run_child, self.scratch = python, run_child, scratch
        self.release = releases.path(release)
        self.work = scratch / "work.py"
        self.work.write_text(WORK)

    def run(
        self,
        words: Sequence[str | Path],
        *,
        path: Sequence[Path] = (),
        env: dict[str, str] | None = None,
    ) -> Child:
        """Run this Python with ``words``, and ``path`` in front of the release."""
        entries = [*path, self.release, ROOT / "tests"]
        environment = {**QUIET, **trees.path(*entries), **(env or {})}
        return self._run_child(None, args=words, python=self.python, env=environment)

    def ours(self, *words: str | Path) -> list[str | Path]:
        """The command that ``flashinfer-shim run`` makes of a command of this Python."""
        start = f"import sys; sys.path.append({str(ROOT)!r}); from shim.cli import main; main()"
        return [self.python, "-c", start, "run", "--", self.python, *words]

    def counting(self, *files: str) -> list[str]:
        """The words that have ``work`` say how often each of these was executed."""
        return [str(self.work), *files]

    def script(self, code: str, *, path: Sequence[Path] = ()) -> Child:
        """Run ``code``."""
        file = self.scratch / "script.py"
        file.write_text(code)
        return self.run([file], path=path)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the neighbours, and with what this one has."""
    directory = tmp_path_factory.mktemp("neighbours") / "venv"
    venv.create(directory, with_pip=False, symlinks=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "counting_for_tests.py").write_text(COUNT)
    here = [entry for entry in sys.path if entry.endswith("site-packages")]
    lines = [
        "import counting_for_tests",
        *here,
        f"import site; site.addsitedir({str(releases.neighbours())!r})",
    ]
    (packages / "neighbours.pth").write_text("\n".join(lines) + "\n")
    return directory / "bin" / "python"


@pytest.fixture
def near(python: Path, run_child: RunChild, tmp_path: Path) -> Neighbourhood:
    """With the newest release."""
    return Neighbourhood(python, run_child, tmp_path, "0.7.4")


@pytest.fixture
def near_older(python: Path, run_child: RunChild, tmp_path: Path) -> Neighbourhood:
    """With the release that typeguard can import whole."""
    return Neighbourhood(python, run_child, tmp_path, "0.6.3")


def lasting(child: Child) -> str:
    """What a child said on stderr, without what no two of them say alike."""
    return re.sub(r"0x[0-9a-f]+|\d{4}-\d\d-\d\d [0-9:,.]+|\bpid \d+", "", child.stderr)


def in_force(result: dict[str, Any]) -> bool:
    """Whether every patch stands where it can, once, and a call was compiled."""
    return (
        result["gates"] == 1
        and result["compiled"] == OURS
        and set(result["verdicts"]) <= {"applied", "pending", "not needed", "disabled"}
        and "applied" in result["verdicts"]
        and not result["left"] + result["faults"]
    )


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """The user's own file, behind all others."""
    text = f"exec(compile('pass', {USER!r}, 'exec'))\n"
    return trees.write(tmp_path / "user", {"sitecustomize.py": text})


# --- Ourselves, and the user's own files ----------------------------------------------------------


def test_a_second_copy_of_us_of_another_version(run_child: RunChild, tmp_path: Path) -> None:
    """The first one on the path acts alone, and ``check`` of the other says so."""
    other = tmp_path / "other"
    shutil.copytree(ROOT / "shim", other / "shim", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "sitecustomize.py", other)
    init = other / "shim" / "__init__.py"
    ours = re.search(r'__version__ = "(.+)"', init.read_text())
    assert ours
    init.write_text(init.read_text().replace(ours[1], "99.0"))
    (tmp_path / "work.py").write_text(WORK)
    release, helpers = releases.path("0.6.3"), ROOT / "tests"
    for path, version in (([other, ROOT], "99.0"), ([ROOT, other], ours[1])):
        env = trees.path(*path, release, helpers)
        child = run_child(None, args=[tmp_path / "work.py"], env=env)
        assert child.json["shim"] == version
        assert in_force(child.json), child
        assert child.stderr == ""

    second = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from shim.cli import main; main()"
    words = ["-c", second, "check", "--json"]
    env = trees.path(other, ROOT, release)
    said = json.loads(run_child(None, args=words, env=env).stdout)["loading"]
    assert said["loads"] is False
    assert said["reason"].startswith(f"another copy of flashinfer-shim, in {other / 'shim'}")


RAN = "import sys; sys.ran = [*getattr(sys, 'ran', []), __name__]\n"
FORMS = ("module", "package", "compiled")


def user_file(folder: Path, name: str, form: str, text: str) -> Path:
    """``sitecustomize`` or ``usercustomize`` in one of the forms that Python imports."""
    trees.write(folder, {f"{name}/__init__.py" if form == "package" else f"{name}.py": text})
    if form == "compiled":
        py_compile.compile(str(folder / f"{name}.py"), cfile=str(folder / f"{name}.pyc"))
        (folder / f"{name}.py").unlink()
    return folder


@pytest.mark.parametrize("error", ["", "raise ValueError('mine')", "1 / 0"])
@pytest.mark.parametrize("form", FORMS)
def test_sitecustomize_and_usercustomize_of_the_user(
    run_child: RunChild, tmp_path: Path, form: str, error: str
) -> None:
    """Each runs once, the second after an error of the first, too; errors read as without us."""
    user = tmp_path / "user"
    for name in ("sitecustomize", "usercustomize"):
        user_file(user, name, form, RAN + error)
    show = """
        import sys
        print(sys.ran, sys.flags.no_user_site)
        print(sum(getattr(f, "flashinfer_shim_gate", False) is True for f in sys.meta_path))
        """
    # In a virtual environment Python looks for no usercustomize.
    python = getattr(sys, "_base_executable", sys.executable)
    with_us, without = (
        run_child(show, python=python, env=trees.path(*path)) for path in ([ROOT, user], [user])
    )
    assert with_us.stdout == "['sitecustomize', 'usercustomize'] 0\n1\n", with_us
    assert without.stdout == "['sitecustomize', 'usercustomize'] 0\n0\n", without
    assert with_us.stderr == without.stderr
    assert bool(error) == bool(without.stderr)


# --- Shims that start as we do ----------------------------------------------------------------


@pytest.mark.long
def test_ddtrace_run(near: Neighbourhood, user: Path, figure: Callable[[str], None]) -> None:
    words = near.counting("bootstrap/sitecustomize.py", USER)
    once = dict.fromkeys(words[1:], 1)
    starts: dict[str, tuple[Sequence[str | Path], Sequence[Path]]] = {
        "without us": ([near.python, *words], [user]),
        "theirs first": ([near.python, *words], [ROOT, user]),
        "ours first": (near.ours(*words), [user]),
    }
    found = {
        order: near.run(["-c", DDTRACE, *command], path=path)
        for order, (command, path) in starts.items()
    }
    for order, child in found.items():
        result = child.json
        assert result["executed"] == once, (order, child)
        assert "ddtrace" in result["neighbours"]
        assert child.stderr == found["without us"].stderr
        if order == "without us":
            assert result["compiled"] == "Unsupported"
        else:
            assert in_force(result), (order, child)
    figure("neighbours: ddtrace-run, 2 orders, each file run once")


@pytest.mark.long
def test_opentelemetry_instrument(
    near: Neighbourhood, user: Path, figure: Callable[[str], None]
) -> None:
    """Its file does not run the next one, so that the command has to start ours."""
    words = near.counting("auto_instrumentation/sitecustomize.py", USER)
    instrumented = ["-c", OPENTELEMETRY]
    # An exporter that is not installed: its own error is to be seen as it is without us.
    env = {"OTEL_TRACES_EXPORTER": "a_missing_one"}
    without = near.run([*instrumented, near.python, *words], path=[user], env=env)
    assert without.json["compiled"] == "Unsupported"
    assert without.json["executed"] == {words[1]: 1, USER: 0}
    assert "a_missing_one" in without.stderr

    hidden = near.run([*instrumented, near.python, *words], path=[ROOT, user], env=env)
    assert hidden.json == without.json
    check: list[str | Path] = [*instrumented, near.python, "-m", "shim", "check", "--json"]
    said = parse(near.run(check, path=[ROOT])).report["loading"]
    assert said["loads"] is False
    assert "auto_instrumentation/sitecustomize.py comes before ours" in said["reason"]
    assert "opentelemetry-instrument flashinfer-shim run -- COMMAND" in said["action"]

    result = near.run([*instrumented, *near.ours(*words)], path=[user], env=env)
    assert in_force(result.json), result
    assert result.json["executed"] == without.json["executed"]
    assert result.json["neighbours"] == without.json["neighbours"]
    assert lasting(result) == lasting(without) * 2  # `run` is a process with the error of its own

    spawns = near.scratch / "spawns.py"
    spawns.write_text("import subprocess, sys\nsubprocess.run([sys.executable, *sys.argv[1:]])\n")
    child = near.run([*instrumented, *near.ours(spawns, *words)], path=[user])
    assert in_force(child.json), child
    figure(
        "neighbours: opentelemetry-instrument, 2 orders and a child; hidden by it, check says so"
    )


@pytest.mark.long
def test_coverage_of_each_process(near: Neighbourhood, figure: Callable[[str], None]) -> None:
    """What it has seen of a script is what it sees without us."""
    settings = near.scratch / "coveragerc"
    seen: dict[str, set[int]] = {}
    for side, path in {"without": [], "with us": [ROOT]}.items():
        data = near.scratch / side.replace(" ", "_")
        settings.write_text(f"[run]\nparallel = true\ndata_file = {data}\n")
        child = near.run([near.work], path=path, env={"COVERAGE_PROCESS_START": str(settings)})
        assert "coverage" in child.json["neighbours"], child
        assert child.stderr == ""
        (file,) = near.scratch.glob(f"{data.name}.*")
        show = (
            "import coverage, json, sys; data = coverage.CoverageData(sys.argv[1]); data.read(); "
            "print(json.dumps(sorted(data.lines(sys.argv[2]))))"
        )
        seen[side] = set(near.run(["-c", show, file, near.work]).json)
        if path:
            assert in_force(child.json), child
    lines = enumerate(WORK.splitlines(), 1)
    other = {number for number, line in lines if line.endswith("# one side")}
    assert seen["without"] - other == seen["with us"] - other
    assert len(seen["with us"] - other) > 20

    broken = {"COVERAGE_PROCESS_START": str(near.scratch / "missing")}
    errors = [near.run(["-c", "pass"], path=path, env=broken) for path in ([], [ROOT])]
    assert errors[0].stderr
    assert errors[0].stderr == errors[1].stderr
    figure("neighbours: coverage in each process, the same lines seen")


# --- Hooks that change a module while it is imported -------------------------------------------

WRONG = """
try:
    flashinfer.norm.rmsnorm("a text", None)
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.mark.long
def test_typeguard(near_older: Neighbourhood, figure: Callable[[str], None]) -> None:
    """Its finder stands in front of ours and finds FlashInfer before we are asked."""
    hook = "import typeguard\ntypeguard.install_import_hook('flashinfer')\n"
    errors = []
    for before in ("", "import torch\n"):
        child = near_older.script(before + hook + WORK + WRONG, path=[ROOT])
        *_, found, error = map(json.loads, child.stdout.splitlines())
        assert in_force(found), child
        errors.append(error)
    child = near_older.script(hook + WORK + WRONG)
    *_, found, error = map(json.loads, child.stdout.splitlines())
    assert found["compiled"] == "Unsupported"
    assert error[0] == "TypeCheckError"
    assert errors == [error, error]
    figure("neighbours: typeguard's import hook, 2 orders, its errors the same")


@pytest.mark.long
def test_beartype(near: Neighbourhood, figure: Callable[[str], None]) -> None:
    """It puts functions of its own making around FlashInfer's: those are left alone."""
    hook = "from beartype.claw import beartype_package\nbeartype_package('flashinfer.norm')\n"
    found, errors = [], []
    for path in ([], [ROOT]):
        child = near.script(hook + WORK + WRONG, path=path)
        *_, result, error = map(json.loads, child.stdout.splitlines())
        found.append(result)
        errors.append(error)
        assert result["compiled"] == "Unsupported"
    assert "Beartype" in errors[0][0]
    assert errors[0] == errors[1]
    reason = "functions of flashinfer.norm have been wrapped by @beartype"
    assert found[1]["reasons"] == [reason]
    assert found[1]["left"] == []
    assert child.stderr.count(reason) == 1
    assert child.stderr.count("flashinfer-shim:") == 1

    after = near.script("import flashinfer\n" + hook + WORK, path=[ROOT])
    assert in_force(after.json), after
    figure("neighbours: beartype.claw, 2 orders: left alone with its name, or patched")


@pytest.mark.long
def test_pytest_rewrites_assertions(near: Neighbourhood, figure: Callable[[str], None]) -> None:
    """Those of the tests, and of FlashInfer where somebody asks for that."""
    told: list[str] = []
    for asked in ("", "pytest.register_assert_rewrite('flashinfer')\n"):
        for path in ([], [ROOT]):
            project = near.scratch / f"{len(told)}"
            result = project / "result.json"
            test = WORK.replace("print(", f"open({str(result)!r}, 'w').write(")
            trees.write(
                project,
                {
                    "conftest.py": "import pytest\n" + asked,
                    "test_it.py": dedent(test) + "\n\ndef test_it():\n    a = [1, 2]\n"
                    "    assert a == [1, 3]\n",
                },
            )
            words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={project}"]
            child = near.run([*words, project], path=path)
            assert child.returncode == 1, child
            assert "At index 1 diff: 2 != 3" in child.stdout
            told.append(re.sub(r"in [0-9.]+s.*|\S*/(?=test_it.py)", "", child.stdout))
            if path:
                assert in_force(json.loads(result.read_text())), (child, result.read_text())
    assert told[0] == told[1]
    assert told[2] == told[3]
    figure("neighbours: pytest's rewriting, of tests and of FlashInfer")


# --- All of them ---------------------------------------------------------------------------------


@pytest.mark.long
def test_all_in_one_process(near: Neighbourhood, user: Path, figure: Callable[[str], None]) -> None:
    settings = trees.write(near.scratch, {"coveragerc": "[run]\nparallel = true\n"}) / "coveragerc"
    words = near.counting("bootstrap/sitecustomize.py", "auto_instrumentation/sitecustomize.py")
    # OpenTelemetry's file, which runs no other, has to be the last.
    ours = near.ours("-c", DDTRACE, near.python, *words)
    child = near.run(
        ["-c", OPENTELEMETRY, *ours], path=[user], env={"COVERAGE_PROCESS_START": str(settings)}
    )
    result = child.json
    assert in_force(result), child
    assert set(result["executed"].values()) == {1}, child
    assert result["neighbours"] == ["ddtrace", "opentelemetry.sdk", "coverage"]
    figure("neighbours: ddtrace, OpenTelemetry and coverage in one process with us")
