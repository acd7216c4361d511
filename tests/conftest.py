"""Fixtures. Every test that imports FlashInfer does so in a child process of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import children
import pytest
import releases
from xdist.scheduler import LoadFileScheduling

FIGURE = "figure"


class RunChild(Protocol):
    """The type of the ``run_child`` fixture; see ``children.run_child`` for the arguments."""

    def __call__(
        self,
        code: str | None,
        *,
        release: str | Path | None = None,
        shim: bool = True,
        env: Mapping[str, str | None] | None = None,
        python: str | Path = ...,
        args: Sequence[str | Path] = (),
        timeout: float = 300,
    ) -> children.Child: ...


class CopyRelease(Protocol):
    """The type of the ``copy_release`` fixture; see ``releases.copy`` for the arguments."""

    def __call__(
        self,
        version: str,
        *,
        metadata_version: str | None = None,
        edit: Mapping[str, Callable[[str], str]] | None = None,
    ) -> Path: ...


@pytest.fixture
def run_child(tmp_path: Path) -> RunChild:
    """Run code in a fresh interpreter: ``run_child(code, release="0.6.3").json``."""
    return partial(children.run_child, scratch=tmp_path)


@pytest.fixture(params=releases.RELEASES)
def each_release(request: pytest.FixtureRequest) -> str:
    """Each version of the table in turn: the test that asks for it runs once for every release."""
    version: str = request.param
    return version


@pytest.fixture(
    params=releases.RELEASES
    if releases.IS_WHOLE
    else releases.asked("0.5.0", "0.6.9", "0.6.13", "0.7.4")
)
def each_signature(request: pytest.FixtureRequest) -> str:
    """A release of each signature of ``fp4_quantize``, for what takes long."""
    version: str = request.param
    return version


@pytest.fixture(scope="session")
def release_path() -> Callable[[str], Path]:
    """The directory to put on ``PYTHONPATH`` for a version."""
    return releases.path


@pytest.fixture
def copy_release(tmp_path: Path) -> CopyRelease:
    """A release of which a test changes the metadata's version or some files."""
    return partial(releases.copy, to=tmp_path)


@pytest.fixture
def unknown_release(copy_release: CopyRelease) -> Path:
    """0.7.4 that calls itself 99.0, in its metadata and in its own file."""
    return copy_release(
        "0.7.4",
        metadata_version="99.0",
        edit={"flashinfer/_build_meta.py": lambda text: text.replace("0.7.4", "99.0")},
    )


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Say what a test counted, as in docs/reliability.md: it is printed behind the results."""
    return partial(record_property, FIGURE)


class ByChild(LoadFileScheduling):  # type: ignore[misc]
    """Tests that share a child run in one process: those of a file, in test_ops of a world."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        world = re.search(r"(?<=\[)[^]-]*", nodeid) if file.endswith("test_ops.py") else None
        return f"{file} {world[0]}" if world else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByChild | None:
    """Of ``--dist loadfile``; others are xdist's own."""
    return ByChild(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first: one that came last would leave a process without work."""
    items.sort(key=lambda item: item.get_closest_marker("early") is None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """All figures of this run, one on each line."""
    figures = [
        str(value)
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == FIGURE
    ]
    if figures:
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.write_line(line)
