"""Children of a patched process are patched, whichever way they are started."""

from __future__ import annotations

from pathlib import Path

import pytest
import startup_trees as trees
from conftest import RunChild

MULTIPROCESSING = """
import multiprocessing, sys

def use(queue):
    import flashinfer
    queue.put(flashinfer.answer())

if __name__ == "__main__":
    if {early}:
        import flashinfer
    context = multiprocessing.get_context({method!r})
    queue = context.Queue()
    process = context.Process(target=use, args=(queue,))
    process.start()
    print(queue.get(timeout=60))
    process.join()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str | None]:
    return trees.path(trees.wheel(tmp_path / "ours"), trees.toy_flashinfer(tmp_path / "lib"))


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_multiprocessing_child_is_patched(
    run_child: RunChild, environment: dict[str, str | None], method: str, early: bool
) -> None:
    child = run_child(MULTIPROCESSING.format(method=method, early=early), env=environment)
    assert (child.stdout, child.stderr) == ("patched\n", "")


def test_a_started_python_is_patched(
    run_child: RunChild, environment: dict[str, str | None]
) -> None:
    child = run_child(
        """
        import subprocess, sys
        code = "import flashinfer; print(flashinfer.answer())"
        print(subprocess.check_output([sys.executable, "-c", code], text=True), end="")
        """,
        env=environment,
    )
    assert child.stdout == "patched\n", child


def test_a_child_forked_in_the_middle_of_a_probe_is_patched(
    run_child: RunChild, environment: dict[str, str | None]
) -> None:
    child = run_child(
        """
        import importlib.util, os, sys

        class Forks:
            def find_spec(self, name, path=None, target=None):
                if name == "flashinfer" and not hasattr(sys, "forked"):
                    sys.forked = os.fork()

        sys.meta_path.insert(1, Forks())
        importlib.util.find_spec("flashinfer")
        if sys.forked:
            assert os.waitpid(sys.forked, 0)[1] == 0
        import flashinfer
        print(flashinfer.answer(), flush=True)
        """,
        env=environment,
    )
    assert child.stdout == "patched\npatched\n", child
