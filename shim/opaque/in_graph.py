"""Calls that Dynamo puts into its graph as they are, like those of torch's own functions.

To follow a function of ours line by line takes Dynamo longer than all else that it does about the
call, and leaves a dozen guards. So where the arguments are such as an op takes, Dynamo is told to
make the call of the op at once (``rule.py``). Other calls are followed, and so are all of them in a
torch that cannot be told.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch._ops import OpOverload

from .. import announce
from ..whole import one_version
from .later import Later

#: By function of ours, what makes its op. The function holds that; from here it would lead back to
#: the function, by way of upstream's and its module, and keep all of them alive.
laters: weakref.WeakKeyDictionary[Callable[..., Any], weakref.ref[Later]] = (
    weakref.WeakKeyDictionary()
)
#: By what would be followed, the calls that need not be.
_straight: weakref.WeakKeyDictionary[Callable[..., Any], Sequence[Straight]] = (
    weakref.WeakKeyDictionary()
)


@dataclass(frozen=True)
class Straight:
    """Calls of a function that go to an op as they are.

    Attributes:
        op: the op.
        signature: of the function.
        names: by argument of the op, the parameter that it is. All others have to stand at their
            defaults.
        kinds: of those parameters, the type, and whether it may be None instead.
        returned: the parameter that the function returns; empty where it returns what the op does.
    """

    op: OpOverload
    signature: inspect.Signature
    names: Mapping[str, str]
    kinds: Mapping[str, tuple[Any, bool]]
    returned: str = ""


def go_straight(followed: Callable[..., Any], calls: Sequence[Straight]) -> None:
    """Of the calls that ``followed`` takes, these need not be followed: the first that fits."""
    _straight[followed] = calls


def straight(later: Later) -> Sequence[Straight]:
    """The calls that need not be followed; made is what makes them."""
    return _straight.get(later.traced, ())


def meeting(function: Callable[..., Any], later: Later) -> Callable[[], None]:
    """What has ``later`` made: Dynamo calls it for real while it follows ``function``.

    If calls of that need not be followed, Dynamo is told so, which happens once in a process, and
    begins its frame again.

    It takes no argument, since not every torch gives such objects for one.
    """
    laters[function] = weakref.ref(later)

    def meet() -> None:
        later.make()
        rule = _rule()
        if rule is not None and rule.tell() and straight(later):
            rule.begin_again()

    meet._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return meet


@functools.cache
def _rule() -> ModuleType | None:
    """The module that knows how Dynamo is told, None where this torch has no such way."""
    try:
        with one_version("opaque.rule"):
            from . import rule
    except (ImportError, AttributeError) as fault:
        announce.debug(f"Dynamo follows each call of an op: {fault}")
        return None
    return rule
