"""Whole files of FlashInfer as they were released: what is in one of them needs no closer look."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path

from . import RELEASES

#: By module, the runs of releases in which its file stays as it is: first, last, digest, as
#: ``tests/write_rows.py`` writes them.
FILES = Path(__file__).with_name("files.json")


def released_digest(module: str, release: str | None) -> str | None:
    """:meth:`~shim.upstream.Sources.digest` of the file of ``module`` in a tested release.

    None where the release is not tested, or no patch has a function there.
    """
    return None if release is None else _digests(release).get(module)


@functools.cache
def _digests(release: str) -> Mapping[str, str]:
    if release not in RELEASES:
        return {}
    runs: dict[str, list[tuple[str, str, str]]] = json.loads(FILES.read_text(encoding="utf-8"))
    until_then = frozenset(RELEASES[: RELEASES.index(release) + 1])
    from_then_on = frozenset(RELEASES[RELEASES.index(release) :])
    return {
        module: digest
        for module, states in runs.items()
        for since, until, digest in states
        if since in until_then and until in from_then_on
    }
