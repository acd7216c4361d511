"""Build modules by upstream's own functions: one process of a node at a time, the others wait."""

from __future__ import annotations

import fcntl
import os
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..talking import Emit
from ..toolchain import asking

LOCK = "flashinfer_shim_prewarm.lock"

#: Seconds between two looks at the objects.
_INTERVAL = 0.5


def installed(spec: Any) -> bool:
    """Whether a package (flashinfer-jit-cache) has brought the module along."""
    return bool(getattr(spec, "is_aot", False))


def library(spec: Any) -> Path:
    """Where the module is, or will be."""
    return Path(spec.get_library_path())


def nvcc() -> list[str]:
    """The command by which upstream's ninja files compile."""
    from flashinfer.jit.cpp_ext import get_cuda_path

    command = os.environ.get("FLASHINFER_NVCC") or "$cuda_home/bin/nvcc"
    return shlex.split(command.replace("$cuda_home", get_cuda_path()))


def refusal(spec: Any, asked: dict[tuple[str, ...], str]) -> str:
    """Why nvcc cannot build for the module's architectures, empty if it can.

    Args:
        spec: upstream's.
        asked: answers that were given before, by architectures; is added to.
    """
    flags = _architectures(spec)
    if flags not in asked:
        command = nvcc()
        refused = asking.refused(command, flags)
        asked[flags] = "; ".join(
            f"{' '.join(command)} cannot target {flag.rpartition('=')[2]}: {said}"
            for flag, said in refused.items()
        )
    return asked[flags]


def _architectures(spec: Any) -> tuple[str, ...]:
    given = [flag for flag in spec.extra_cuda_cflags or () if flag.startswith("-gencode=")]
    if not given:  # upstream adds those of the whole process
        from flashinfer.compilation_context import CompilationContext

        flags = CompilationContext().get_nvcc_flags_list()
        given = [flag for flag in flags if flag.startswith("-gencode=")]
    return tuple(sorted(set(given)))


@contextmanager
def alone(directory: Path, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock in ``directory``; the kernel releases it when we end, however that is.

    Args:
        directory: for files of its own in FlashInfer's cache.
        waiting: called once with who holds it, if somebody does.

    Raises:
        OSError: no file can be made there.
    """
    with open(directory / LOCK, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            waiting(file.read().strip() or "another process")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def build(spec: Any, emit: Emit) -> dict[str, Any]:
    """Build one module, if there is anything to build.

    Args:
        spec: upstream's.
        emit: is told of each object that is done.

    Returns:
        ``state`` (``built``, ``present`` or ``failed``), ``seconds`` and ``error``.
    """
    path = library(spec)
    before, begun = _stamp(path), time.time()
    error = ""
    with _counting(spec, begun, emit):
        try:
            if before is None and spec.is_ninja_generated:
                # A process that was killed while it wrote the file has left half of it. Where it
                # is whole, it stays as it is.
                with FileLock(spec.lock_path, thread_local=False):
                    spec.write_ninja()
            spec.build(verbose=False, need_lock=True)
        except Exception as fault:
            error = f"{type(fault).__name__}: {fault}"
    after = _stamp(path)
    state = "failed" if error or after is None else "present" if after == before else "built"
    return {"state": state, "seconds": round(time.time() - begun, 3), "error": error}


@contextmanager
def _counting(spec: Any, since: float, emit: Emit) -> Iterator[None]:
    """Tell of the objects that are done while the module is being built."""
    objects = [Path(each) for each in spec.get_object_paths()]
    done = threading.Event()

    def watch() -> None:
        told = -1
        while True:
            count = sum((_stamp(each) or 0) >= since * 1e9 for each in objects)
            if count != told:
                told = count
                emit(event="objects", module=spec.name, done=count, of=len(objects))
            if done.wait(_INTERVAL):
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _stamp(path: Path) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None
