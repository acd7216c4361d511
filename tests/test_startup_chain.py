"""The user's own sitecustomize, behind ours on the path, runs and fails as if we were not there."""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

import children
import pytest
import startup_trees as trees
from children import Child
from conftest import RunChild

USER = "import sys; sys.ran = [*getattr(sys, 'ran', []), __name__, __spec__.name]; mine = 'user'"
WHAT_RAN = """
import sys
import sitecustomize
print(getattr(sys, "ran", None), getattr(sitecustomize, "mine", None))
print(sum(hasattr(type(finder), "flashinfer_shim_gate") for finder in sys.meta_path))
"""
RAN_ONCE = "['sitecustomize', 'sitecustomize'] user\n1\n"

# Runs every other sitecustomize on the whole path once more, as several real ones do.
SEARCHES_THE_WHOLE_PATH = """
import importlib.machinery, importlib.util, os, sys
sys.turns = getattr(sys, "turns", 0) + 1
assert sys.turns < 5, "ping-pong"
own = os.path.dirname(os.path.abspath(__file__))
found = importlib.machinery.PathFinder.find_spec(
    "sitecustomize", [entry for entry in sys.path if os.path.abspath(entry) != own]
)
me = sys.modules.pop("sitecustomize")
if found:
    module = importlib.util.module_from_spec(found)
    sys.modules["sitecustomize"] = module
    found.loader.exec_module(module)
sys.modules["sitecustomize"] = me
"""

# As OpenTelemetry's does, once its work is done; it runs no other.
PUTS_ITSELF_IN_FRONT = """
import os
own = os.path.dirname(os.path.abspath(__file__))
stated = os.environ["PYTHONPATH"].split(os.pathsep)
stated.remove(own)
os.environ["PYTHONPATH"] = os.pathsep.join([own, *stated])
"""


@pytest.fixture(params=trees.SUPPORTED)
def run_child(request: pytest.FixtureRequest, tmp_path: Path) -> RunChild:
    """Each test runs on every interpreter: the import system differs between them."""
    return trees.on_python(request.param, tmp_path)


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return trees.wheel(tmp_path / "ours")


def test_a_module_runs(run_child: RunChild, tmp_path: Path, ours: Path) -> None:
    user = trees.write(tmp_path / "user", {"sitecustomize.py": USER})
    assert run_child(WHAT_RAN, env=trees.path(ours, user)).stdout == RAN_ONCE


def test_a_package_runs(run_child: RunChild, tmp_path: Path, ours: Path) -> None:
    user = trees.write(
        tmp_path / "user",
        {
            "sitecustomize/__init__.py": USER + "\nfrom .more import x",
            "sitecustomize/more.py": "x=1",
        },
    )
    assert run_child(WHAT_RAN, env=trees.path(ours, user)).stdout == RAN_ONCE


def test_a_compiled_file_without_its_source_runs(
    run_child: RunChild, tmp_path: Path, ours: Path
) -> None:
    user = trees.write(tmp_path / "user", {"sitecustomize.py": USER})
    assert run_child(None, args=["-m", "compileall", "-b", "-q", user]).returncode == 0
    (user / "sitecustomize.py").unlink()
    assert run_child(WHAT_RAN, env=trees.path(ours, user)).stdout == RAN_ONCE


def test_one_in_a_zip_archive_runs(run_child: RunChild, tmp_path: Path, ours: Path) -> None:
    with zipfile.ZipFile(tmp_path / "user.zip", "w") as archive:
        archive.writestr("sitecustomize.py", USER)
    environment = trees.path(ours, tmp_path / "user.zip")
    assert run_child(WHAT_RAN, env=environment).stdout == RAN_ONCE


def test_a_mere_folder_of_that_name_hides_nothing(
    run_child: RunChild, tmp_path: Path, ours: Path
) -> None:
    folder = trees.write(tmp_path / "folder", {"sitecustomize/note.txt": ""})
    user = trees.write(tmp_path / "user", {"sitecustomize.py": USER})
    assert run_child(WHAT_RAN, env=trees.path(ours, folder, user)).stdout == RAN_ONCE


def test_without_another_ours_is_the_module(run_child: RunChild, ours: Path) -> None:
    child = run_child("import sitecustomize; print(sitecustomize.__file__)", env=trees.path(ours))
    assert child.stdout == f"{ours / 'sitecustomize.py'}\n", child


