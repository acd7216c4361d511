"""What is installed, where it lands, and that installing alone changes nothing."""

from __future__ import annotations

import email
import json
import re
import shutil
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from textwrap import dedent

import children
import pytest
import wrapt
from conftest import RunChild
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from releases import ROOT

import shim

pytestmark = pytest.mark.slow

GATE = "_flashinfer_shim_gate"
REQUIREMENTS = {"importlib-metadata", "packaging", "wrapt"}

# What a process has loaded, and who finds its imports.
SHOW = """
import json, sys
finders = [type(finder).__module__ + "." + type(finder).__qualname__ for finder in sys.meta_path]
print(json.dumps([sorted(sys.modules), finders]))
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment of a test's own, with nothing in it to begin with."""

    directory: Path

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    def pip(self, *arguments: str | Path) -> str:
        """Run this process's pip on the environment, under the pins of the checkout."""
        command = [sys.executable, "-m", "pip", f"--python={self.python}", *arguments]
        return children.output(command, PIP_DISABLE_PIP_VERSION_CHECK="1")

    def install(self, *what: str | Path) -> None:
        self.pip("install", "-c", ROOT / "constraints.txt", *what)

    def distributions(self) -> set[str]:
        listed = json.loads(self.pip("list", "--format=json"))
        return {canonicalize_name(entry["name"]) for entry in listed}

    def command(self, *arguments: str) -> str:
        """Run ``flashinfer-shim`` as installed and return what it prints."""
        return children.output([self.directory / "bin" / "flashinfer-shim", *arguments])


def _build(source: Path, to: Path, kind: str) -> Path:
    """Build ``source``'s ``wheel`` or ``sdist`` into the new directory ``to``."""
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", f"--outdir={to}"]
    children.output([*command, source], SOURCE_DATE_EPOCH="1700000000")
    (built,) = to.iterdir()
    return built


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the repository holds, so that a build leaves nothing in the real one."""
    copy = tmp_path_factory.mktemp("package") / "checkout"
    leave_out = (".git", ".venv*", ".cache", ".editable", "*_cache", "__pycache__", "dist")
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*leave_out))
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    return _build(checkout, checkout.parent / "wheel", "wheel")


@pytest.fixture(scope="module")
def sdist(checkout: Path) -> Path:
    return _build(checkout, checkout.parent / "sdist", "sdist")


@pytest.fixture(scope="module")
def editable(checkout: Path) -> Path:
    """What ``pip install -e`` has the build backend make of the checkout, and then installs."""
    to = checkout.parent / "editable"
    to.mkdir()
    build = "import hatchling.build, sys; hatchling.build.build_editable(sys.argv[1])"
    children.output([sys.executable, "-c", build, to], cwd=checkout)
    (built,) = to.iterdir()
    return built


def _new_environment(directory: Path) -> Environment:
    venv.create(directory, with_pip=False, symlinks=True)
    return Environment(directory)


@pytest.fixture
def bare(tmp_path: Path) -> Environment:
    return _new_environment(tmp_path / "bare")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel in it, for tests that change nothing there."""
    environment = _new_environment(tmp_path_factory.mktemp("installed") / "venv")
    environment.install(wheel)
    return environment


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def _requirements(wheel: Path) -> list[Requirement]:
    return [Requirement(line) for line in _metadata(wheel).get_all("Requires-Dist", [])]


def test_the_wheel_holds_the_package_its_start_up_file_and_metadata_alone(
    checkout: Path, wheel: Path
) -> None:
    package = {
        str(file.relative_to(checkout)) for file in (checkout / "shim").rglob("*") if file.is_file()
    }
    info = f"flashinfer_shim-{shim.__version__}.dist-info"
    metadata = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        startup = archive.read("shim/startup/sitecustomize.py")
    assert "shim/py.typed" in package
    assert held == (
        package
        | {"shim/startup/sitecustomize.py", "flashinfer_shim_plugin.py"}
        | {f"{info}/{name}" for name in metadata}
    )
    assert startup == (checkout / "sitecustomize.py").read_bytes()


def test_the_start_up_directory_is_no_part_of_the_checkout() -> None:
    assert not (ROOT / "shim" / "startup").exists()


def test_the_wheel_requires_three_distributions_without_upper_bounds(wheel: Path) -> None:
    plain = [requirement for requirement in _requirements(wheel) if requirement.marker is None]
    assert {requirement.name for requirement in plain} == REQUIREMENTS
    operators = {part.operator for requirement in plain for part in requirement.specifier}
    assert operators == {">="}


