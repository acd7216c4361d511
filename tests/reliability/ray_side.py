"""What children of the tests of Ray share: a real cluster of several nodes on this machine."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_NODE = {"num_cpus": 2, "object_store_memory": 80 * 1024**2, "include_dashboard": False}
_PROBE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe.py")


@contextmanager
def cluster(*paths: Sequence[str]) -> Iterator[tuple[Any, list[Any]]]:
    """A cluster, and its nodes, the head first; each with a PYTHONPATH of its own."""
    made = Cluster()
    try:
        yield made, [add(made, path) for path in paths]
    finally:
        ray.shutdown()
        made.shutdown()


def add(made: Any, path: Sequence[str]) -> Any:
    """Start one more node."""
    return made.add_node(**_NODE, env_vars={"PYTHONPATH": os.pathsep.join(path)})


def check(made: Any, *arguments: str, **env: str) -> Any:
    """Status and JSON of ``check --ray``, run as a user would on the machine of the head."""
    done = subprocess.run(
        [sys.executable, "-m", "shim", "check", "--json", *arguments, "--ray", made.address],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done
    assert done.stdout, done.stderr
    return {"status": done.returncode, **json.loads(done.stdout), "stderr": done.stderr}


def on(node: Any, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Options of a task or an actor for that node, with ``env`` as its runtime environment's."""
    options: dict[str, Any] = {
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    }
    if env is not None:
        options["runtime_env"] = {"env_vars": dict(env)}
    return options


def task(node: Any, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What the probe says in a task there."""
    found: dict[str, Any] = ray.get(ray.remote(look).options(**on(node, env)).remote(), timeout=180)
    return found


def actor(node: Any, env: Mapping[str, str] | None = None) -> Any:
    """An actor there, whose process is up."""
    made = ray.remote(Looks).options(**on(node, env)).remote()
    ray.get(made.ready.remote(), timeout=180)
    return made


def look() -> dict[str, Any]:
    """What the probe says in this process."""
    found: dict[str, Any] = runpy.run_path(_PROBE)["look"]()
    return found


class Looks:
    """An actor that says what the probe says."""

    def ready(self) -> bool:
        return True

    def look(self) -> dict[str, Any]:
        return look()

    def activate(self, path: str) -> None:
        sys.path.insert(0, path)
        import shim

        shim.activate()


# Not every worker has this module on its path.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
