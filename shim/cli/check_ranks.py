"""``check --fleet``: each rank that torchrun started checks itself, and rank 0 shows it all."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from datetime import timedelta

from ..talking import stdout_to_stderr
from .check_fleet import CannotTell, Fleet, node
from .check_node import Answer, ask

#: What torchrun sets, and torch's ``env://`` reads.
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def check_ranks(arguments: Sequence[str], timeout: float, show: Callable[[Fleet], int]) -> int:
    """Exit status of every rank: what ``show`` returns on rank 0.

    Args:
        arguments: of ``check``.
        timeout: seconds that ranks wait for one another.
        show: prints what the ranks found.

    Raises:
        CannotTell: torchrun did not start this process, or some rank did not come.
    """
    missing = [name for name in VARIABLES if name not in os.environ]
    if missing:
        raise CannotTell(
            f"{', '.join(missing)} not set, so this is no rank of a fleet; start it by "
            "torchrun --nproc-per-node=N -m shim check --fleet"
        )
    try:
        from torch import distributed
    except ImportError as error:
        raise CannotTell(f"torch cannot be imported ({error}), and ranks meet by it") from error
    limit = timedelta(seconds=timeout)
    try:
        with stdout_to_stderr():  # where some releases of gloo count its peers
            distributed.init_process_group("gloo", timeout=limit)
        answer = ask(arguments)
        distributed.monitored_barrier(timeout=limit, wait_all_ranks=True)  # names those still at it
        first = distributed.get_rank() == 0
        answers = [answer] * distributed.get_world_size()
        distributed.gather_object(answer, answers if first else None)
        status = [show(_fleet(answers)) if first else 0]
        distributed.broadcast_object_list(status)
    except (RuntimeError, ValueError) as error:
        raise CannotTell(
            f"the ranks did not all come together within {timeout:g} s "
            f"({' '.join(str(error).split())}); see what torchrun says of the others"
        ) from error
    finally:
        # As soon as one rank has ended with another status than 0, torchrun ends the others: with
        # that status, too, if they are let.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    distributed.destroy_process_group()
    return status[0]


def _fleet(answers: Sequence[Answer]) -> Fleet:
    nodes = (
        node(f"rank {rank} ({answer['host']})", str(rank), answer)
        for rank, answer in enumerate(answers)
    )
    return Fleet(tuple(nodes), {})
