"""FlashInfer's import behind the gate: patched every time, and native to whoever looks."""

from __future__ import annotations

import zipfile
from pathlib import Path
from textwrap import dedent

import pytest
import startup_trees as trees
from conftest import RunChild

Environment = dict[str, str | None]


@pytest.fixture(params=trees.SUPPORTED)
def run_child(request: pytest.FixtureRequest, tmp_path: Path) -> RunChild:
    """Each test runs on every interpreter: the import system differs between them."""
    return trees.on_python(request.param, tmp_path)


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return trees.path(trees.wheel(tmp_path / "ours"), trees.toy_flashinfer(tmp_path / "lib"))


def test_a_first_import_is_patched(run_child: RunChild, environment: Environment) -> None:
    child = run_child("import flashinfer; print(flashinfer.answer())", env=environment)
    assert child.stdout == "patched\n", child


def test_the_import_of_a_submodule_is_patched(
    run_child: RunChild, environment: Environment
) -> None:
    child = run_child("from flashinfer.ops import answer; print(answer())", env=environment)
    assert child.stdout == "patched\n", child


def test_a_process_that_never_imports_flashinfer_never_loads_the_package(
    run_child: RunChild, environment: Environment
) -> None:
    child = run_child(
        "import sys, json; print([name for name in sys.modules if 'shim' in name])", env=environment
    )
    assert child.stdout == "['_flashinfer_shim_gate']\n", child


def test_a_probe_finds_flashinfer_and_starts_nothing(
    run_child: RunChild, environment: Environment
) -> None:
    child = run_child(
        """
        import importlib.util, sys
        before = set(sys.modules)
        for _ in range(3):
            assert importlib.util.find_spec("flashinfer").origin.endswith("__init__.py")
        assert set(sys.modules) == before, set(sys.modules) - before
        import flashinfer
        importlib.util.find_spec("flashinfer"), importlib.util.find_spec("flashinfer.ops")
        print(flashinfer.answer(), sys.meta_path[0].engaged)
        """,
        env=environment,
    )
    assert child.stdout == "patched 1\n", child


def test_a_probe_of_what_is_not_installed_finds_nothing(
    run_child: RunChild, tmp_path: Path
) -> None:
    child = run_child(
        """
        import importlib.util
        print(importlib.util.find_spec("flashinfer"))
        try:
            import flashinfer
        except ModuleNotFoundError as error:
            print(error.name)
        """,
        env=trees.path(trees.wheel(tmp_path / "ours")),
    )
    assert child.stdout == "None\nflashinfer\n", child


def test_the_spec_that_a_probe_gets_behaves_as_the_native_one(
    run_child: RunChild, environment: Environment
) -> None:
    child = run_child(
        """
        import copy, importlib.abc, importlib.machinery, importlib.util, pickle
        spec = importlib.util.find_spec("flashinfer")
        native = importlib.machinery.PathFinder.find_spec("flashinfer")
        assert isinstance(spec.loader, importlib.machinery.SourceFileLoader)
        assert isinstance(spec.loader, importlib.abc.InspectLoader)
        assert spec.loader.path == native.loader.path
        assert spec.loader.get_source("flashinfer") == native.loader.get_source("flashinfer")
        assert spec.loader.get_code("flashinfer") == native.loader.get_code("flashinfer")
        assert spec.loader.is_package("flashinfer")
        assert not hasattr(spec.loader, "no_such_attribute")
        assert pickle.loads(pickle.dumps(spec)) == native == copy.deepcopy(spec)
        for name in ("name", "origin", "cached", "has_location", "submodule_search_locations"):
            assert getattr(spec, name) == getattr(native, name), name
        print("native")
        """,
        env=environment,
    )
    assert child.stdout == "native\n", child


def test_a_module_from_a_probed_spec_is_patched_when_it_is_executed(
    run_child: RunChild, environment: Environment
) -> None:
    child = run_child(
        """
        import importlib.util, sys
        spec = importlib.util.find_spec("flashinfer")
        module = sys.modules["flashinfer"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        print(module.answer())
        """,
        env=environment,
    )
    assert child.stdout == "patched\n", child


def test_a_lazy_import_is_patched_when_it_is_used(
    run_child: RunChild, environment: Environment
) -> None:
    child = run_child(
        """
        import importlib.util, sys
        spec = importlib.util.find_spec("flashinfer")
        spec.loader = lazy = importlib.util.LazyLoader(spec.loader)
        module = sys.modules["flashinfer"] = importlib.util.module_from_spec(spec)
        lazy.exec_module(module)
        print("flashinfer.ops" in sys.modules, module.answer(), sys.meta_path[0].engaged)
        """,
        env=environment,
    )
    assert child.stdout == "False patched 1\n", child


@pytest.mark.parametrize("name", ["flashinfer", "flashinfer.ops"])
def test_the_module_has_its_native_loader_before_its_body_runs(
    run_child: RunChild, environment: Environment, name: str
) -> None:
    child = run_child(
        f"""
        import flashinfer, importlib.machinery, sys
        module = sys.modules[{name!r}]
        loaders = [*module.body_ran_with, module.__loader__, module.__spec__.loader]
        print({{type(each) is importlib.machinery.SourceFileLoader for each in loaders}})
        """,
        env=environment,
    )
    assert child.stdout == "{True}\n", child


