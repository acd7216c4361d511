"""Other people's modules called ``shim``: theirs stay theirs, and we patch all the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import startup_trees as trees
from conftest import RunChild

WHOSE = """
import json, sys
import flashinfer
ours = sorted(name for name in sys.modules if name.split(".")[0] in ("shim", "_flashinfer_shim"))
print(json.dumps([flashinfer.answer(), ours, sys.meta_path[0].fault]))
"""
PRIVATE = ["_flashinfer_shim", "_flashinfer_shim.hook"]
AS_SHIM = ["patched", ["shim", "shim.hook"], None]
PRIVATELY = ["patched", PRIVATE, None]
FOREIGN = {"shim/__init__.py": "mine = 'foreign'", "shim/gate.py": "raise ValueError('not ours')"}


@pytest.fixture(params=trees.SUPPORTED)
def run_child(request: pytest.FixtureRequest, tmp_path: Path) -> RunChild:
    """Each test runs on every interpreter: the import system differs between them."""
    return trees.on_python(request.param, tmp_path)


@pytest.fixture
def lib(tmp_path: Path) -> Path:
    return trees.toy_flashinfer(tmp_path / "lib")


def test_the_package_is_called_shim_where_that_name_is_ours(
    run_child: RunChild, tmp_path: Path, lib: Path
) -> None:
    startup = trees.wheel(tmp_path / "ours")
    assert run_child(WHOSE, env=trees.path(startup, tmp_path / "ours", lib)).json == AS_SHIM
    checkout = trees.checkout(tmp_path / "checkout")
    assert run_child(WHOSE, env=trees.path(checkout, lib)).json == AS_SHIM
    assert run_child("import shim" + WHOSE, env=trees.path(checkout, lib)).json == AS_SHIM


def test_an_editable_installs_link_to_the_package_is_ours(
    run_child: RunChild, tmp_path: Path, lib: Path
) -> None:
    checkout = trees.checkout(tmp_path / "checkout")
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "shim").symlink_to(checkout / "shim")
    assert run_child(WHOSE, env=trees.path(linked, checkout, lib)).json == AS_SHIM


def test_in_an_environment_without_us_the_package_has_a_private_name(
    run_child: RunChild, tmp_path: Path, lib: Path
) -> None:
    startup = trees.wheel(tmp_path / "ours")
    assert run_child(WHOSE, env=trees.path(startup, lib)).json == PRIVATELY


@pytest.mark.parametrize(
    ("foreign", "mine"),
    [
        (FOREIGN, "foreign"),
        ({"shim.py": "mine = 'foreign'"}, "foreign"),
        ({"shim/note.txt": "a mere folder"}, "nothing"),
    ],
)
@pytest.mark.parametrize("imported_first", [True, False])
def test_a_foreign_shim_earlier_on_the_path_stays_its_users(
    run_child: RunChild,
    tmp_path: Path,
    lib: Path,
    foreign: dict[str, str],
    mine: str,
    imported_first: bool,
) -> None:
    startup = trees.wheel(tmp_path / "ours")
    theirs = trees.write(tmp_path / "theirs", foreign)
    use = "import shim; mine = getattr(shim, 'mine', 'nothing')\n"
    code = use + WHOSE if imported_first else WHOSE + use
    # Whichever comes first, each gets the one that is meant.
    child = run_child(code + "print(mine)", env=trees.path(theirs, startup, lib))
    first, second = child.stdout.splitlines()
    assert second == mine, child
    answer, ours, fault = json.loads(first)
    assert (answer, fault) == ("patched", None)
    assert set(PRIVATE) <= set(ours), child


def test_a_foreign_shim_in_the_working_directory_stays_its_users(
    run_child: RunChild, tmp_path: Path, lib: Path
) -> None:
    trees.write(tmp_path, FOREIGN)
    checkout = trees.checkout(tmp_path / "checkout")
    code = WHOSE + "import shim; print(json.dumps([shim.mine, shim.__file__]))"
    for args in (["-c", code], ["-m", "child"]):
        (tmp_path / "child.py").write_text(code)
        child = run_child(None, args=args, env=trees.path(checkout, lib))
        assert child.json == ["foreign", str(tmp_path / "shim" / "__init__.py")], child
        assert child.stdout.startswith('["patched", ["_flashinfer_shim"'), child


@pytest.mark.parametrize("block", ["None", "object()"])
def test_the_name_shim_may_be_blocked(
    run_child: RunChild, tmp_path: Path, lib: Path, block: str
) -> None:
    checkout = trees.checkout(tmp_path / "checkout")
    child = run_child(
        f"""
        import sys
        sys.modules["shim"] = block = {block}
        import flashinfer
        print(flashinfer.answer(), sys.modules["shim"] is block)
        """,
        env=trees.path(checkout, lib),
    )
    assert child.stdout == "patched True\n", child


def test_the_private_package_is_loaded_once(run_child: RunChild, tmp_path: Path, lib: Path) -> None:
    startup = trees.wheel(tmp_path / "ours")
    child = run_child(
        """
        import importlib, sys, flashinfer
        first = sys.modules["_flashinfer_shim"]
        importlib.reload(flashinfer)
        print(sys.modules["_flashinfer_shim"] is first, sys.meta_path[0].engaged)
        """,
        env=trees.path(startup, lib),
    )
    assert child.stdout == "True 2\n", child
