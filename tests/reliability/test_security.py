"""What docs/security.md claims: what the environment can do to a process, and who else can."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import releases
import startup_trees as trees
from check_command import check, pythonpath
from conftest import RunChild
from releases import ROOT

from shim.cli.check_writers import writer_of
from shim.settings import AUDIT, PATCHES, VARIABLES

PRODUCT = [*sorted((ROOT / "shim").rglob("*.py")), ROOT / "sitecustomize.py"]
PRODUCT.append(ROOT / "flashinfer_shim_plugin.py")
#: They run where somebody types a command of ours, and in the children that it starts.
COMMANDS = (
    "shim/cli/",
    "shim/prewarm/",
    "shim/proof/",
    "shim/pretend.py",
    "shim/start_child.py",
    "shim/talking.py",
)


# --- What the sources do --------------------------------------------------------------------------

# No proof of what flows where: a list of every place that could matter, by file, so that a new one
# is looked at by whoever writes it. What really happens is the matter of the audit hook below.

#: Variable -> what its value may become, in any process that FlashInfer is imported in.
READ_ANYWHERE = {
    "'FLASHINFER_SHIM'": "one of three words",
    "MODE.name": "one of three words",
    "variable.name": "one of the spellings of shim/settings.py",
    "PATCHES": "a set of names that we know",
    "AUDIT": "a directory that exists, for files of our own naming",
    "'FLASHINFER_SHIM_LOG'": "one of four words",
    "SAID": "words to compare with",
    "'PYTHONPATH'": "the same entries in another order",
    "'FLASHINFER_AUTOTUNER_LOAD_FROM_FILE'": "a comparison with '1'",
    "'FLASHINFER_NVFP4_QUANTIZE_USE_TMA'": "a comparison with '1'",
    "name": "a part of an op's name, which is a digest",
    "targets.VARIABLE": "a list of numbers to compare with",
    # As FlashInfer itself looks for nvcc: started with FLASHINFER_SHIM_CUDA_VERSION=nvcc alone.
    "variable": "the directory of FlashInfer's own nvcc: CUDA_HOME, CUDA_PATH",
    "'CUDA_PATH'": "the directory of FlashInfer's own nvcc",
    "'PATH'": "the directory of FlashInfer's own nvcc",
    "VARIABLE": "where FlashInfer keeps modules, looked at",
    "'HOME'": "where FlashInfer keeps modules, looked at",
    "CUBIN_DIR": "a comparison",
    "UNCHECKED": "a comparison",
}
ENVIRONMENTS = {"environ", "os.environ", "env", "environment"}

#: Calls that import, execute, start or write, by the files that make them in any process.
CALLS_ANYWHERE: dict[str, dict[str, str]] = {
    "import": {
        "sitecustomize.py": "our gate by its place, the next sitecustomize",
        "flashinfer_shim_plugin.py": "our gate by its place, our own modules",
        "shim/__init__.py": "our own modules",
        "shim/gate.py": "our own handover.py, by its place",
        "shim/handover.py": "our own package, FlashInfer's loaders",
        "shim/patches/": "modules of FlashInfer's and builders of ours that the tables name",
        "shim/opaque/op.py": "modules that the tables name",
        "shim/opaque/schema.py": "modules that the tables name",
        "shim/opaque/shadow.py": "what FlashInfer's own functions import",
    },
    "execute": {
        "shim/opaque/binding.py": "a function with the parameters of one of FlashInfer's",
        "shim/opaque/dispatch.py": "a function with as many parameters as one of FlashInfer's",
        "shim/opaque/kernel.py": "the kernel of an op, likewise",
        "shim/opaque/shadow.py": "FlashInfer's own functions, with other globals",
        "shim/late.py": "FlashInfer's own functions, as they were",
    },
    "start": {
        "shim/limited.py": "FlashInfer's own nvcc, asked for; and what commands start",
    },
    "write": {"shim/audit/recorder.py": "into the directory of FLASHINFER_SHIM_AUDIT"},
}
KINDS = {
    "import": {
        *("__import__", "import_module", "_load", "spec_from_file_location", "exec_module"),
        *("run_path", "run_module", "load_module"),
    },
    "execute": {"exec", "eval", "FunctionType"},
    "start": {
        *("Popen", "check_call", "check_output", "system", "popen", "fork", "posix_spawn", "CDLL"),
        *("execv", "execve", "execvp", "execvpe", "execl", "execlp"),
    },
    "write": {
        *("write_text", "write_bytes", "mkdir", "makedirs", "unlink", "rename", "rmtree"),
        *("symlink", "symlink_to", "touch", "chmod", "mkdtemp", "mkstemp", "TemporaryFile"),
        *("NamedTemporaryFile", "TemporaryDirectory"),
    },
}
#: The same, where the last word alone would say too little; and what is no such call.
WHOLE = {
    "compile": "execute",
    "subprocess.run": "start",
    "os.remove": "write",
    "os.replace": "write",
    "self._load": None,
}


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_bytes())


def everywhere() -> Iterator[tuple[str, ast.AST]]:
    """Every node of what may run in any process, with its file's name."""
    for file in PRODUCT:
        if not name_of(file).startswith(COMMANDS):
            for node in ast.walk(parsed(file)):
                yield name_of(file), node


