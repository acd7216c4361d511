"""torchrun: two real ranks over gloo, and ``check --fleet``."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import pytest
from check_command import file, without_us
from children import Child
from conftest import RunChild
from releases import ROOT, path

PROBE = Path(__file__).with_name("probe.py")

USE = f"""
import json, runpy
from torch import distributed

found = runpy.run_path({str(PROBE)!r})["look"]()
distributed.init_process_group("gloo")
everybody = [None] * distributed.get_world_size()
distributed.all_gather_object(everybody, found)
if distributed.get_rank() == 0:
    print(json.dumps(everybody))
distributed.destroy_process_group()
"""

#: Rank 1 gets another PYTHONPATH. The shell becomes the check, so that torchrun sees its status.
RANK = """#!/bin/sh
[ "$RANK" = 1 ] && export PYTHONPATH="$1"
shift
exec {python} -m shim check --fleet "$@"
"""


class Fleet(Protocol):
    def __call__(self, rank_1: Sequence[Path], *arguments: str) -> Child: ...


def torchrun(run_child: RunChild, *arguments: str | Path) -> Child:
    """Two ranks of 0.6.3, with us."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *arguments]
    return run_child(None, release="0.6.3", args=words, env={"OMP_NUM_THREADS": "1"})


@pytest.fixture
def fleet(run_child: RunChild, tmp_path: Path) -> Fleet:
    """The check of two ranks, of which the second has a path of its own."""
    script = file(tmp_path / "rank.sh", RANK.format(python=sys.executable))
    script.chmod(0o755)

    def run(rank_1: Sequence[Path], *arguments: str) -> Child:
        theirs = ":".join(map(str, rank_1))
        return torchrun(run_child, "--no-python", script, theirs, *arguments)

    return run


def statuses(child: Child) -> set[str]:
    """Exit statuses of ranks that failed, as torchrun reports them."""
    return set(re.findall(r"exitcode  : (-?\d+)", child.stderr))


@pytest.mark.long
def test_every_rank_is_patched(
    run_child: RunChild, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    ranks = torchrun(run_child, file(tmp_path / "use.py", USE)).json
    assert [rank["patched"] for rank in ranks] == [True, True]
    assert [rank["door"] for rank in ranks] == ["sitecustomize", "sitecustomize"]
    assert [rank["deviating"] for rank in ranks] == [[], []]
    figure("torchrun: 2 ranks, patched")


@pytest.mark.long
def test_ranks_that_are_alike_are_status_0(fleet: Fleet) -> None:
    child = fleet([ROOT, path("0.6.3")], "--json")
    assert child.returncode == 0, child
    found = json.loads(child.stdout)  # of one rank, and nothing else
    assert [node["id"] for node in found["nodes"]] == ["0", "1"]
    assert (found["exit_status"], found["skew"]) == (0, [])


def test_a_rank_with_another_release_is_skew_and_all_ranks_end_with_1(fleet: Fleet) -> None:
    child = fleet([ROOT, path("0.7.4")], "--json")
    assert (child.returncode, statuses(child)) == (1, {"1"}), child
    found = json.loads(child.stdout)
    assert found["skew"][0]["of"] == "FlashInfer"
    assert list(map(len, found["skew"][0]["found"].values())) == [1, 1]


@pytest.mark.long
def test_a_rank_whose_check_fails_has_a_row_that_says_so(fleet: Fleet, tmp_path: Path) -> None:
    file(
        tmp_path / "breaks" / "sitecustomize.py",
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'flashinfer':\n"
        "            raise RuntimeError('no such finder')\n"
        "sys.meta_path.insert(0, Finder())\n",
    )
    child = fleet([tmp_path / "breaks", ROOT, path("0.6.3")], "--json")
    assert (child.returncode, statuses(child)) == (1, {"1"}), child
    fine, broken = json.loads(child.stdout)["nodes"]
    assert (fine["error"], broken["report"]) == ("", None)
    assert broken["error"].endswith("RuntimeError: no such finder")


@pytest.mark.long
def test_a_rank_that_hangs_is_named_and_the_others_do_not_wait_for_ever(
    fleet: Fleet, tmp_path: Path
) -> None:
    file(
        tmp_path / "hangs" / "sitecustomize.py",
        "import sys, time\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'flashinfer':\n"
        "            time.sleep(3600)\n"
        "sys.meta_path.insert(0, Finder())\n",
    )
    child = fleet([tmp_path / "hangs", ROOT, path("0.6.3")], "--timeout", "20")
    assert (child.returncode, child.stdout) == (1, ""), child
    assert "did not all come together within 20 s" in child.stderr
    assert "Ranks 1 failed to pass" in child.stderr
    assert "2" in statuses(child)


@pytest.mark.long
def test_a_rank_without_us_is_told_by_torchrun(fleet: Fleet, tmp_path: Path) -> None:
    child = fleet([without_us(tmp_path / "without"), path("0.6.3")])
    assert child.returncode == 1
    assert "No module named shim" in child.stderr