def test_only_the_next_one_runs_as_without_us(
    run_child: RunChild, tmp_path: Path, ours: Path
) -> None:
    user = trees.write(tmp_path / "user", {"sitecustomize.py": USER})
    hidden = trees.write(tmp_path / "hidden", {"sitecustomize.py": "raise ValueError"})
    assert run_child(WHAT_RAN, env=trees.path(ours, user, hidden)).stdout == RAN_ONCE


def test_one_in_front_of_us_hides_us_and_is_not_run_twice(
    run_child: RunChild, tmp_path: Path, ours: Path
) -> None:
    user = trees.write(tmp_path / "user", {"sitecustomize.py": USER})
    child = run_child(WHAT_RAN, env=trees.path(user, ours))
    assert child.stdout == "['sitecustomize', 'sitecustomize'] user\n0\n"


@pytest.mark.parametrize("version", ["3.6", "3.7", "3.8", "3.9"])
def test_it_runs_on_a_python_too_old_for_us(
    run_child: RunChild, tmp_path: Path, ours: Path, version: str
) -> None:
    user = trees.write(tmp_path / "user", {"sitecustomize.py": USER})
    python = children.python_or_skip(version)
    child = run_child(WHAT_RAN, env=trees.path(ours, user), python=python)
    assert child.stdout == RAN_ONCE.replace("1", "0"), child


@pytest.mark.parametrize(
    "code",
    [
        "raise ValueError('mine')",
        "import a_module_that_is_not_there",
        "raise SystemExit(7)",
        "raise KeyboardInterrupt",
        "def f():\n    return 1 / 0\nf()",
        "this is no python",
        "import sys; del sys.modules['sitecustomize']",
    ],
)
def test_its_error_looks_as_without_us(
    run_child: RunChild, tmp_path: Path, ours: Path, code: str
) -> None:
    user = trees.write(tmp_path / "user", {"sitecustomize.py": code})

    def run(*entries: Path) -> Child:
        return run_child(None, args=["-c", "print('main')"], env=trees.path(*entries))

    without, with_us = run(user), run(ours, user)
    assert without.stderr or without.returncode  # else there is nothing to compare
    assert with_us.returncode == without.returncode
    assert with_us.stdout == without.stdout
    assert _from_users_file(with_us.stderr, user) == _from_users_file(without.stderr, user)


def test_its_traceback_ends_as_without_us(run_child: RunChild, tmp_path: Path, ours: Path) -> None:
    user = trees.write(tmp_path / "user", {"sitecustomize.py": "def f():\n    1 / 0\nf()\n"})

    def tail(*entries: Path) -> str:
        environment = trees.path(*entries) | {"PYTHONVERBOSE": "1"}
        stderr = run_child(None, args=["-c", "pass"], env=environment).stderr
        shown = re.search(
            r"Traceback.*?(  File \"[^\n]*user/sitecustomize.py.*?)^\w+: [^\n]*",
            stderr,
            re.S | re.M,
        )
        assert shown, stderr
        return shown[1] + shown[0].rsplit("\n", 1)[1]

    assert tail(ours, user) == tail(user)
    assert "ZeroDivisionError" in tail(user)


def test_after_its_error_our_gate_is_there(run_child: RunChild, tmp_path: Path, ours: Path) -> None:
    user = trees.write(tmp_path / "user", {"sitecustomize.py": "raise ValueError('mine')"})
    environment = trees.path(ours, user, trees.toy_flashinfer(tmp_path / "lib"))
    child = run_child("import flashinfer; print(flashinfer.answer())", env=environment)
    assert child.stdout == "patched\n", child


def test_two_copies_of_us_install_one_gate_and_run_it_once(
    run_child: RunChild, tmp_path: Path, ours: Path
) -> None:
    second = trees.checkout(tmp_path / "second")
    user = trees.write(tmp_path / "user", {"sitecustomize.py": USER})
    assert run_child(WHAT_RAN, env=trees.path(ours, second, user)).stdout == RAN_ONCE
    assert run_child(WHAT_RAN, env=trees.path(second, ours, user)).stdout == RAN_ONCE


