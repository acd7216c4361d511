"""Every way in which a process starts: it is patched, or ``check --deep`` has one honest reason.

Each row of the table is tried with a real FlashInfer. The process is asked twice: by a probe that
imports FlashInfer and looks at its functions, and by ``check``, which has to say the same.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import doors
import pytest
import wrapt
from children import Child
from conftest import RunChild
from doors import Door, Place, filtered, flags, multiprocessing, script
from releases import ROOT, path

PROBE = Path(doors.HERE, "probe.py")
PACKAGES = Path(wrapt.__file__).parent.parent
RELEASE = path("0.6.3")

SITE = "sitecustomize"
NOT_ON_PATH = "PYTHONPATH does not hold"


@dataclass(frozen=True)
class Row:
    """One door.

    Attributes:
        door: how the process comes to be.
        by: by which door of ours FlashInfer is patched there; None: not at all.
        reason: a part of what ``check --deep`` says where children are not patched.
        place: fixture that makes the place.
        short: whether it is in ``make test``.
    """

    door: Door
    by: str | None = SITE
    reason: str = ""
    place: str = "checkout"
    short: bool = False


ROWS = {
    "subprocess": Row(script("subprocess.run([sys.executable, *words])")),
    "os.exec": Row(script("os.execv(sys.executable, [sys.executable, *words])"), short=True),
    "multiprocessing fork": Row(multiprocessing("fork", "import flashinfer"), short=True),
    "multiprocessing spawn": Row(multiprocessing("spawn"), short=True),
    "multiprocessing forkserver": Row(multiprocessing("forkserver")),
    "concurrent.futures": Row(script(doors.POOL)),
    "Inductor's compile workers": Row(script(doors.INDUCTOR)),
    "python -P": Row(flags("-P")),
    "python -s": Row(flags("-s")),
    "python -I": Row(flags("-I"), None, "started with -I", "wheel"),
    "python -E": Row(flags("-E"), None, "started with -E", "wheel"),
    "python -S": Row(doors.without_site, None, "started with -S", "wheel"),
    "env -i": Row(doors.empty_environment, None, NOT_ON_PATH, "wheel"),
    "filtered environment": Row(filtered(doors.PLUGIN), None, NOT_ON_PATH, "wheel"),
    "filtered environment, asked for": Row(
        filtered(doors.PLUGIN, FLASHINFER_SHIM="auto"), "vllm plugin", NOT_ON_PATH, "wheel"
    ),
    "wheel in a virtual environment": Row(flags(), place="wheel"),
    "virtual environment made by another": Row(flags(), place="inner"),
    "editable install": Row(flags(), place="editable"),
    "conda's prefix": Row(doors.conda_prefix),
    "application in a zip file": Row(doors.zip_application),
    "uv run": Row(doors.uv_run, place="uv"),
    "pip's isolated build": Row(doors.isolated_build, None, NOT_ON_PATH, "wheel"),
}


@pytest.fixture
def checkout(tmp_path: Path) -> Place:
    """This interpreter, with the checkout on PYTHONPATH."""
    return Place(Path(sys.executable), (ROOT, RELEASE), (PACKAGES, RELEASE), tmp_path)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our wheel."""
    to = tmp_path_factory.mktemp("processes") / "wheel"
    _run("-m", "build", "--no-isolation", "--wheel", "--outdir", to, ROOT)
    (wheel,) = to.iterdir()
    return wheel


