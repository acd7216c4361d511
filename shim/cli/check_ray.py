"""``check --ray``: ask every node of a cluster that is running. Placing and retrying is Ray's."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..talking import stdout_to_stderr
from . import check_node
from .check_fleet import CannotTell, Fleet, Node, node

if TYPE_CHECKING:
    from .check_node import Answer


def ask_nodes(address: str, arguments: Sequence[str], timeout: float) -> Fleet:
    """Run ``check`` once in a worker of each node.

    Args:
        address: as ``ray.init`` takes it; ``auto`` is ``RAY_ADDRESS``, or the cluster of this
            machine.
        arguments: of ``check``.
        timeout: seconds for the whole of it. A node that has not answered by then gets a row that
            says so.

    Raises:
        CannotTell: Ray is not installed, or there is no such cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise CannotTell(
            f"{sys.executable} cannot import Ray ({error}); "
            'pip install "flashinfer-shim[ray]", with the version of the cluster'
        ) from error
    with stdout_to_stderr():  # where Ray prints that a node has died
        return _in_cluster(ray, address, arguments, timeout)


def _in_cluster(ray: Any, address: str, arguments: Sequence[str], timeout: float) -> Fleet:
    wanted = _wanted(address)
    try:
        _knock(wanted, timeout)
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except Exception as error:
        if wanted == "auto":
            where = "on this machine, and RAY_ADDRESS names none elsewhere"
        else:
            where = f"at {wanted!r}" + (", which RAY_ADDRESS names" if wanted != address else "")
        why, *_ = _said(error).split(". ")  # Ray goes on with advice on its own command
        raise CannotTell(
            f"no Ray cluster answers {where} ({why}); name the address of a "
            "running one: check --ray HOST:PORT"
        ) from error
    try:
        members = ray.nodes()
        alive = [member for member in members if member["Alive"]]
        gone = {_name(m): m["DeathReasonMessage"] or "dead" for m in members if not m["Alive"]}
        return Fleet(tuple(_ask(ray, alive, arguments, timeout)), gone)
    finally:
        ray.shutdown()


def _wanted(address: str) -> str:
    return os.environ.get("RAY_ADDRESS") or address if address == "auto" else address


def _knock(address: str, timeout: float) -> None:
    """Ray itself tries for many minutes where nobody listens.

    Raises:
        OSError: nobody does.
        ValueError: the address is Ray's word for a new cluster.
    """
    if address == "local":
        raise ValueError("that would start one")
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()


def _ask(
    ray: Any, members: Sequence[Mapping[str, Any]], arguments: Sequence[str], timeout: float
) -> list[Node]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # No CPU, so that a cluster at work answers too; and the worker ends with its call, so that
    # nothing of ours stays in one that others get afterwards.
    ask = ray.remote(num_cpus=0, max_calls=1)(check_node.ask)
    ray.cloudpickle.register_pickle_by_value(check_node)
    try:
        calls = [
            ask.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(member["NodeID"], soft=False)
            ).remote(list(arguments))
            for member in members
        ]
    finally:
        ray.cloudpickle.unregister_pickle_by_value(check_node)
    done, _ = ray.wait(calls, num_returns=len(calls), timeout=timeout)
    return [
        _read(ray, member, call)
        if call in done
        else Node(
            _name(member),
            member["NodeID"],
            f"no answer within {timeout:g} s: wait longer with --timeout, or see what it does",
        )
        for member, call in zip(members, calls, strict=True)
    ]


def _read(ray: Any, member: Mapping[str, Any], call: Any) -> Node:
    try:
        answer: Answer = ray.get(call)
    except Exception as error:  # the node died, its worker cannot be started, ...
        return Node(_name(member), member["NodeID"], f"Ray says {_said(error)}")
    return node(_name(member), member["NodeID"], answer)


def _name(member: Mapping[str, Any]) -> str:
    """A host may have several nodes; the beginning of the id tells them apart."""
    return f"{member['NodeManagerHostname']} {member['NodeID'][:8]}"


def _said(error: Exception) -> str:
    first, *_ = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {first}"
