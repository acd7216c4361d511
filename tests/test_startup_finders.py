"""Finders and loaders of other people, in front of the gate and behind it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
import startup_trees as trees
from conftest import RunChild

# As an editable install has it: the module's place is known to a finder, not to sys.path.
EDITABLE_FINDER = """
import sys
from importlib.util import spec_from_file_location

class Editable:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "flashinfer":
            place = {folder!r} + "/flashinfer"
            return spec_from_file_location(
                name, place + "/__init__.py", submodule_search_locations=[place]
            )

sys.meta_path.append(Editable)
"""

# Instruments flashinfer by asking all other finders, wherever they stand.
ASKS_ALL_THE_OTHERS = """
import sys

class Instrumented:
    def __init__(self, loader):
        self.loader = loader
    def create_module(self, spec):
        return self.loader.create_module(spec)
    def exec_module(self, module):
        sys.turns = getattr(sys, "turns", 0) + 1
        self.loader.exec_module(module)

class Asks:
    def find_spec(self, name, path=None, target=None):
        if name != "flashinfer":
            return None
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    spec.loader = Instrumented(spec.loader)
                    return spec
"""

# Python 3.12 skips it, 3.11 calls find_module.
LEGACY_FINDER = """
import sys

class Odd:
    def find_module(self, name, path=None):
        return None

"""

LEGACY_LOADER = """
import sys, types
from importlib.machinery import ModuleSpec

class Legacy:
    def load_module(self, name):
        module = sys.modules[name] = types.ModuleType(name)
        module.answer = lambda: "legacy"
        return module

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "flashinfer":
            return ModuleSpec(name, Legacy())

sys.meta_path.append(Finder())
"""

# Finds FlashInfer's modules itself, as import hooks of type checkers do, and asks nobody.
ASKS_NOBODY = """
import sys
from importlib.machinery import PathFinder

class Checks:
    def find_spec(self, name, path=None, target=None):
        if name in {names!r}:
            return PathFinder.find_spec(name, path, target)

sys.meta_path.insert(0, Checks())
"""

ACTIVATES = """
import sys

def activate(*, again):
    gate = next(f for f in sys.meta_path if getattr(f, "flashinfer_shim_gate", False) is True)
    engage(gate)
    if "flashinfer.ops" in sys.modules:
        patch(sys.modules["flashinfer.ops"])
