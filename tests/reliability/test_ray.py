"""Ray: a real cluster of several nodes on this machine, its workers, and ``check --ray``."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
from check_command import without_us
from children import Child
from conftest import RunChild
from releases import ROOT, path

from shim.cli.check_fleet import CannotTell
from shim.cli.check_ray import _in_cluster

pytest.importorskip("ray")
pytestmark = pytest.mark.long

HERE = Path(__file__).resolve().parent

PRELUDE = f"""
import json, os, signal, sys
sys.path.insert(0, {str(HERE)!r})
import ray
from ray_side import *

OURS, OLD, NEW = {str(ROOT)!r}, {str(path("0.6.3"))!r}, {str(path("0.7.4"))!r}
WITH = [OURS, OLD]


def show(**found):
    print(json.dumps(found))
"""


@pytest.fixture
def in_ray(run_child: RunChild) -> Iterator[Callable[[str], Child]]:
    """Run code that has ``ray_side``'s names; what Ray writes is gone afterwards."""
    # The paths of its sockets would be too long below pytest's own directory.
    scratch = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    env = {
        "RAY_TMPDIR": scratch,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # it would give workers another PYTHONPATH
        "RAY_memory_monitor_refresh_ms": "0",  # what else runs here is not Ray's business
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, path("0.6.3")))),
    }
    try:
        yield lambda code: run_child(PRELUDE + dedent(code), env=env, timeout=600)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def test_tasks_and_actors_are_patched_where_their_workers_get_our_path(
    in_ray: Callable[[str], Child], figure: Callable[[str], None]
) -> None:
    found = in_ray(
        """
        with cluster(WITH, [OLD]) as (made, (ours, bare)):
            ray.init(made.address, log_to_driver=False)
            with_us = {"PYTHONPATH": os.pathsep.join(WITH)}
            early = actor(bare)
            show(
                patched={
                    "task": task(ours),
                    "actor": ray.get(actor(ours).look.remote()),
                    "task, some other variable": task(ours, {"OTHER": "1"}),
                    "task, runtime_env": task(bare, with_us),
                    "actor, runtime_env": ray.get(actor(bare, with_us).look.remote()),
                },
                untouched={
                    "task": task(bare),
                    "actor, started before": ray.get(early.look.remote()),
                    "task, started after others were patched": task(bare),
                    "task, off": task(ours, {"FLASHINFER_SHIM": "off"}),
                    "task, a path without us": task(ours, {"PYTHONPATH": OLD}),
                },
                activated={
                    "actor, started before": [
                        ray.get(early.activate.remote(OURS)), ray.get(early.look.remote())
                    ][1]
                },
            )
        """
    ).json
    for how, each in found["patched"].items():
        assert (each["door"], each["patched"], each["deviating"]) == ("sitecustomize", True, []), (
            how
        )
    for how, each in found["untouched"].items():
        assert each["patched"] is False, how
        assert each["door"] == ("sitecustomize" if how == "task, off" else None), how
    (late,) = found["activated"].values()
    assert (late["door"], late["patched"], late["deviating"]) == ("activate()", True, [])
    assert late["process"] == found["untouched"]["actor, started before"]["process"]
    workers = {each["process"] for group in found.values() for each in group.values()}
    figure(f"ray: 2 nodes, {len(workers)} workers, each patched or with a reason")