def test_of_two_copies_the_first_ones_gate_stays(
    run_child: RunChild, tmp_path: Path, ours: Path
) -> None:
    second = trees.checkout(tmp_path / "second")
    child = run_child(
        """
        import sys
        module = sys.modules["_flashinfer_shim_gate"]
        print(module.__file__, type(sys.meta_path[0]) is module.Gate, sys.meta_path[0].directory)
        """,
        env=trees.path(ours, second),
    )
    package = ours.parent
    assert child.stdout == f"{package / 'gate.py'} True {package}\n", child


def test_our_directory_twice_through_a_link_runs_it_once(
    run_child: RunChild, tmp_path: Path, ours: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(ours)
    user = trees.write(tmp_path / "user", {"sitecustomize.py": USER})
    for order in ([ours, link, user], [link, user, ours], [ours, user, link]):
        assert run_child(WHAT_RAN, env=trees.path(*order)).stdout == RAN_ONCE


@pytest.mark.parametrize(
    ("order", "turns"), [("ours other user", 1), ("other ours user", 1), ("ours user other", 0)]
)
def test_a_shim_that_searches_the_whole_path_and_we_do_not_call_each_other_for_ever(
    run_child: RunChild, tmp_path: Path, ours: Path, order: str, turns: int
) -> None:
    folders = {
        "ours": ours,
        "other": trees.write(tmp_path / "other", {"sitecustomize.py": SEARCHES_THE_WHOLE_PATH}),
        "user": trees.write(tmp_path / "user", {"sitecustomize.py": USER}),
    }
    environment = trees.path(*(folders[name] for name in order.split()))
    child = run_child(
        "import sys; print(sys.ran, getattr(sys, 'turns', 0), 'sitecustomize' in sys.modules)",
        env=environment,
    )
    assert child.stderr == ""
    assert child.stdout == f"['sitecustomize', 'sitecustomize'] {turns} True\n", child


def test_one_that_puts_itself_in_front_of_us_for_children_is_put_behind_us(
    run_child: RunChild, tmp_path: Path, ours: Path
) -> None:
    other = trees.write(tmp_path / "other", {"sitecustomize.py": PUTS_ITSELF_IN_FRONT})
    show = "import os, sys; print(os.environ['PYTHONPATH'], '_flashinfer_shim_gate' in sys.modules)"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {show!r}])"
    for entries in ([ours, other], [tmp_path, ours, other], [other, ours]):
        stated = trees.path(*entries)
        child = run_child(start, env=stated)
        # In front of us it is where the user has put it.
        loaded = entries.index(ours) < entries.index(other)
        expected = [other, *(each for each in entries if each != other)]
        if loaded:
            expected.remove(ours)
            expected.insert(0, ours)
        path = trees.path(*expected)["PYTHONPATH"]
        assert child.stdout == f"{path} {loaded}\n", child


def test_running_twice_in_one_process_installs_one_gate(
    run_child: RunChild, tmp_path: Path, ours: Path
) -> None:
    user = trees.write(tmp_path / "user", {"sitecustomize.py": USER})
    child = run_child(
        "import importlib, sitecustomize; importlib.reload(sitecustomize)" + WHAT_RAN,
        env=trees.path(ours, user),
    )
    # As without us, the user's runs again.
    assert child.stdout == RAN_ONCE.replace("] user", ", 'sitecustomize', 'sitecustomize'] user")


def test_a_missing_package_still_lets_it_run(run_child: RunChild, tmp_path: Path) -> None:
    alone = trees.write(tmp_path / "alone", {"sitecustomize.py": trees.SITECUSTOMIZE.read_text()})
    user = trees.write(tmp_path / "user", {"sitecustomize.py": USER})
    child = run_child(WHAT_RAN, env=trees.path(alone, user))
    assert child.stdout == RAN_ONCE.replace("1", "0"), child


def _from_users_file(stderr: str, user: Path) -> str:
    """``stderr`` from the first line that names the user's file; whole where none does."""
    lines = stderr.splitlines()
    named = [number for number, line in enumerate(lines) if str(user) in line]
    return "\n".join(lines[named[0] :] if named else lines)


def test_the_pytest_process_itself_runs_no_copy_of_ours() -> None:
    assert "_flashinfer_shim_gate" not in sys.modules
