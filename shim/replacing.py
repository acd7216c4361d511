"""Put one object in the place of another, everywhere a module holds it, and back."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import wrapt


def resolve(module: ModuleType, path: str) -> Any:
    """The object at the dotted ``path`` below ``module``. Raises AttributeError."""
    _, _, found = wrapt.resolve_path(module, path)
    return found


def resolve_owner(module: ModuleType, path: str) -> tuple[Any, Any]:
    """What holds the attribute at the dotted ``path``, ``module`` or a class in it; and its value.

    Raises AttributeError.
    """
    parent, _, found = wrapt.resolve_path(module, path)
    return parent, found


def put(module: ModuleType, path: str, replacement: object) -> None:
    """Set the attribute at the dotted ``path`` below ``module``."""
    parent, attribute, _ = wrapt.resolve_path(module, path)
    wrapt.apply_patch(parent, attribute, replacement)


def methods(
    kind: type, original: object, replacement: Callable[..., Any]
) -> dict[str, tuple[object, object]]:
    """What is to be set in class ``kind`` for a method, its aliases, and what is partially applied.

    Returns:
        By attribute, what stands there and what is to stand there.
    """
    found: dict[str, tuple[object, object]] = {}
    for attribute, value in list(vars(kind).items()):
        if value is original:
            found[attribute] = (value, replacement)
        elif isinstance(value, functools.partialmethod) and value.func is original:
            found[attribute] = (value, _partial(kind, attribute, value, replacement))
    return found


def _partial(
    kind: type, name: str, partial: functools.partialmethod[Any], method: Callable[..., Any]
) -> Callable[..., Any]:
    """A plain function in place of a ``partialmethod``, which Dynamo does not trace."""
    leading, named = partial.args, partial.keywords

    def applied(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return method(self, *leading, *args, **{**named, **kwargs})

    applied.__name__, applied.__qualname__ = name, f"{kind.__qualname__}.{name}"
    applied.__module__, applied.__doc__ = kind.__module__, partial.__doc__
    applied.__signature__ = inspect.signature(getattr(kind, name))  # type: ignore[attr-defined]
    return applied


def rebind(pairs: Iterable[tuple[object, object]], since: str | None = None) -> int:
    """Replace objects by others, by identity, in every loaded module's namespace.

    A ``functools.partial`` there stays the object that it is, whoever else holds it, and applies
    the other function from now on.

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
    for module in _modules(since):
        names = namespace(module)
        # Nearly all namespaces hold nothing of it, and FlashInfer's import waits for us.
        values = list(names.values())
        if table.keys().isdisjoint(map(id, values)) and functools.partial not in map(type, values):
            continue
        for attribute, value in list(names.items()):
            found = table.get(id(value))
            if found is not None:
                names[attribute] = found[1]
                changed += 1
            elif type(value) is functools.partial and id(value.func) in table:
                _, function = table[id(value.func)]
                state = (function, value.args, value.keywords, vars(value))
                value.__setstate__(state)  # type: ignore[attr-defined]
                changed += 1
    return changed


def held(things: Iterable[object]) -> set[int]:
    """The ids of those of ``things`` that a loaded module holds, itself or in a partial."""
    wanted = {id(thing) for thing in things}
    found: set[int] = set()
    for module in _modules(None):
        values = list(namespace(module).values())
        values += [value.func for value in values if type(value) is functools.partial]
        found |= wanted.intersection(map(id, values))
    return found


def _modules(since: str | None) -> Iterator[object]:
    """All modules whose import began with that of ``since`` or later; all, where it is unknown."""
    # A copy, since others import meanwhile; it is made in one go, without an object for each entry.
    for name, module in reversed(sys.modules.copy().items()):
        yield module
        if name == since:
            return


def namespace(module: object) -> dict[str, Any]:
    """The dict of whatever stands in sys.modules, without waking a lazy module."""
    try:
        namespace = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return namespace if isinstance(namespace, dict) else {}
