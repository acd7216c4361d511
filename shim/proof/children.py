"""Start the children of ``prove`` and of ``radar --run`` and listen to them. Imports no torch."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..cli.run import put_first
from ..location import startup_directory
from ..talking import events, started
from .examples import Example

Side = Literal["without", "with", "shadow"]

_WORDS: Mapping[Side, str] = {"without": "without us", "with": "with us", "shadow": "in shadow"}
#: Seconds of silence after which a child is ended: a first build of a kernel takes minutes.
TIME_LIMIT = 900.0


@dataclass
class Answers:
    """What one side said.

    Attributes:
        environment: of the child, None if none came as far as FlashInfer's import.
        results: by the name of the example.
        faults: by the name of the example, why there is no result.
    """

    environment: dict[str, Any] | None = None
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)


def ask(
    side: Side,
    wanted: Sequence[Example],
    *,
    arch: str | None,
    tell: Callable[[str], None],
    time_limit: float = TIME_LIMIT,
    environ: Mapping[str, str] | None = None,
) -> Answers:
    """Run the examples on one side, in one child, or in more where one does not survive.

    Args:
        side: without or with us; ``shadow`` is without us, FlashInfer's own Python alone.
        wanted: the examples.
        arch: the compute capability to pretend, None for the GPU or the default.
        tell: called with what begins now.
        time_limit: seconds that a child may be silent.
        environ: the environment to derive the child's from; this process's own when left out.

    Raises:
        FileNotFoundError: this installation lacks the start-up file.
    """
    answers = Answers()
    pending = [example.name for example in wanted]
    env = environment(side, os.environ if environ is None else environ)
    while pending:
        tell(f"{_WORDS[side]}: importing FlashInfer")
        with tempfile.TemporaryDirectory(prefix="flashinfer-shim-") as scratch:
            request = {"side": side, "arch": arch, "scratch": scratch, "examples": pending}
            fault = _listen(request, env, answers, pending, tell, time_limit)
        if pending:
            # The one that was running is to blame, or all where none had begun.
            begun = pending[:1] if answers.environment is not None else list(pending)
            answers.faults.update(dict.fromkeys(begun, fault))
            del pending[: len(begun)]
    return answers


def environment(side: Side, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child: the documented PYTHONPATH, or one without our directory."""
    env = dict(environ)
    first, *others = put_first(startup_directory(), env.get("PYTHONPATH", "")).split(os.pathsep)
    entries = [first, *others] if side == "with" else others
    env.pop("PYTHONPATH", None)
    if entries:
        env["PYTHONPATH"] = os.pathsep.join(entries)
    if side != "with":
        env["FLASHINFER_SHIM"] = "off"
    return env


def _listen(
    request: Mapping[str, Any],
    env: Mapping[str, str],
    answers: Answers,
    pending: list[str],
    tell: Callable[[str], None],
    time_limit: float,
) -> str:
    """Follow one child; takes what is done off ``pending``. Why it left something there, if so."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
        with started("proof.child", request, env=env, stderr=stderr) as child:
            for event in events(child, time_limit):
                if event is None:
                    return f"no answer within {time_limit:g} s; the child was ended"
                kind, name = event.pop("event"), event.pop("example", "")
                if kind == "environment":
                    answers.environment = event
                elif kind == "begin":
                    tell(f"{_WORDS[request['side']]}: {name}")
                else:
                    answers.results[name] = event
                    pending.remove(name)
            if not pending:
                return ""
            status = child.wait()
        stderr.seek(0)
        lines = [line.strip() for line in stderr if line.strip()]
    return f"the child ended with status {status}: {lines[-1] if lines else 'nothing on stderr'}"
