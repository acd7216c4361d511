"""Graph breaks and failed compilations, as Dynamo tells of them.

Breaks come through the logger of the artifact that ``TORCH_LOGS=graph_breaks`` shows, failures from
the metrics that Dynamo keeps of its last compilations. Neither is promised to stay as it is, so
whatever is not there, or not as expected, is left out.
"""

from __future__ import annotations

import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from .stack import is_library, is_torchs, place, without_line

#: What happened to the graph.
BREAK, FAILURE = "graph break", "failure"

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_REASON = re.compile(r"Graph Break Reason: (.*)")
_EXPLANATION = re.compile(r"Explanation: (.*)")
_CONTEXT = re.compile(r"Developer debug context: (raised exception .*)")
_PLACE = re.compile(r"in user code at (\S+:\d+)")


class Break(NamedTuple):
    """One place where a graph ended.

    Attributes:
        kind: a graph break, or a failure of the whole compilation.
        function: FlashInfer's function that a graph break is in, or ours in its place; else empty.
        where: ``FILE:LINE in FUNCTION`` of its caller, or where what failed begins.
        reason: Dynamo's, in one line.
    """

    kind: str
    function: str
    where: str
    reason: str

    @property
    def function_of_caller(self) -> str:
        """``FILE in FUNCTION``."""
        return without_line(self.where)


def listen(note: Callable[[Break], None]) -> None:
    """Have ``note`` called for each graph break from now on."""
    with suppress(Exception):  # torch knows no such artifact any more
        from torch._logging import getArtifactLogger  # type: ignore[attr-defined]

        logger = getArtifactLogger("torch._dynamo.symbolic_convert", "graph_breaks")
        # A filter, not a handler: torch takes handlers away when its logging is configured.
        logger.addFilter(_Listener(note, shown=logger.isEnabledFor(logging.DEBUG)))
        logger.setLevel(logging.DEBUG)


class _Listener(logging.Filter):
    """Takes what is logged, and lets it pass if the user asked for it, before we did or since."""

    def __init__(self, note: Callable[[Break], None], *, shown: bool) -> None:
        super().__init__()
        self._note = note
        self._shown = shown
        self._known: dict[str, Break] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        with suppress(Exception):
            text = record.getMessage()
            found = _PLACE.search(text)
            # Dynamo tells the stack of each place once.
            place_told = found.group(1) if found else text
            told = self._known.setdefault(place_told, _parse(text))
            self._note(told)
        return self._shown or _asked_for_since(record.name)


def _asked_for_since(logger: str) -> bool:
    """Whether ``torch._logging.set_logs`` was told to show breaks, or all that Dynamo logs."""
    with suppress(Exception):
        from torch._logging import _internal

        above = logging.getLogger(logger).parent
        state: Any = _internal.log_state
        return bool(state.is_artifact_enabled("graph_breaks")) or (
            above is not None and above.isEnabledFor(logging.DEBUG)
        )
    return False


def failures(known: Iterable[Break]) -> Counter[Break]:
    """The compilations that failed, of those that Dynamo remembers, but for ``known`` places."""
    places = {each.function_of_caller for each in known}
    found: Counter[Break] = Counter()
    dynamo = sys.modules.get("torch._dynamo.utils")
    with suppress(Exception):
        for each in dynamo.get_compilation_metrics() if dynamo else ():
            if each.fail_type:
                where = place(each.co_filename, each.co_firstlineno, each.co_name)
                told = Break(FAILURE, "", where, _reason(each.fail_reason or ""))
                found[told] += told.function_of_caller not in places
    return +found


def _parse(text: str) -> Break:
    """What Dynamo's message about a graph break says."""
    function = where = ""
    for frame in _FRAME.finditer(text):
        if is_library(frame["file"]) and not is_torchs(frame["file"]):
            function = frame["function"]
            break
        if not is_library(frame["file"]):
            where = place(frame["file"], int(frame["line"]), frame["function"])
    return Break(BREAK, function, where, _reason(text))


def _reason(text: str) -> str:
    reason = _REASON.search(text)
    first = reason.group(1) if reason else text.strip().partition("\n")[0]
    more = [found.group(1) for found in (_EXPLANATION.search(text), _CONTEXT.search(text)) if found]
    return "; ".join(part.strip(" .:") for part in (first, *more))
