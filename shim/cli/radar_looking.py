"""Put the radar's report together: the release, what it is compared with, what moved."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from packaging.version import InvalidVersion, Version

from ..patches import FAMILIES, NAMES, RELEASES
from ..upstream import Installed, installed
from .environment import look as look_around
from .radar_drift import compare
from .radar_report import Report
from .radar_source import Unusable, opened


def look(
    word: str | None, *, against: str | None, only: Sequence[str], runs: bool, time_limit: float
) -> Report:
    """Look at the release that ``word`` names.

    Args:
        word: see :func:`~.radar_source.opened`.
        against: the tested release to compare with; None for the default.
        only: patches and families; without any, all.
        runs: whether to run what moved.
        time_limit: for each release that has to be fetched, in seconds.

    Raises:
        Unusable: there is no such release, nothing to compare it with, or no such patch.
        Unreadable: an import finder of somebody else's fails.
    """
    wanted = _patches(only)
    here = _installed()
    base = _base(against, here)
    with opened(word, time_limit, _tell) as source:
        drifts = compare(source.installed, base, wanted)
        opinions = None
        if runs:
            from .radar_running import opinions_on

            opinions = opinions_on(drifts, source, base, here, time_limit, _tell)
        return Report(source, base, drifts, opinions)


def _patches(only: Sequence[str]) -> set[str]:
    unknown = [name for name in only if name not in NAMES and name not in FAMILIES]
    if unknown:
        raise Unusable(
            f"{unknown[0]!r} is no patch that `flashinfer-shim coverage` lists, and none of the "
            f"families {', '.join(FAMILIES)}"
        )
    return {patch for name in only or FAMILIES for patch in FAMILIES.get(name, (name,))}


def _installed() -> Installed | None:
    package = look_around(os.environ).flashinfer
    return installed(package, sys.path) if package else None


def _base(against: str | None, here: Installed | None) -> str:
    """The tested release to compare with."""
    if against is None:
        tested = here is not None and here.release in RELEASES
        return here.release if tested and here and here.release else RELEASES[-1]
    try:
        release = str(Version(against))
    except InvalidVersion:
        release = against
    if release not in RELEASES:
        raise Unusable(
            f"--against {against}: expected one of the tested releases, {', '.join(RELEASES)}"
        )
    return release


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        print(f"flashinfer-shim radar: {text} ...", file=sys.stderr)
