"""Children of our commands, and how they tell what they do: a line of JSON for each event."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any

from .limited import PATIENCE, end_session
from .location import package_directory

Emit = Callable[..., None]


@contextmanager
def started(
    module: str, request: Mapping[str, Any], *, env: Mapping[str, str], stderr: IO[str]
) -> Iterator[subprocess.Popen[str]]:
    """A child that runs ``main`` of a module of ours; it and all that it started end with this.

    Args:
        module: its name within our package.
        request: what it is to do, as JSON in its first argument.
        env: its environment.
        stderr: where its stderr goes.
    """
    script = os.path.join(package_directory(), "start_child.py")
    child = subprocess.Popen(
        [sys.executable, script, module, json.dumps(request)],
        env=dict(env),
        stdin=subprocess.PIPE,  # which closes when we end, however that is
        stdout=subprocess.PIPE,
        stderr=stderr,
        encoding="utf-8",
        start_new_session=True,
    )
    try:
        yield child
    finally:
        child.kill()  # does nothing once it has been waited for, and its number may be another's
        end_session(child.pid)
        with suppress(subprocess.TimeoutExpired):
            child.wait(PATIENCE)
        if child.stdin is not None:
            child.stdin.close()


def events(
    child: subprocess.Popen[str], time_limit: float | None = None
) -> Iterator[dict[str, Any] | None]:
    """What the child says until it closes its stdout; None, as the last, if it falls silent.

    Args:
        child: of :func:`started`.
        time_limit: seconds that it may be silent; for ever when left out.
    """
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        for line in child.stdout or ():
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=time_limit)
        except queue.Empty:
            yield None
            return
        if line is None:
            return
        yield json.loads(line)


def private_stdout() -> Emit:
    """Of a child: keep stdout for events. FlashInfer, a builder or a kernel may print."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    alone = threading.Lock()

    def emit(**event: Any) -> None:
        with alone:
            stream.write(json.dumps(event) + "\n")
            stream.flush()

    return emit


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Whatever is printed meanwhile, by C++ too, goes to stderr, for a report is to follow."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def end_with_parent() -> None:
    """Of a child: end, with all that it started, as soon as its parent has, even if by SIGKILL."""

    def wait() -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                pass
        leader = os.getpid()
        if os.fork() == 0:  # for somebody has to be left when this process has ended
            end_session(leader)
            os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
