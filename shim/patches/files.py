"""Whole files of FlashInfer as they were released: what is in one of them needs no closer look."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from ..upstream import contents, module_file
from .releases import RELEASES

#: By module, the runs of releases in which its file stays as it is: first, last, digest, and the
#: patches whose functions are in it, as ``tests/write_rows.py`` writes them.
FILES = Path(__file__).with_name("files.json")


def released(release: str | None) -> Iterator[tuple[str, str, list[str]]]:
    """The files of a tested release: module, :func:`digest` and patches; else none."""
    if release not in RELEASES:
        return
    runs: dict[str, list[tuple[str, str, str, list[str]]]]
    runs = json.loads(FILES.read_text(encoding="utf-8"))
    until_then = frozenset(RELEASES[: RELEASES.index(release) + 1])
    from_then_on = frozenset(RELEASES[RELEASES.index(release) :])
    for module, states in runs.items():
        for since, until, digest, patches in states:
            if since in until_then and until in from_then_on:
                yield module, digest, patches


def digest(file: str) -> str:
    """16 hex digits over a whole file, empty where it cannot be read."""
    read = contents(file)
    return "" if read is None else hashlib.sha256(read).hexdigest()[:16]


def compare(package: Path, release: str | None) -> dict[str, tuple[str, str] | None]:
    """By patch that a release has a function for, that one's module and file; none of the others.

    None in place of them where the file is not the released one, byte for byte. FlashInfer's
    import waits for us, and to look for hundreds of functions takes longer than to compare files.
    """
    found: dict[str, tuple[str, str] | None] = {}
    for module, expected, patches in released(release):
        file = module_file(package, module)
        intact = (module, file) if file and digest(file) == expected else None
        found.update(dict.fromkeys(patches, intact))
    return found
