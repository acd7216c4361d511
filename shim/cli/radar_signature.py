"""What distinguishes two signatures, as FlashInfer's callers would feel it. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from difflib import SequenceMatcher

_POSITION, _POSITION_ONLY, _KEYWORD = "by position or keyword", "by position", "by keyword"
#: From here on two names are taken for one that was respelled.
_ALIKE = 0.6
_OTHERS = ("the other positional arguments", "the other keyword arguments")


@dataclass(frozen=True)
class Change:
    """One difference between a release and the one before.

    Attributes:
        kind: of a signature ``added``, ``removed``, ``renamed``, ``reordered``, ``default``,
            ``passed`` (by position or by keyword) or ``unreadable``; see ``radar_drift`` for the
            rest.
        text: the difference in words, which end a sentence that begins with the release.
        parameter: the name of the parameter, the old one; empty where it is of none.
        before: the old name, default or whatever changed; empty where there was none.
        after: the new one.
    """

    kind: str
    text: str
    parameter: str = ""
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class _Parameter:
    name: str
    passed: str
    default: str = ""

    def __str__(self) -> str:
        return f"{self.name}={self.default}" if self.default else self.name


def signature_changes(old: str, new: str) -> tuple[Change, ...]:
    """The changes from one signature to another.

    Args:
        old, new: parameters and defaults as :class:`~shim.sources.FunctionFacts` has them.
    """
    if old == new:
        return ()
    before, after = _parameters(old), _parameters(new)
    if before is None or after is None:
        return (Change("unreadable", f"its signature is ({new}), was ({old})", "", old, new),)
    found = tuple(_changes(before, after))
    # The spelling of an annotation of *args, say.
    return found or (
        Change("unreadable", f"its signature reads ({new}), was ({old})", "", old, new),
    )


def _parameters(signature: str) -> list[_Parameter] | None:
    """The parameters in order; None where it is no signature."""
    try:
        tree = ast.parse(f"def f({signature}): pass")
        (function,) = tree.body
        if not isinstance(function, ast.FunctionDef):
            return None
        return _listed(function.args)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _listed(arguments: ast.arguments) -> list[_Parameter]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = ["" for _ in positional[: len(positional) - len(arguments.defaults)]]
    defaults += map(ast.unparse, arguments.defaults)
    only = len(arguments.posonlyargs)
    found = [
        _Parameter(each.arg, _POSITION_ONLY if place < only else _POSITION, default)
        for place, (each, default) in enumerate(zip(positional, defaults, strict=True))
    ]
    if arguments.vararg:
        found.append(_Parameter(f"*{arguments.vararg.arg}", _OTHERS[0]))
    found += [
        _Parameter(each.arg, _KEYWORD, ast.unparse(default) if default else "")
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        found.append(_Parameter(f"**{arguments.kwarg.arg}", _OTHERS[1]))
    return found


def _changes(before: Sequence[_Parameter], after: Sequence[_Parameter]) -> Iterator[Change]:
    renamed = _renamed(before, after)
    for old_name, new_name in renamed.items():
        text = f"parameter {old_name} is now {new_name}"
        yield Change("renamed", text, old_name, old_name, new_name)
    called = [renamed.get(each.name, each.name) for each in before]
    there = {each.name: each for each in after}
    for name, each in zip(called, before, strict=True):
        if name not in there:
            yield Change("removed", f"parameter {each} removed", each.name, str(each))
    for place, each in enumerate(after):
        if each.name not in called:
            text = f"parameter {each} added{_where(each, after[place + 1 :], called)}"
            yield Change("added", text, each.name, "", str(each))
    for name, each in zip(called, before, strict=True):
        if name in there:
            yield from _of_one(each, there[name])
    yield from _order(before, after, called)


def _renamed(before: Sequence[_Parameter], after: Sequence[_Parameter]) -> dict[str, str]:
    """Old names and new ones: nobody says so, but the names are alike, or stand in one place.

    In both cases the default and the way of passing are the same.
    """
    names = {each.name for each in before} & {each.name for each in after}
    lost = [each for each in before if each.name not in names]
    come = [each for each in after if each.name not in names]
    likeness = {
        (old.name, new.name): SequenceMatcher(None, old.name, new.name).ratio()
        for old in lost
        for new in come
        if (old.passed, old.default) == (new.passed, new.default) and old.passed not in _OTHERS
    }
    in_front = {**_in_front(before, names, "old"), **_in_front(after, names, "new")}
    found: dict[str, str] = {}
    for old_name, new_name in sorted(likeness, key=lambda pair: likeness[pair], reverse=True):
        alike = likeness[old_name, new_name] >= _ALIKE
        one_place = in_front["old", old_name] == in_front["new", new_name]
        if (alike or one_place) and old_name not in found and new_name not in found.values():
            found[old_name] = new_name
    return found


def _in_front(
    parameters: Sequence[_Parameter], common: Set[str], side: str
) -> dict[tuple[str, str], tuple[str, int]]:
    """Of each that is not common, the last common one in front and the distance from there."""
    found: dict[tuple[str, str], tuple[str, int]] = {}
    last, distance = "", 0
    for each in parameters:
        if each.name in common:
            last, distance = each.name, 0
        else:
            found[side, each.name] = (last, distance)
            distance += 1
    return found


def _where(each: _Parameter, others: Sequence[_Parameter], known: Sequence[str]) -> str:
    """In front of which of the old ones, if calls by position feel it."""
    if each.passed == _KEYWORD:
        return ", by keyword alone"
    if each.passed in _OTHERS:
        return f", for {each.passed}"
    behind = (o.name for o in others if o.name in known and o.passed in (_POSITION, _POSITION_ONLY))
    following = next(behind, "")
    return f" in front of {following}" if following else " at the end"


def _of_one(old: _Parameter, new: _Parameter) -> Iterator[Change]:
    if old.default != new.default:
        if not old.default:
            text = f"parameter {new.name} may be left out, its default is {new.default}"
        elif not new.default:
            text = f"parameter {new.name} has to be given, its default was {old.default}"
        else:
            text = f"default of {new.name} is {new.default}, was {old.default}"
        yield Change("default", text, old.name, old.default, new.default)
    if old.passed != new.passed:
        text = f"parameter {new.name} is passed {new.passed}, was {old.passed}"
        yield Change("passed", text, old.name, old.passed, new.passed)


def _order(
    before: Sequence[_Parameter], after: Sequence[_Parameter], old_names: Sequence[str]
) -> Iterator[Change]:
    """Of those that both take by position, renamed ones under their new names."""
    positions = (_POSITION, _POSITION_ONLY)
    new = [each.name for each in after if each.passed in positions]
    pairs = zip(old_names, before, strict=True)
    old = [name for name, each in pairs if each.passed in positions and name in new]
    new = [name for name in new if name in old]
    if old != new:
        was, now = ", ".join(old), ", ".join(new)
        yield Change("reordered", f"their order is {now}, was {was}", "", was, now)