@pytest.fixture(scope="session")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a virtual environment with our wheel in it."""
    python = _environment(tmp_path_factory.mktemp("processes") / "venv")
    _run("-m", "pip", f"--python={python}", "install", "--no-index", "--no-deps", built)
    return python


@pytest.fixture
def wheel(environment: Path, tmp_path: Path) -> Place:
    return _installed(environment, tmp_path)


@pytest.fixture
def uv(wheel: Place) -> Place:
    pytest.importorskip("uv")
    return wheel


@pytest.fixture
def inner(wheel: Place, tmp_path: Path) -> Place:
    """A virtual environment that the interpreter of another made; we are in the outer one."""
    _run("-m", "venv", "--without-pip", tmp_path / "inner", python=wheel.python)
    python = _furnish(tmp_path / "inner")
    return Place(python, wheel.path, wheel.site, tmp_path)


@pytest.fixture
def editable(tmp_path: Path) -> Place:
    source = tmp_path / "source"
    ignore = shutil.ignore_patterns(".*", "__pycache__", "dist")
    shutil.copytree(ROOT, source, ignore=ignore)
    python = _environment(tmp_path / "venv")
    install = ("install", "--no-index", "--no-deps", "--no-build-isolation", "-e", source)
    _run("-m", "pip", f"--python={python}", *install)
    return _installed(python, tmp_path)


def _environment(directory: Path) -> Path:
    venv.create(directory, with_pip=False, symlinks=True)
    return _furnish(directory)


def _furnish(directory: Path) -> Path:
    """Let an environment find what the tests' own has, and FlashInfer."""
    (packages,) = directory.glob("lib/python3*/site-packages")
    (packages / "a.pth").write_text(f"{PACKAGES}\n{RELEASE}\n")
    return directory / "bin" / "python"


def _installed(python: Path, scratch: Path) -> Place:
    (packages,) = python.parent.parent.glob("lib/python3*/site-packages")
    startup = _run("-m", "shim", "path", python=python).strip()
    return Place(python, (Path(startup),), (packages, PACKAGES, RELEASE), scratch)


def _run(*words: str | Path, python: Path | None = None) -> str:
    done = subprocess.run(
        [str(python or sys.executable), *map(str, words)],
        env={"PATH": "/usr/bin:/bin", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def through(row: Row, place: Place, words: list[str], run_child: RunChild) -> Child:
    """Be ``python *words`` in that place, by that door."""
    command = row.door(place, words)
    env = {
        "PYTHONPATH": ":".join(map(str, place.path)),
        "VIRTUAL_ENV": str(place.python.parent.parent),
        **command.env,
    }
    program, *arguments = command.words
    return run_child(None, python=program, args=arguments, env=env)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if row.short else pytest.mark.long) for n, row in ROWS.items()],
)
def test_a_process_is_patched_or_check_has_one_reason(
    name: str,
    run_child: RunChild,
    request: pytest.FixtureRequest,
    figure: Callable[[str], None],
) -> None:
    row = ROWS[name]
    place: Place = request.getfixturevalue(row.place)
    found = through(row, place, [str(PROBE)], run_child).json
    assert (found["door"], found["patched"]) == (row.by, row.by is not None), found
    assert (found["release"], found["deviating"]) == ("0.6.3", [])

    deep = ["--deep"] * (row.by != SITE)
    child = through(row, place, ["-m", "shim", "check", "--json", *deep], run_child)
    report = json.loads(child.stdout)
    assert report["activated_by"] == row.by, report["activated_by"]
    assert report["loading"]["loads"] is (row.by == SITE), report["loading"]
    assert row.reason in report["loading"]["reason"]
    assert report["exit_status"] == (0 if row.by == SITE else 1)
    for each in report["children"] or ():
        assert each["shim"] is None, each
    figure(f"process: {name}: {f'patched by {row.by}' if row.by else row.reason}")


def test_within_a_zip_file_we_say_that_we_cannot_run(run_child: RunChild, tmp_path: Path) -> None:
    archive = tmp_path / "ours.pyz"
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.write(ROOT / "sitecustomize.py", "sitecustomize.py")
        for file in (ROOT / "shim").rglob("*.*"):
            if "__pycache__" not in file.parts:
                zipped.write(file, file.relative_to(ROOT))
    said = f"{archive}/shim is in a zip file, where flashinfer-shim cannot run: install it with pip"
    env = {"PYTHONPATH": str(archive)}

    checked = run_child(None, args=["-m", "shim", "check", "--deep"], env=env)
    assert (checked.returncode, checked.stdout) == (2, ""), checked
    assert checked.stderr == f"flashinfer-shim: {said}\n"

    activated = run_child("import shim\nshim.activate()", env=env)
    assert activated.stderr.splitlines()[-1] == f"ImportError: {said}"

    started = run_child("import sys; print(sys.meta_path[0].__class__)", env=env)
    assert (started.returncode, started.stderr) == (0, "")
    assert "Gate" not in started.stdout