def test_every_variable_that_is_read_is_known_with_what_becomes_of_it() -> None:
    found = {}
    for file, node in everywhere():
        key: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if ast.unparse(node.func.value) in ENVIRONMENTS and node.args:
                key = node.args[0]
            assert node.func.attr not in ("getenv", "getenvb", "environb"), file
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) in ENVIRONMENTS:
            key = node.slice
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) in ENVIRONMENTS:
            key = node.left
        if key is not None:
            found[ast.unparse(key)] = file
    assert found.keys() == READ_ANYWHERE.keys(), found


def test_every_call_that_imports_executes_starts_or_writes_is_known() -> None:
    found: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for file, node in everywhere():
        kind = _kind(node) if isinstance(node, ast.Call) else None
        if kind:
            found[kind].add(file)
    for kind, allowed in CALLS_ANYWHERE.items():
        unknown = {file for file in found[kind] if not file.startswith(tuple(allowed))}
        assert not unknown, (kind, unknown)
        idle = [each for each in allowed if not any(file.startswith(each) for file in found[kind])]
        assert not idle, (kind, idle)


def _kind(call: ast.Call) -> str | None:
    called = ast.unparse(call.func)
    last = called.rpartition(".")[2]
    if called in WHOLE:
        return WHOLE[called]
    if last in ("open", "fdopen"):
        return "write" if _writes(call) else None
    return next((kind for kind, names in KINDS.items() if last in names), None)


def _writes(call: ast.Call) -> bool:
    modes = [*call.args[:2], *(word.value for word in call.keywords if word.arg == "mode")]
    texts = [mode.value for mode in modes if isinstance(mode, ast.Constant)]
    return any(
        isinstance(text, str) and len(text) < 4 and set(text) & set("wax+") for text in texts
    )


