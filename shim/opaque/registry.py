"""The ops of this process: one torch library in a namespace of our own.

Never ``flashinfer::``, where upstream defines ops of its own from 0.6.12 on; there a second
definition silently replaces the first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from .schema import Schema

NAMESPACE = "flashinfer_shim"

_lock = threading.Lock()
# Kept alive for the life of the process: a Library that is collected takes its ops along
# (pytorch #139444), and compiled graphs hold the ops by name.
_library: torch.library.Library | None = None
_bodies: dict[str, Body] = {}


@dataclass(frozen=True)
class Body:
    """What an op does.

    Attributes:
        schema: made from the function.
        run: called by keyword with real tensors.
        fake: called by keyword with fake ones; same results but for the data.
    """

    schema: Schema
    run: Callable[..., Any]
    fake: Callable[..., Any]


def define(name: str, body: Body) -> OpOverload:
    """Define ``flashinfer_shim::name``, or give the one that exists a new body.

    A module that is reloaded, or deleted and imported again, has a new function; graphs that were
    compiled before then call the new one too, as they would without us.

    Raises:
        RuntimeError: the op exists with another schema, or was defined by another copy of us.
    """
    with _lock:
        known = _bodies.get(name)
        if known is None:
            _define(name, body)
        elif known.schema.text != body.schema.text:
            raise RuntimeError(
                f"{NAMESPACE}::{name}{known.schema.text} is defined and graphs may use it; "
                f"this process has since imported a FlashInfer that wants {body.schema.text}; "
                "start a new process to change releases"
            )
        _bodies[name] = body
    overload: OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
    return overload


def _define(name: str, body: Body) -> None:
    global _library
    if hasattr(getattr(torch.ops, NAMESPACE), name):
        raise RuntimeError(
            f"{NAMESPACE}::{name} was defined by another copy of flashinfer-shim in this process; "
            "leave one copy on the path"
        )
    if _library is None:
        _library = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]

    def run(*args: Any, **kwargs: Any) -> Any:
        current = _bodies[name]
        return current.run(**current.schema.arguments(args, kwargs))

    def fake(*args: Any, **kwargs: Any) -> Any:
        current = _bodies[name]
        return current.fake(**current.schema.arguments(args, kwargs))

    _library.define(f"{name}{body.schema.text}", tags=_tags())  # type: ignore[no-untyped-call]
    _library.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)


def _tags() -> tuple[torch.Tag, ...]:
    # Inductor may otherwise hand a kernel inputs with other strides (pytorch #133639), and
    # FlashInfer reads strides.
    exact = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    return (exact, torch.Tag.pt2_compliant_tag)
