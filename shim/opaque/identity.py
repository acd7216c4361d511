"""A replacement that looks like what it replaces."""

from __future__ import annotations

import builtins
import functools
import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

#: Marks that torch leaves on functions. Copied onto a replacement, they make Dynamo look at the
#: function underneath instead (pytorch #172732) or refuse the replacement as disabled.
TORCH_MARKS = ("_torchdynamo_orig_callable", "_torchdynamo_disable", "_torchdynamo_disable_msg")

# By replacement, what it replaces. Not an attribute of it: those it may share with the original.
# Weak, as the original leads back to its replacement by way of its module: a replacement holds what
# it calls anyway, and a module that is deleted and imported again is to be freed.
_originals: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()


def take_over(replacement: F, original: Callable[..., Any]) -> F:
    """Give ``replacement`` the name, module, doc, signature and attributes of ``original``.

    A plain function stays a plain function: it pickles by reference, can be deep-copied, and
    ``inspect`` shows the original's signature and source.
    """
    if _is_decorated(original):
        # A decorator may keep on its function what the function's body reads by its global name,
        # as upstream's check of backends does on each call. So both have one dict, and in it
        # __wrapped__ leads to the function within, with its signature and source.
        functools.update_wrapper(replacement, original, updated=())
        replacement.__dict__ = original.__dict__
    else:
        functools.update_wrapper(replacement, original)
        for mark in TORCH_MARKS:
            vars(replacement).pop(mark, None)
        replacement.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    # Through a replacement of ours that another of ours is put before.
    _originals[replacement] = weakref.ref(original_of(original) or original)
    return replacement


def _is_decorated(original: object) -> bool:
    return (
        isinstance(original, types.FunctionType)
        and hasattr(original, "__wrapped__")
        and not any(mark in vars(original) for mark in TORCH_MARKS)
    )


def original_of(value: Any) -> Any | None:
    """What ``value`` replaces, None where it is no replacement of ours."""
    found = _originals.get(value) if isinstance(value, types.FunctionType) else None
    return None if found is None else found()


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The parameters that ``function`` takes, annotations evaluated.

    Upstream's check of backends takes one keyword more than the function within, which no
    signature shows.
    """
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError:  # it names what is imported for type checkers alone
        names = _Names(inspect.unwrap(function).__globals__)
        signature = inspect.signature(function, locals=names, eval_str=True)
    if not hasattr(function, "is_backend_supported"):
        return signature
    skip = inspect.Parameter(
        "skip_check", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool
    )
    return signature.replace(parameters=[*signature.parameters.values(), skip])


class Unknown:
    """Stands for a class that an annotation names and that is not imported."""


class _Names(dict[str, Any]):
    """Names as a module's functions see them; :class:`Unknown` is all that they do not."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, Unknown)


def without_disable(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under a user's own ``torch.compiler.disable``, itself if there is none."""
    while getattr(function, "_torchdynamo_disable", False):
        inner = getattr(function, "_torchdynamo_orig_callable", None)
        if inner is None or inner is function:
            break
        function = inner
    return function
