"""Whatever our start-up and our patching call may fail: FlashInfer's import goes on, whole.

The faults are generated from our own syntax (``fault_sites.py``), one for each fork of a process
(``faults_child.py``), with a real FlashInfer. ``FLASHINFER_SHIM_TEST_FAULTS`` is how many of each
kind `make reliability` tries; 0 stands for all there are.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import children
import pytest
import releases
from children import ROOT
from conftest import CopyRelease, RunChild

CHILD = Path(__file__).parent / "faults_child.py"
#: So many that each place of ours comes at least once.
MANY = int(os.environ.get("FLASHINFER_SHIM_TEST_FAULTS", "600")) or 1_000_000

SITUATIONS: dict[str, tuple[str, dict[str, str]]] = {
    "at an import": ("import", {}),
    "at an import that requires us": ("import", {"FLASHINFER_SHIM": "require"}),
    "at an import with every setting": (
        "import",
        {
            "FLASHINFER_SHIM_JIT": "warn",
            "FLASHINFER_SHIM_REFERENCE": "1",
            "FLASHINFER_SHIM_POLICY": "adapt",
        },
    ),
    "in activate()": ("late", {}),
}


def inject(situation: str, scratch: Path, count: int, seed: int) -> str:
    """Inject faults in as many processes as there are cores; the figure."""
    scenario, settings = SITUATIONS[situation]
    users = scratch / "users"
    users.mkdir()
    (users / "sitecustomize.py").write_text(
        "import sys\nsys.users_own = getattr(sys, 'users_own', 0) + 1\n"
    )
    path = os.pathsep.join(map(str, (releases.path("0.6.3"), users)))
    parts = (os.cpu_count() or 1) if count > 100 else 1

    def part(number: int) -> children.Child:
        folder = scratch / str(number)
        folder.mkdir()
        arguments = (scenario, count, seed, number, parts)
        return children.run_child(
            None,
            scratch=folder,
            env={"PYTHONPATH": path, **settings},
            args=(CHILD, ROOT, *map(str, arguments)),
            timeout=7200,
        )

    with ThreadPoolExecutor(parts) as pool:
        every = list(pool.map(part, range(parts)))
    told = [json.loads(line) for child in every for line in child.stdout.splitlines()]
    assert all(child.returncode == 0 for child in every), every
    heads = [line for line in told if "places" in line]
    faults = [line for line in told if "escapes" in line]
    escaped = [fault for fault in faults if fault["escapes"]]
    assert not escaped, json.dumps(escaped[:5], indent=1)
    assert len(faults) == heads[0]["faults"]
    kinds = len({fault["what"] for fault in faults})
    return f"{len(faults)} injected {situation}, of {kinds} kinds, at {heads[0]['places']} places"


@pytest.mark.parametrize(("situation", "count"), [("at an import", 30), ("in activate()", 10)])
def test_no_fault_of_a_sample_comes_through(
    situation: str, count: int, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    figure(f"faults: {inject(situation, tmp_path, count, seed=sys.version_info.minor)}, sampled")


@pytest.mark.long
@pytest.mark.parametrize("situation", SITUATIONS)
def test_no_fault_comes_through(
    situation: str, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    figure(f"faults: {inject(situation, tmp_path, MANY, seed=0)}")


PIPES = ("flashinfer/_build_meta.py", "flashinfer_python-0.6.3.dist-info/METADATA")


@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(
    name: str, run_child: RunChild, copy_release: CopyRelease
) -> None:
    tree = copy_release("0.6.3", edit={name: lambda text: f"{text}\n"})
    (tree / name).unlink()
    os.mkfifo(tree / name)
    shown = "import flashinfer; print(flashinfer.rmsnorm.__code__.co_filename)"
    for shim in (False, True):
        child = run_child(shown, release=tree, shim=shim, timeout=100)
        assert child.returncode == 0, child
        assert len(child.stderr.splitlines()) <= 1, child