"""

ANSWER = "\nimport flashinfer\nprint(flashinfer.answer())\n"


@pytest.fixture(params=trees.SUPPORTED)
def run_child(request: pytest.FixtureRequest, tmp_path: Path) -> RunChild:
    """Each test runs on every interpreter: the import system differs between them."""
    return trees.on_python(request.param, tmp_path)


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return trees.wheel(tmp_path / "ours")


@pytest.fixture
def lib(tmp_path: Path) -> Path:
    return trees.toy_flashinfer(tmp_path / "lib")


def test_an_editable_install_is_patched(run_child: RunChild, ours: Path, lib: Path) -> None:
    code = EDITABLE_FINDER.format(folder=str(lib)) + ANSWER
    assert run_child(code, env=trees.path(ours)).stdout == "patched\n"


@pytest.mark.parametrize("place", ["insert(0, Asks())", "insert(1, Asks())"])
def test_a_finder_that_asks_all_the_others_is_asked_once(
    run_child: RunChild, ours: Path, lib: Path, place: str
) -> None:
    code = ASKS_ALL_THE_OTHERS + f"\nsys.meta_path.{place}\n" + ANSWER + "print(sys.turns)"
    assert run_child(code, env=trees.path(ours, lib)).stdout == "patched\n1\n"


@pytest.mark.parametrize("place", ["insert(0, Odd())", "insert(1, Odd())", "append(Odd())"])
def test_a_finder_without_find_spec_is_skipped(
    run_child: RunChild, ours: Path, lib: Path, place: str
) -> None:
    code = LEGACY_FINDER + f"sys.meta_path.{place}\n" + ANSWER
    child = run_child(code, args=["-Wignore"], env=trees.path(ours, lib))
    assert (child.stdout, child.stderr) == ("patched\n", "")


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (["flashinfer"], "ours"),
        (["flashinfer", "flashinfer.ops"], "ours"),
        (["flashinfer.ops"], "theirs"),
        (["flashinfer", "flashinfer.first"], "ours"),
    ],
)
def test_what_a_finder_in_front_finds_without_asking_is_patched_all_the_same(
    run_child: RunChild, tmp_path: Path, lib: Path, names: list[str], first: str
) -> None:
    ours = trees.wheel(tmp_path / "ours", hook=trees.HOOK + ACTIVATES)
    toy = {
        "__init__.py": "from . import first, ops, last",
        "first.py": "import colorsys",
        "last.py": "",
    }
    trees.write(lib / "flashinfer", toy)
    code = ASKS_NOBODY.format(names=names) + dedent(
        """
        import flashinfer
        gates = [hasattr(type(f), "flashinfer_shim_gate") for f in sys.meta_path]
        print(flashinfer.ops.answer(), "ours" if gates[0] else "theirs")
        print(sum(gates))
        """
    )
    child = run_child(code, env=trees.path(ours, lib))
    assert (child.stdout, child.stderr) == (f"patched {first}\n1\n", ""), child

    without = run_child(code, env=trees.path(lib))
    assert without.stdout == "original theirs\n0\n"


def test_a_finder_that_gives_the_same_spec_again_is_gated_once(
    run_child: RunChild, ours: Path, lib: Path
) -> None:
    child = run_child(
        """
        import importlib.machinery, importlib.util, sys
        spec = importlib.machinery.PathFinder.find_spec("flashinfer")
        native = spec.loader
        class Keeps:
            def find_spec(self, name, path=None, target=None):
                return spec if name == "flashinfer" else None
        sys.meta_path.insert(1, Keeps())
        for _ in range(3):
            assert importlib.util.find_spec("flashinfer") is spec
        import flashinfer
        print(flashinfer.answer(), sys.meta_path[0].engaged, flashinfer.__loader__ is native)
        """,
        env=trees.path(ours, lib),
    )
    assert child.stdout == "patched 1 True\n", child


def test_an_import_while_another_thread_is_probing_is_patched(
    run_child: RunChild, ours: Path, lib: Path
) -> None:
    child = run_child(
        """
        import sys, threading
        probing, imported = threading.Event(), threading.Event()
        class Slow:
            def find_spec(self, name, path=None, target=None):
                if threading.current_thread() is prober:
                    probing.set()
                    imported.wait(60)
        sys.meta_path.insert(1, Slow())
        # Directly, as pkgutil does: the import system would hold its lock meanwhile.
        prober = threading.Thread(target=sys.meta_path[0].find_spec, args=("flashinfer",))
        prober.start()
        probing.wait(60)
        import flashinfer
        imported.set()
        prober.join()
        print(flashinfer.answer())
        """,
        env=trees.path(ours, lib),
    )
    assert child.stdout == "patched\n", child


def test_a_finder_that_answers_to_every_name_is_not_taken_for_our_gate(
    run_child: RunChild, ours: Path, lib: Path
) -> None:
    mock = trees.write(
        lib.parent / "mock",
        {
            "sitecustomize.py": """
            import sys, unittest.mock
            finder = unittest.mock.MagicMock()
            finder.find_spec.return_value = None
            sys.meta_path.insert(0, finder)
            import runpy
            """
            + f"runpy.run_path({str(ours / 'sitecustomize.py')!r})"
        },
    )
    assert run_child(ANSWER, env=trees.path(mock, lib)).stdout == "patched\n"


def test_a_namespace_package_stays_one(run_child: RunChild, ours: Path, tmp_path: Path) -> None:
    one = trees.write(tmp_path / "one", {"flashinfer/a.py": "x = 1"})
    two = trees.write(tmp_path / "two", {"flashinfer/b.py": "x = 2"})
    code = """
        import importlib.util, sys
        print(importlib.util.find_spec("flashinfer").loader, "shim" in sys.modules)
        import flashinfer.a, flashinfer.b
        print(flashinfer.a.x, flashinfer.b.x, len(flashinfer.__path__), flashinfer.__file__)
        """
    with_us = run_child(code, env=trees.path(ours, one, two))
    without = run_child(code, env=trees.path(one, two))
    assert with_us.stdout.splitlines()[-1].startswith("1 2 2"), with_us
    assert with_us.stdout == without.stdout


def test_a_loader_without_exec_module_is_left_alone(run_child: RunChild, ours: Path) -> None:
    child = run_child(LEGACY_LOADER + ANSWER, args=["-Wignore"], env=trees.path(ours))
    assert (child.stdout, child.stderr) == ("legacy\n", "")


def test_a_finder_behind_us_that_raises_is_heard(run_child: RunChild, ours: Path) -> None:
    child = run_child(
        """
        import sys
        class Broken:
            def find_spec(self, name, path=None, target=None):
                raise OSError("disk gone")
        sys.meta_path.insert(1, Broken())
        for _ in range(2):
            try:
                import flashinfer
            except OSError as error:
                print(error)
        """,
        env=trees.path(ours),
    )
    assert child.stdout == "disk gone\ndisk gone\n", child
