"""A replacement that looks like what it replaces."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

#: Marks that torch leaves on functions. Copied onto a replacement, they make Dynamo look at the
#: function underneath instead (pytorch #172732) or refuse the replacement as disabled.
TORCH_MARKS = ("_torchdynamo_orig_callable", "_torchdynamo_disable", "_torchdynamo_disable_msg")


def take_over(replacement: F, original: Callable[..., Any]) -> F:
    """Give ``replacement`` the name, module, doc, signature and attributes of ``original``.

    A plain function stays a plain function: it pickles by reference, can be deep-copied, and
    ``inspect`` shows the original's signature and source.
    """
    functools.update_wrapper(replacement, original)
    for mark in TORCH_MARKS:
        vars(replacement).pop(mark, None)
    # Of what a decorator of upstream's made, both signatures are right already: the wrapper's own,
    # by which callers tell that it takes more, is that of our function too.
    if not hasattr(original, "__wrapped__"):
        replacement.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    setattr(replacement, REPLACES, original)
    return replacement


#: Attribute by which a replacement of ours leads to what it replaces. Not ``__wrapped__``, which
#: upstream's own decorators set too.
REPLACES = "__flashinfer_shim_replaces__"


def without_disable(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under a user's own ``torch.compiler.disable``, itself if there is none."""
    while getattr(function, "_torchdynamo_disable", False):
        inner = getattr(function, "_torchdynamo_orig_callable", None)
        if inner is None or inner is function:
            break
        function = inner
    return function
