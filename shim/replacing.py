"""Put one object in the place of another, everywhere a module holds it, and back."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import wrapt


def resolve(module: ModuleType, path: str) -> Any:
    """The object at the dotted ``path`` below ``module``. Raises AttributeError."""
    _, _, found = wrapt.resolve_path(module, path)
    return found


def put(module: ModuleType, path: str, replacement: object) -> None:
    """Set the attribute at the dotted ``path`` below ``module``."""
    parent, attribute, _ = wrapt.resolve_path(module, path)
    wrapt.apply_patch(parent, attribute, replacement)


def rebind(pairs: Iterable[tuple[object, object]], since: str | None = None) -> int:
    """Replace objects by others, by identity, in every loaded module's namespace.

    Args:
        pairs: what ``from x import y`` copied around, and what to put there.
        since: name of a module that has just been executed and defines the objects; only it and
            modules whose import began later can hold copies.

    Returns:
        How many names were changed.
    """
    # The old objects stay in the table, so that their ids are not given away meanwhile.
    table = {id(old): (old, new) for old, new in pairs}
    changed = 0
    modules = list(sys.modules.items())
    begun = next((i for i, (name, _) in enumerate(modules) if name == since), 0)
    for _, module in modules[begun:]:
        namespace = _namespace(module)
        for attribute, value in list(namespace.items()):
            found = table.get(id(value))
            if found is not None:
                namespace[attribute] = found[1]
                changed += 1
    return changed


def _namespace(module: object) -> dict[str, Any]:
    """The dict of whatever stands in sys.modules, without waking a lazy module."""
    try:
        namespace = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return namespace if isinstance(namespace, dict) else {}