def test_check_ray_tells_of_every_node_and_of_what_differs(
    in_ray: Callable[[str], Child], tmp_path: Path, figure: Callable[[str], None]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(ROOT / "shim", other / "shim", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "sitecustomize.py", other)
    init = other / "shim" / "__init__.py"
    init.write_text(init.read_text().replace('\n__version__ = "', '\n__version__ = "9.'))
    found = in_ray(
        f"""
        with cluster(WITH, WITH) as (made, nodes):
            alike = check(made)
            deep = check(made, "--deep", "--timeout", "500")
            nodes.append(add(made, [OURS, NEW]))
            release = check(made)
            made.remove_node(nodes.pop())
            nodes.append(add(made, [{str(other)!r}, OLD]))
            version = check(made)
            made.remove_node(nodes.pop())
            nodes.append(add(made, [{str(without_us(tmp_path / "without"))!r}, OLD]))
            without = check(made)
            job = {{"runtime_env": {{"env_vars": {{"PYTHONPATH": os.pathsep.join(WITH)}}}}}}
            as_job = check(made, RAY_JOB_CONFIG_JSON_ENV_VAR=json.dumps(job))
            show(alike=alike, deep=deep, release=release, version=version, without=without,
                 as_job=as_job, ids=[node.node_id for node in nodes])
        """
    ).json
    for name in ("alike", "deep"):
        assert (found[name]["status"], found[name]["skew"]) == (0, []), found[name]
        assert {node["id"] for node in found[name]["nodes"]} == set(found["ids"][:2])
        for node in found[name]["nodes"]:
            assert node["report"]["loading"]["loads"] is True
            assert (node["report"]["children"] is not None) == (name == "deep")

    release = found["release"]
    assert release["status"] == 1
    assert all(node["report"]["exit_status"] == 0 for node in release["nodes"])
    assert release["skew"][0]["of"] == "FlashInfer"
    assert sorted(map(len, release["skew"][0]["found"].values())) == [1, 2]

    version = found["version"]
    (skew,) = version["skew"]
    assert (version["status"], skew["of"]) == (1, "flashinfer-shim")
    assert len(version["gone"]) == 1

    *fine, bare = sorted(found["without"]["nodes"], key=lambda node: bool(node["error"]))
    assert found["without"]["status"] == 1
    assert [node["error"] for node in fine] == ["", ""]
    assert bare["id"] == found["ids"][2]
    assert "cannot import shim" in bare["error"]

    assert (found["as_job"]["status"], found["as_job"]["skew"]) == (0, [])
    asked = sum(len(each["nodes"]) for name, each in found.items() if name != "ids")
    figure(f"check --ray: {asked} nodes asked in 6 checks, each with its row")


def test_a_node_that_hangs_or_has_died_has_an_honest_row_and_nothing_hangs(
    in_ray: Callable[[str], Child],
) -> None:
    found = in_ray(
        """
        with cluster(WITH, WITH) as (made, (head, other)):
            (raylet,) = other.all_processes["raylet"]
            os.kill(raylet.process.pid, signal.SIGSTOP)
            hung = check(made, "--timeout", "10")
            os.kill(raylet.process.pid, signal.SIGCONT)
            made.remove_node(other, allow_graceful=False)
            dead = check(made, "--timeout", "60")
            show(hung=hung, dead=dead, id=other.node_id)
        """
    ).json
    (hung,) = (node for node in found["hung"]["nodes"] if node["id"] == found["id"])
    assert (found["hung"]["status"], hung["report"]) == (1, None)
    assert hung["error"].startswith("no answer within 10 s")
    # Ray may or may not have heard of it when it is asked for its nodes.
    errors = [node["error"] for node in found["dead"]["nodes"]]
    assert len(errors) + len(found["dead"]["gone"]) == 2
    assert found["dead"]["status"] == int(any(errors))


def test_an_address_where_nobody_listens_is_status_2(run_child: RunChild) -> None:
    child = run_child(None, args=["-m", "shim", "check", "--ray", "127.0.0.1:1"])
    assert (child.returncode, child.stdout) == (2, ""), child
    assert "no Ray cluster answers at '127.0.0.1:1' (ConnectionRefusedError" in child.stderr


def test_what_was_tried_without_an_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        raise ConnectionError("Could not find any. Please specify `--address`")

    def said(address: str) -> str:
        with pytest.raises(CannotTell) as told:
            _in_cluster(SimpleNamespace(init=init), address, [], 1)
        return str(told.value).partition(";")[0]

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    here = "no Ray cluster answers on this machine, and RAY_ADDRESS names none elsewhere"
    assert said("auto") == f"{here} (ConnectionError: Could not find any)"
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert said("auto").startswith("no Ray cluster answers at '127.0.0.1:1', which RAY_ADDRESS")
    # To Ray that word is a cluster to be made.
    assert said("local") == "no Ray cluster answers at 'local' (ValueError: that would start one)"
