"""What ``prewarm`` is doing, on stderr: a bar by rich on a terminal, else a line for each step."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Progress:
    """A line for each step."""

    def __init__(self) -> None:
        self._total = 0
        self._done = 0

    def say(self, text: str) -> None:
        """Say what begins now."""
        print(f"flashinfer-shim prewarm: {text}", file=sys.stderr, flush=True)

    def take(self, label: str, event: Mapping[str, Any]) -> None:
        """Follow what the child says."""
        kind = event["event"]
        if kind == "planning":
            self.say(f"{label}: looking for modules")
        elif kind == "plan":
            self._total = sum(
                not m["error"] and m["state"] != "installed" for m in event["modules"]
            )
            self.planned(self._total)
        elif kind == "waiting":
            self.say(f"{label}: waiting for {event['owner']}, which builds")
        elif kind == "begin":
            self.begun(f"{label}: {event['module']}")
        elif kind == "objects":
            self.objects(event["done"], event["of"])
        elif kind == "end":
            self._done += 1
            self.ended(f"{label}: {event['module']} {event['state']} in {event['seconds']:.1f} s")

    def planned(self, total: int) -> None:
        """So many modules are going to be built, or found up to date."""

    def begun(self, text: str) -> None:
        """A module is being built."""
        self.say(f"{text} ({self._done + 1} of {self._total}) ...")

    def objects(self, done: int, total: int) -> None:
        """So many of its objects are compiled."""

    def ended(self, text: str) -> None:
        """A module is done."""
        self.say(text)


class _Bars(Progress):
    """Two bars: modules, and the objects of the one that is being built."""

    def __init__(self, bars: Any) -> None:
        super().__init__()
        self._bars = bars
        self._modules = bars.add_task("prewarm", total=None)
        self._objects: Any = None

    def say(self, text: str) -> None:
        self._bars.update(self._modules, description=text)

    def planned(self, total: int) -> None:
        self._bars.update(self._modules, total=total)

    def begun(self, text: str) -> None:
        self.say(text)
        self._objects = self._bars.add_task("compiling", total=None)

    def objects(self, done: int, total: int) -> None:
        self._bars.update(self._objects, completed=done, total=total)

    def ended(self, text: str) -> None:
        self._bars.remove_task(self._objects)
        self._bars.advance(self._modules)
        self._bars.console.print(f"flashinfer-shim prewarm: {text}", markup=False, highlight=False)


@contextmanager
def progress() -> Iterator[Progress]:
    """Show progress while what is within it lasts."""
    if not sys.stderr.isatty():
        yield Progress()
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars
    except ImportError:
        yield Progress()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        yield _Bars(bars)
