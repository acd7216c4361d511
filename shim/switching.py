"""Patches taken out for good or for a while, all at once, and put in again."""

from __future__ import annotations

from collections.abc import Collection

from . import apply, late, replacing
from .apply import Applied


def take_out(patches: Collection[Applied]) -> None:
    """Let the identical originals stand where they did."""
    for applied in patches:
        late.withdraw(applied)
    apply.withdraw(patches)


def put_in(patches: Collection[Applied]) -> None:
    """Undo :func:`take_out`: the identical replacements stand where they did."""
    for applied in patches:
        late.resume(applied)
        applied.resume()
    replacing.rebind((applied.original, applied.replacement) for applied in patches)


def still_held(patches: Collection[Applied]) -> list[Applied]:
    """Those of which a loaded module holds anything."""
    held = replacing.held(place for applied in patches for place in applied.places())
    return [a for a in patches if not held.isdisjoint(map(id, a.places()))]
