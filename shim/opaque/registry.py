"""The ops of this process: one torch library in a namespace of our own.

Never ``flashinfer::``, where upstream defines ops of its own from 0.6.12 on; there a second
definition silently replaces the first.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
from torch._ops import OpOverload

from .. import __version__
from .kernel import Quick, kernel
from .later import NAMESPACE, lock, made
from .schema import Schema

# Kept alive for the life of the process: a Library that is collected takes its ops along
# (pytorch #139444), and compiled graphs hold the ops by name.
_library: torch.library.Library | None = None
_bodies: dict[str, Body] = {}
#: What a kernel with source of its own calls, by keyword: upstream's function, as a rule.
_functions: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True)
class Body:
    """What an op does.

    Attributes:
        schema: made from the function.
        run: called by keyword with real tensors.
        fake: called by keyword with fake ones; same results but for the data.
        ordered: whether each call of the op counts, and their order.
        captured: whether Inductor may put it into a CUDA graph of its own making.
        quick: how upstream's function is called at once, where that is all that ``run`` does.
    """

    schema: Schema
    run: Callable[..., Any]
    fake: Callable[..., Any]
    ordered: bool = False
    captured: bool = True
    quick: Quick | None = None


@dataclass(frozen=True)
class Tag:
    """What an op's name tells beside its schema: the release, and what its shapes depend on."""

    release: str
    variant: str = ""


def define(name: str, tag: Tag, body: Body) -> OpOverload:
    """Define ``flashinfer_shim::name``, or give the one that exists a new body.

    The overload's name tells release and schema. Inductor keeps compiled graphs on disk and knows
    them by the ops' names: under one name, a graph that was compiled with one release would call
    the op of another, whose parameters stand elsewhere and whose outputs have other shapes.

    A module that is reloaded, or deleted and imported again, has a new function; graphs that were
    compiled before then call the new one too, as they would without us.

    Args:
        name: of the op.
        tag: part of its name.
        body: what the op does.

    Raises:
        RuntimeError: the op was defined by another copy of us.
    """
    key = f"{name}.{_overload_name(tag, body)}"
    with lock:
        if key not in _bodies:
            _define(key, body)
            made(name)
        _bodies[key] = body
        _functions[key] = body.run if body.quick is None else body.quick.function
    return _overload(key)


def _overload(key: str) -> OpOverload:
    name, _, overload = key.partition(".")
    found: OpOverload = getattr(getattr(getattr(torch.ops, NAMESPACE), name), overload)
    return found


def _overload_name(tag: Tag, body: Body) -> str:
    told = f"{__version__} {body.schema.text} {tag.variant}{' ordered' * body.ordered}"
    digest = hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()[:6]
    return f"v{re.sub(r'[^0-9A-Za-z]', '_', tag.release)}_{digest}"


def _define(key: str, body: Body) -> None:
    global _library
    if torch._C._dispatch_has_kernel(f"{NAMESPACE}::{key}"):
        raise RuntimeError(
            f"{NAMESPACE}::{key} was defined by another copy of flashinfer-shim in this process; "
            "leave one copy on the path"
        )
    if _library is None:
        _library = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]

    def call(body: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return body.run(**body.schema.arguments(args, kwargs))

    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return call(_bodies[key], args, kwargs)
        with torch.no_grad():
            return call(_bodies[key], args, kwargs)

    def fake(*args: Any, **kwargs: Any) -> Any:
        current = _bodies[key]
        if current.ordered and not current.captured:
            _keep_out_of_cuda_graphs(_overload(key))
        with torch.no_grad():
            return current.fake(**current.schema.arguments(args, kwargs))

    _library.define(f"{key}{body.schema.text}", tags=_tags(body))  # type: ignore[no-untyped-call]
    called = run
    if body.quick is not None:
        called = kernel(_overload(key)._schema.arguments, body.quick, _functions, key, run)
    _library.impl(key, called, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    # No result requires grad, and autograd knows of nothing that is written, a leaf that requires
    # grad included: so it is with FlashInfer's own kernels. Without this torch's fallback answers,
    # whose results require grad where an input does.
    _library.impl(key, torch.library.fallthrough_kernel, "Autograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{NAMESPACE}::{key}", fake, lib=_library)
    if body.ordered:
        # The tag alone does not keep AOTAutograd from making one call of two that look alike, nor
        # Inductor from leaving one out whose result is not used. An effect does: it threads a
        # token through all such calls.
        _register_effectful_op(_overload(key), _EffectType.ORDERED)


def _tags(body: Body) -> tuple[torch.Tag, ...]:
    # Inductor may otherwise hand a kernel inputs with other strides (pytorch #133639), and
    # FlashInfer reads strides.
    exact = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    tags = [exact, torch.Tag.pt2_compliant_tag]
    if body.ordered:
        tags.append(torch.Tag.nondeterministic_seeded)
    unsafe = getattr(torch.Tag, "cudagraph_unsafe", None)
    if not body.captured and unsafe is not None:
        tags.append(unsafe)
    return tuple(tags)


def _keep_out_of_cuda_graphs(op: OpOverload) -> None:
    """Have Inductor, under ``reduce-overhead``, divide a graph around an op with an effect.

    It reads the tag that says so from the node that calls the op, and of such a node that is
    ``with_effects``. So the op is named where Inductor keeps names of ops like it; by now, a fake
    being asked for, Dynamo has loaded that.
    """
    from torch._inductor import config

    name: str = op.name()  # type: ignore[no-untyped-call]
    named = getattr(config, "custom_should_partition_ops", None)
    if named is not None and name not in named:
        config.custom_should_partition_ops = [*named, name]