def test_what_we_patch_is_an_extra_and_its_version_is_left_to_the_user(wheel: Path) -> None:
    patched = [
        requirement
        for requirement in _requirements(wheel)
        if requirement.name in {"flashinfer-python", "torch"}
    ]
    assert {requirement.name for requirement in patched} == {"flashinfer-python", "torch"}
    for requirement in patched:
        assert requirement.marker is not None
        assert not requirement.marker.evaluate({"extra": ""})
        assert str(requirement.specifier) == ""


def test_the_version_is_told_in_one_place(wheel: Path) -> None:
    assert _metadata(wheel)["Version"] == shim.__version__
    places = [
        file.relative_to(ROOT)
        for file in [*ROOT.glob("*.toml"), *(ROOT / "shim").rglob("*.py")]
        if re.search(rf'= "{re.escape(shim.__version__)}"', file.read_text())
    ]
    assert places == [Path("shim", "__init__.py")]


def test_the_wheel_from_the_sdist_is_the_wheel_from_the_checkout(
    sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path)
    (source,) = tmp_path.iterdir()
    assert _build(source, tmp_path / "wheel", "wheel").read_bytes() == wheel.read_bytes()


@pytest.mark.usefixtures("editable")
def test_an_editable_install_leaves_what_is_built_as_it_was(
    checkout: Path, sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    assert (checkout / ".editable").is_dir()
    assert _build(checkout, tmp_path / "sdist", "sdist").read_bytes() == sdist.read_bytes()
    assert _build(checkout, tmp_path / "wheel", "wheel").read_bytes() == wheel.read_bytes()


def test_the_sdist_holds_the_package_and_what_the_tests_need(checkout: Path, sdist: Path) -> None:
    needed = {"Makefile", "constraints.txt", "pyproject.toml", "hatch_build.py", "README.md"}
    for folder in ("shim", "tests"):
        needed |= {str(file.relative_to(checkout)) for file in (checkout / folder).rglob("*.py")}
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert needed <= held


def test_installing_the_wheel_alone_changes_nothing_in_a_process(
    bare: Environment, installed: Environment, run_child: RunChild
) -> None:
    without = run_child(SHOW, shim=False, python=bare.python)
    with_us = run_child(SHOW, shim=False, python=installed.python)
    assert "site" in without.json[0]
    assert (with_us.stdout, with_us.stderr) == (without.stdout, without.stderr)


def test_installing_the_wheel_brings_neither_torch_nor_flashinfer(installed: Environment) -> None:
    brought = installed.distributions()
    assert brought >= REQUIREMENTS | {"flashinfer-shim"}
    assert brought.isdisjoint({"flashinfer-python", "rich", "torch"})


def test_the_path_of_a_wheel_is_its_start_up_directory_and_starts_us(
    installed: Environment, run_child: RunChild
) -> None:
    startup = Path(installed.command("path").removesuffix("\n"))
    assert startup.is_relative_to(installed.directory)
    held = {entry.name for entry in startup.iterdir()}
    assert held - {"__pycache__"} == {"sitecustomize.py"}
    child = run_child(SHOW, shim=False, python=installed.python, env={"PYTHONPATH": str(startup)})
    assert GATE in child.json[0], child
    assert child.stderr == ""


def test_a_process_starts_silently_after_the_wheel_was_removed(
    bare: Environment, wheel: Path, run_child: RunChild
) -> None:
    before = run_child(SHOW, shim=False, python=bare.python)
    bare.install(wheel)
    startup = bare.command("path").removesuffix("\n")
    bare.pip("uninstall", "--yes", "flashinfer-shim")
    after = run_child(SHOW, shim=False, python=bare.python, env={"PYTHONPATH": startup})
    assert "site" in before.json[0]
    assert (after.stdout, after.stderr) == (before.stdout, before.stderr)


def test_the_path_of_an_editable_install_is_the_checkout_and_starts_us_only_when_set(
    bare: Environment, checkout: Path, editable: Path, run_child: RunChild
) -> None:
    bare.install(editable)
    assert bare.command("path") == f"{checkout}\n"
    unset = run_child(SHOW, shim=False, python=bare.python)
    assert GATE not in unset.json[0], unset
    is_set = run_child(SHOW, shim=False, python=bare.python, env={"PYTHONPATH": str(checkout)})
    assert GATE in is_set.json[0], is_set


def test_the_path_of_a_checkout_that_is_not_installed_is_the_checkout(
    checkout: Path, run_child: RunChild
) -> None:
    child = run_child(
        None, shim=False, args=["-m", "shim", "path"], env={"PYTHONPATH": str(checkout)}
    )
    assert (child.stdout, child.stderr) == (f"{checkout}\n", ""), child


def test_the_command_tells_its_version(installed: Environment) -> None:
    assert installed.command("--version") == f"flashinfer-shim {shim.__version__}\n"


# Both frameworks load the plugins of a group so, SGLang since 0.5.11.
LOAD = """
import json, os, sys
from importlib.metadata import entry_points
sys.path.append({torch!r})  # the environment with the wheel has none

def load(group):
    (ours,) = [point for point in entry_points(group=group) if point.name == "flashinfer_shim"]
    ours.load()()

def gates():
    return [f.door for f in sys.meta_path if getattr(f, "flashinfer_shim_gate", False) is True]
"""
TORCH = LOAD.format(torch=str(Path(wrapt.__file__).parent.parent))


def another_shim(directory: Path) -> None:
    """A user's own module of that name, beside the script, so that it comes before ours."""
    (directory / "shim.py").write_text("raise SystemExit('nobody asked for this')")


def test_a_framework_that_loads_our_plugin_changes_nothing_unless_it_was_asked_for(
    installed: Environment, run_child: RunChild, tmp_path: Path
) -> None:
    another_shim(tmp_path)
    code = """
        for value in (None, "", "off", "0", "sideways"):
            os.environ.pop("FLASHINFER_SHIM", None)
            if value is not None:
                os.environ["FLASHINFER_SHIM"] = value
            load("vllm.general_plugins")
            load("sglang.srt.plugins")
            if not value:
                assert GATE not in sys.modules
        hooks = {"shim.hook", "_flashinfer_shim.hook"}
        print(json.dumps([gates(), sorted((hooks | {"torch"}) & set(sys.modules))]))
        """
    code = f"GATE = {GATE!r}\n" + dedent(code)
    child = run_child(TORCH + code, shim=False, python=installed.python)
    assert (child.json, child.stderr) == ([[], []], ""), child


@pytest.mark.parametrize("imported", ["afterwards", "already"])
def test_a_plugin_activates_us_once_where_it_was_asked_for(
    imported: str, installed: Environment, run_child: RunChild, tmp_path: Path
) -> None:
    if imported == "afterwards":
        another_shim(tmp_path)
    code = """
        if {imported!r} == "already":
            from flashinfer import rmsnorm
        for group in ("sglang.srt.plugins", "vllm.general_plugins", "sglang.srt.plugins"):
            load(group)
        import flashinfer
        shim = sys.modules.get("_flashinfer_shim") or sys.modules["shim"]
        original_of = sys.modules[shim.__name__ + ".opaque.identity"].original_of
        ours = original_of(flashinfer.norm.rmsnorm) is not None
        copied = {imported!r} != "already" or rmsnorm is flashinfer.norm.rmsnorm
        applied = [r.verdict for r in shim.status() if r.patch == "rmsnorm"]
        again = original_of(original_of(flashinfer.norm.rmsnorm))
        shim.deactivate()
        load("sglang.srt.plugins")
        down = original_of(flashinfer.norm.rmsnorm) is None
        print(json.dumps([gates(), ours, copied, applied, again is None, down, shim.__file__]))
        """
    child = run_child(
        TORCH + dedent(code).format(imported=imported),
        release="0.6.3",
        shim=False,
        python=installed.python,
        env={"FLASHINFER_SHIM": "require"},
    )
    *found, file = child.json
    assert found == [["sglang plugin"], True, True, ["applied"], True, True], child
    assert Path(file).is_relative_to(installed.directory)


def test_a_plugin_leaves_a_process_alone_that_the_start_up_file_has_been_in(
    installed: Environment, run_child: RunChild
) -> None:
    startup = installed.command("path").removesuffix("\n")
    child = run_child(
        TORCH + 'load("vllm.general_plugins")\nprint(json.dumps(gates()))',
        python=installed.python,
        env={"PYTHONPATH": startup, "FLASHINFER_SHIM": "auto"},
    )
    assert child.json == ["sitecustomize"], child


def test_check_tells_of_the_plugins_of_an_installed_wheel(
    installed: Environment, run_child: RunChild
) -> None:
    for env, acts in (
        ({}, [False, False]),
        ({"FLASHINFER_SHIM": "on"}, [True, True]),
        ({"FLASHINFER_SHIM": "auto", "VLLM_PLUGINS": "other, flashinfer_shim"}, [True, True]),
        ({"FLASHINFER_SHIM": "auto", "VLLM_PLUGINS": "", "SGLANG_PLUGINS": ""}, [False, True]),
        ({"FLASHINFER_SHIM": "auto", "SGLANG_PLUGINS": "other"}, [True, False]),
    ):
        child = run_child(
            None,
            shim=False,
            python=installed.python,
            args=["-m", "shim", "check", "--json"],
            env=env,
        )
        report = json.loads(child.stdout)
        assert report["activated_by"] is None
        assert [plugin["acts"] for plugin in report["plugins"]] == acts, child