def test_nothing_is_unpickled_and_the_network_is_no_module_of_ours() -> None:
    """But for pip, which ``radar`` starts, and for Ray and gloo, by which ``check`` asks others."""
    loaders = {"pickle", "marshal", "shelve", "dill", "yaml"}
    network = {"socket", "ssl", "urllib", "http", "ftplib", "requests", "asyncio"}
    found = set()
    for file in PRODUCT:
        for node in ast.walk(parsed(file)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            found |= {(name_of(file), name.partition(".")[0]) for name in names}
    assert not {each for each in found if each[1] in loaders}
    assert {file for file, name in found if name in network} == {
        "shim/cli/check_node.py",
        "shim/cli/check_ray.py",
        "shim/prewarm/building.py",
    }


# --- What really happens --------------------------------------------------------------------------

# Before any sitecustomize: the .pth file of a virtual environment.
WATCH = """
import os, sys

happened = set()
sys.happened = happened
inside = []
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC

def watch(event, arguments):
    if inside:
        return
    inside.append(event)
    try:
        if event == "open":
            path, mode, flags = arguments
            if flags & WRITING:
                happened.add(f"write {path}")
        elif event == "import":
            happened.add(f"import {arguments[0]}")
        elif event == "exec":
            happened.add(f"exec {arguments[0].co_filename}")
        elif event in ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "os.fork"):
            happened.add(f"start {arguments[:2]}")
        elif event.startswith(("socket.", "urllib.", "ctypes.dlopen", "pickle.find_class")):
            happened.add(f"{event} {arguments}")
        elif event in ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.link",
                       "os.symlink", "os.truncate", "os.utime", "os.chown", "shutil.rmtree"):
            happened.add(f"write {event} {arguments}")
    finally:
        inside.clear()

sys.addaudithook(watch)
"""

USE = """
import json, sys
import child_side
import torch
import flashinfer

half = dict(dtype=torch.float16)
norm = torch.compile(lambda x, w: flashinfer.norm.rmsnorm(x, w), fullgraph=True, backend="eager")
compiled = True
try:
    with child_side.fake_cuda():
        norm(torch.empty(4, 64, **half), torch.empty(64, **half))
except Exception as error:
    compiled = False
try:
    flashinfer.get_cuda_version()
except Exception:
    pass
print(json.dumps([compiled, sorted(sys.happened)]))
"""


@pytest.fixture
def watching(tmp_path: Path) -> Path:
    """The interpreter of an environment that keeps a list of what happens in it."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "watching_for_tests.py").write_text(WATCH)
    here = [entry for entry in sys.path if entry.endswith("site-packages")]
    (packages / "watch.pth").write_text("\n".join(["import watching_for_tests", *here]) + "\n")
    return tmp_path / "venv" / "bin" / "python"


def hostile_values(folder: Path) -> list[str]:
    """What would leave a trace if it became a command, a module, a file or a format."""
    trap = folder / "trap"
    module = trees.write(folder, {"trap_module.py": f"open({str(trap)!r}, 'w')"})
    return [
        f"$(touch {trap}); `touch {trap}` | touch {trap} && touch {trap}",
        f"{module}/trap_module.py",
        "trap_module",
        f"__import__('os').system('touch {trap}')",
        str(folder / "a_file_that_is_not_there"),
        "../" * 40 + "etc/passwd",
        "%s%n{0.__class__}\\x00\n\r\t\x1b[31m" + "A" * 100_000,
        "auto,-trap_module,all;\u202e",
    ]


@pytest.mark.long
def test_no_value_of_a_variable_of_ours_does_anything(
    run_child: RunChild, watching: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    def happens(path: list[Path], values: Mapping[str, str]) -> tuple[bool, set[str]]:
        env = {
            **trees.path(*path, releases.path("0.6.3"), ROOT / "tests"),
            "PYTHONDONTWRITEBYTECODE": "1",
            **values,
        }
        child = run_child(None, args=[tmp_path / "use.py"], python=watching, env=env)
        compiled, happened = child.json
        # tempfile tries where it can write, by a file whose name is random.
        probe = re.compile(re.escape(tempfile.gettempdir()) + r"/[a-z0-9_]{8}(?!\w)")
        return compiled, {probe.sub("a probe", each) for each in happened}

    (tmp_path / "use.py").write_text(USE)
    known = [*(variable.name for variable in VARIABLES), PATCHES, AUDIT]
    without, bare = happens([], {})
    with_us, usual = happens([ROOT], {})
    assert (without, with_us) == (False, True)
    assert done(usual) <= done(bare)

    hostile = hostile_values(tmp_path)
    for value in hostile:
        compiled, happened = happens([ROOT], dict.fromkeys(known, value))
        assert compiled, value
        assert happened <= usual | bare, (value, sorted(happened - usual - bare))
    assert not (tmp_path / "trap").exists()
    figure(f"security: {len(known)} variables with {len(hostile)} hostile values, nothing done")


def done(happened: set[str]) -> set[str]:
    """What is written, started, loaded or sent."""
    return {each for each in happened if not each.startswith(("import ", "exec "))}


@pytest.mark.long
def test_where_nvcc_was_chosen_it_is_all_that_is_started(
    run_child: RunChild, watching: Path, tmp_path: Path
) -> None:
    nvcc = trees.write(
        tmp_path / "cuda",
        {"bin/nvcc": "#!/bin/sh\necho 'Cuda compilation tools, release 12.9, V12.9.1'\n"},
    )
    (nvcc / "bin" / "nvcc").chmod(0o755)
    (tmp_path / "use.py").write_text(USE)
    started = {}
    for choice in ("torch", "nvcc"):
        env = {
            **trees.path(ROOT, releases.path("0.7.4"), ROOT / "tests"),
            "CUDA_HOME": str(nvcc),
            "FLASHINFER_SHIM_CUDA_VERSION": choice,
        }
        child = run_child(None, args=[tmp_path / "use.py"], python=watching, env=env)
        started[choice] = [each for each in child.json[1] if each.startswith("start ")]
    program = str(nvcc / "bin" / "nvcc")
    assert any(program in each for each in started["nvcc"]), started
    others = [[each for each in events if program not in each] for events in started.values()]
    assert others[0] == others[1]


# --- Who else may write ---------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory that nobody else may change, some way below one of that kind."""
    directory = tmp_path / "above" / "directory"
    directory.mkdir(parents=True)
    for each in (tmp_path, directory.parent, directory):
        each.chmod(0o755)
    assert writer_of(str(directory)) is None
    return directory


def test_a_directory_that_others_may_write_is_told_of(place: Path) -> None:
    place.chmod(0o777)
    found = writer_of(str(place))
    assert found is not None
    assert (found.path, found.who, found.action) == (
        str(place),
        "everybody",
        f"chmod o-w {place}",
    )
    place.chmod(0o1777)  # anybody may put a new file there
    assert writer_of(str(place)) is not None


def test_one_above_counts_unless_it_is_sticky(place: Path) -> None:
    place.parent.chmod(0o777)
    found = writer_of(str(place))
    assert found is not None
    assert found.path == str(place.parent)
    place.parent.chmod(0o1777)
    assert writer_of(str(place)) is None


def test_links_on_the_way_are_followed(place: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("above/../above")
    assert writer_of(str(link / "directory")) is None
    place.parent.chmod(0o777)
    found = writer_of(str(link / "directory"))
    assert found is not None
    assert found.path == str(place.parent)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert writer_of(str(loop / "directory")) is None
    assert writer_of(str(tmp_path / "nothing_there")) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_an_owner_that_is_neither_root_nor_us_is_told_of(place: Path, tmp_path: Path) -> None:
    for path in (place, place.parent):
        os.chown(path, 4242, -1)
        found = writer_of(str(place))
        assert found is not None
        assert (found.path, found.who) == (str(path), "user 4242")
        os.chown(path, 0, -1)
    link = tmp_path / "link"
    link.symlink_to(place)
    os.chown(link, 4242, -1, follow_symlinks=False)
    found = writer_of(str(link))
    assert found is not None
    assert found.path == str(link)


def test_a_group_counts_where_it_has_other_members(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shim.cli import check_writers

    place.chmod(0o775)
    for members, told in (("", False), ("group staff", True)):
        monkeypatch.setattr(check_writers, "_members", lambda gid, members=members: members)
        assert (writer_of(str(place)) is not None) is told


def test_check_warns_of_what_is_before_us_and_not_of_what_is_behind(
    run_child: RunChild, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    before, behind = tmp_path / "before", tmp_path / "behind"
    for each in (before, behind):
        each.mkdir()
        each.chmod(0o777)
    path = pythonpath(before, ROOT, behind, releases.path("0.6.3"))
    report = check(run_child, env=path).report
    told = [each for each in report["warnings"] if each["code"] == "writable_path"]
    assert [each["action"] for each in told] == [f"chmod o-w {before}"]
    assert told[0]["text"].startswith(f"everybody may change {before}")
    assert report["exit_status"] == 0


# --- Rights that are not the user's ---------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process with two user ids")
@pytest.mark.parametrize("ids", ["os.setresuid(4242, 0, 0)", "os.setresgid(4242, 0, 0)"])
def test_a_process_with_borrowed_rights_does_without_us(
    run_child: RunChild, tmp_path: Path, ids: str
) -> None:
    """And runs the user's sitecustomize, as it would without us."""
    user = trees.write(tmp_path / "user", {"sitecustomize.py": "mine = True"})
    show = (
        "import sys, sitecustomize; "
        "print('_flashinfer_shim_gate' in sys.modules, sitecustomize.mine)"
    )
    start = f"import os, sys; {ids}; os.execv(sys.executable, [sys.executable, '-c', {show!r}])"
    env = trees.path(ROOT, user)
    assert run_child(None, args=["-c", show], env=env).stdout == "True True\n"
    assert run_child(None, args=["-c", start], env=env).stdout == "False True\n"

    plugin = (
        "import sys, flashinfer_shim_plugin; flashinfer_shim_plugin.vllm(); "
        "print('_flashinfer_shim_gate' in sys.modules)"
    )
    start_plugin = start.replace(repr(show), repr(plugin))
    asked = {**env, "FLASHINFER_SHIM": "auto"}
    assert run_child(None, args=["-c", plugin], env=asked).stdout == "True\n"
    assert run_child(None, args=["-c", start_plugin], env=asked).stdout == "False\n"

    say = [sys.executable, "-m", "shim", "check", "--json"]
    start = f"import os, sys; {ids}; os.execv(sys.executable, {say!r})"
    report = json.loads(run_child(None, args=["-c", start], env=env).stdout)
    assert report["loading"]["loads"] is False
    assert "setuid, setgid" in report["loading"]["reason"]


# --- What is released -----------------------------------------------------------------------------


LEFT_OUT = (".git", ".venv*", ".cache", ".editable", "*_cache", "__pycache__", "dist", ".nox")


@pytest.mark.slow
def test_two_builds_are_the_same_byte_for_byte(tmp_path: Path) -> None:
    """In other directories, at other times, with other rights on the files, by another umask."""
    built: list[list[bytes]] = []
    for name, umask, mode in (("one", 0o022, 0o644), ("another/place", 0o077, 0o600)):
        copy = tmp_path / name
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
        for number, file in enumerate(sorted(copy.rglob("*"))):
            if file.is_file():
                file.chmod(mode | (stat.S_IXUSR if os.access(file, os.X_OK) else 0))
                os.utime(file, (1_000_000_000 + number, 1_100_000_000 * (len(built) + 1) // 2))
        command = [sys.executable, "-m", "build", "--no-isolation", f"--outdir={copy / 'dist'}"]
        env = {name: each for name, each in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
        done = subprocess.run(
            [*command, str(copy)],
            umask=umask,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        built.append([file.read_bytes() for file in sorted((copy / "dist").iterdir())])
    assert len(built[0]) == 2
    assert built[0] == built[1]

    # Nothing but the repository's own files, no link, no program, nobody's name.
    (wheel,) = (tmp_path / "one" / "dist").glob("*.whl")
    (sdist,) = (tmp_path / "one" / "dist").glob("*.tar.gz")
    files = {str(file.relative_to(tmp_path / "one")) for file in (tmp_path / "one").rglob("*")}
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert {member.name.partition("/")[2] for member in members} - files == {"PKG-INFO"}
    assert all(member.isfile() or member.isdir() for member in members)
    assert {(member.uid, member.gid, member.uname, member.gname) for member in members} == {
        (0, 0, "", "")
    }
    with zipfile.ZipFile(wheel) as packed:
        modes = {entry.external_attr >> 16 for entry in packed.infolist()}
    assert not any(mode & (stat.S_IWGRP | stat.S_IWOTH | stat.S_ISUID) for mode in modes), modes


@pytest.mark.long
def test_the_audit_is_clean_and_its_bill_of_materials_is_valid_and_whole(tmp_path: Path) -> None:
    """``make audit``: bandit, and what pip-audit can find out where it runs."""
    copy = tmp_path / "checkout"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
    tools = {"bin/python": f'#!/bin/sh\nexec {sys.executable} "$@"\n', ".ready": ""}
    trees.write(copy / ".venv", tools)
    (copy / ".venv" / "bin" / "python").chmod(0o755)
    done = subprocess.run(
        ["make", "audit", f"PYTHON={sys.executable}"],
        cwd=copy,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Issue:" not in done.stdout
    (bill,) = (copy / "dist").glob("*.cdx.json")  # validated by the tool that wrote it
    found: dict[str, Any] = json.loads(bill.read_text())
    assert found["bomFormat"] == "CycloneDX"
    assert found["metadata"]["component"]["name"] == "flashinfer-shim"
    assert bill.name == f"flashinfer_shim-{found['metadata']['component']['version']}.cdx.json"
    (root,) = (each for each in found["dependencies"] if each["ref"] == "root-component")
    names = {each.partition("==")[0].replace("_", "-") for each in root["dependsOn"]}
    assert names == {"importlib-metadata", "packaging", "wrapt"}
    assert not {"torch", "flashinfer-python", "pip"} & {
        each["name"] for each in found["components"]
    }