def test_tools_that_read_modules_through_their_loader_work(
    run_child: RunChild, environment: Environment
) -> None:
    child = run_child(
        """
        import importlib.resources, inspect, pickle, pkgutil
        import flashinfer, flashinfer.ops
        note = importlib.resources.files("flashinfer") / "data" / "note.txt"
        assert note.read_text() == "a data file"
        assert pkgutil.get_data("flashinfer", "data/note.txt") == b"a data file"
        names = [each.name for each in pkgutil.iter_modules(flashinfer.__path__)]
        assert names == ["__main__", "ops"], names
        assert "def answer" in inspect.getsource(flashinfer.ops)
        assert "from .ops" in inspect.getsource(flashinfer)
        assert pkgutil.resolve_name("flashinfer.ops:answer")() == "patched"
        pickle.dumps(flashinfer.__spec__)
        print("as usual")
        """,
        env=environment,
    )
    assert child.stdout == "as usual\n", child


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("flashinfer", "main patched\n"),
        ("flashinfer.__main__", "main patched\n"),
        # runpy executes a fresh copy of a module that the package has imported already.
        ("flashinfer.ops", "ops original\n"),
    ],
)
def test_python_dash_m_works(
    run_child: RunChild, environment: Environment, module: str, said: str
) -> None:
    assert run_child(None, args=["-m", module], env=environment).stdout == said


def test_a_reload_is_patched_again(run_child: RunChild, environment: Environment) -> None:
    child = run_child(
        """
        import importlib, importlib.machinery
        import flashinfer, flashinfer.ops
        importlib.reload(flashinfer.ops)
        print(flashinfer.ops.answer(), importlib.reload(flashinfer).answer())
        print(type(flashinfer.__loader__) is importlib.machinery.SourceFileLoader)
        """,
        env=environment,
    )
    assert child.stdout == "patched patched\nTrue\n", child


def test_a_second_import_after_removal_from_sys_modules_is_patched(
    run_child: RunChild, environment: Environment
) -> None:
    child = run_child(
        """
        import sys
        for turn in range(3):
            import flashinfer
            print(flashinfer.answer(), flashinfer.ops.answer(), end=" ")
            del sys.modules["flashinfer"], sys.modules["flashinfer.ops"]
        """,
        env=environment,
    )
    assert child.stdout.split() == ["patched"] * 6, child


def test_an_import_that_failed_once_is_patched_the_second_time(
    run_child: RunChild, environment: Environment, tmp_path: Path
) -> None:
    (tmp_path / "lib" / "flashinfer" / "__init__.py").write_text(
        "import sys\nif not hasattr(sys, 'again'): raise OSError('not yet')\n"
        "from .ops import answer\n"
    )
    child = run_child(
        """
        import sys
        try:
            import flashinfer
        except OSError as error:
            print(error)
        sys.again = True
        import flashinfer
        print(flashinfer.answer())
        """,
        env=environment,
    )
    assert child.stdout == "not yet\npatched\n", child


def test_threads_that_import_and_probe_at_once_get_one_patched_module(
    run_child: RunChild, environment: Environment
) -> None:
    child = run_child(
        """
        import importlib.util, sys, threading
        sys.setswitchinterval(1e-6)
        start, answers = threading.Barrier(16), []
        def use(probe):
            start.wait()
            if probe:
                assert importlib.util.find_spec("flashinfer") is not None
            import flashinfer
            answers.append((id(flashinfer), flashinfer.answer()))
        threads = [threading.Thread(target=use, args=(n % 2,)) for n in range(16)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(len(answers), len(set(answers)), answers[0][1], sys.meta_path[0].engaged)
        """,
        env=environment,
    )
    assert child.stdout == "16 1 patched 1\n", child


def test_starting_while_flashinfer_is_half_imported_breaks_nothing(
    run_child: RunChild, tmp_path: Path
) -> None:
    package = trees.package(tmp_path / "shim")
    lib = trees.toy_flashinfer(tmp_path / "lib")
    trees.write(
        lib / "flashinfer",
        {
            "__init__.py": f"""
                import importlib.util
                from . import early
                spec = importlib.util.spec_from_file_location("gate", {str(package / "gate.py")!r})
                gate = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(gate)
                installed = gate.install({str(package)!r})
                installed.hand_over()
                from .ops import answer
                """,
            "early.py": "",
        },
    )
    child = run_child(
        "import flashinfer; print(flashinfer.answer(), flashinfer.installed.fault)",
        env=trees.path(lib),
    )
    assert (child.stdout, child.stderr) == ("patched None\n", "")


def test_a_zip_archive_is_patched(run_child: RunChild, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "lib.zip", "w") as archive:
        for name, text in trees.TOY.items():
            archive.writestr(f"flashinfer/{name}", dedent(text))
    child = run_child(
        """
        import importlib.resources, zipimport, flashinfer
        print(flashinfer.answer(), type(flashinfer.__loader__) is zipimport.zipimporter)
        print((importlib.resources.files("flashinfer") / "data" / "note.txt").read_text())
        """,
        env=trees.path(trees.wheel(tmp_path / "ours"), tmp_path / "lib.zip"),
    )
    assert child.stdout == "patched True\na data file\n", child
