"""Fixtures. Every test that imports FlashInfer does so in a child process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import children
import pytest
import releases

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process goes through a file, whose tests may share a child; long files come first.

    A long one that came last would leave the other process without work.
    """
    items.sort(key=lambda item: item.get_closest_marker("early") is None)
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.name))


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
