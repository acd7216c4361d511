"""Which kernel modules ops need: their examples are run in shadow, which tells what they load."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from packaging.version import Version
from torch._subclasses.fake_tensor import FakeTensorMode

from ..opaque import shadow
from ..opaque.identity import original_of
from ..opaque.launchers import NO_KERNELS, Loaded, loads_module
from ..proof.child import find, unsuited
from ..proof.examples import EXAMPLES, Example
from ..proof.making import arguments_of, fake

#: Batch sizes that are tried; some functions choose another module for many rows than for few.
_SIZES = (1, 32, 512)


@dataclasses.dataclass
class Plan:
    """What is to be built.

    Attributes:
        specs: upstream's ``JitSpec`` of each module, by its name.
        ops: the ops that need it, by the same name.
        skipped: by op, why nothing of it is built.
    """

    specs: dict[str, Any] = dataclasses.field(default_factory=dict)
    ops: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)


def loads_of(
    patches: Iterable[str], version: Version | None
) -> tuple[dict[str, tuple[Loaded, ...]], dict[str, str]]:
    """By patch, the calls that load what its examples need; and why there is nothing to tell."""
    loads: dict[str, tuple[Loaded, ...]] = {}
    skipped: dict[str, str] = {}
    for patch in patches:
        examples = [each for each in EXAMPLES.values() if each.patch == patch and each.op_calls]
        found: dict[str, Loaded] = {}
        for example in examples:
            try:
                found |= {str(load): load for load in _loads(example, version)}
            except _Skipped as reason:
                skipped[patch] = str(reason)
            except Exception as fault:
                skipped[patch] = f"its example cannot be called: {_one_line(fault)}"
        modules = tuple(load for load in found.values() if loads_module(load))
        if modules:
            loads[patch] = modules
            skipped.pop(patch, None)
        elif found:
            skipped[patch] = "its kernels are compiled in the process that calls it, for its call"
        else:
            skipped.setdefault(patch, "it needs no module")
    return loads, skipped


def plan(loads: Mapping[str, tuple[Loaded, ...]]) -> Plan:
    """Let upstream make the ``JitSpec`` of each module, without building or loading it."""
    made = Plan()
    # Upstream makes each once: it keeps what its getters return.
    known: dict[str, tuple[list[Any], str]] = {}
    for patch, calls in loads.items():
        for call in calls:
            if str(call) not in known:
                known[str(call)] = _specs_of(call)
            specs, fault = known[str(call)]
            if fault:
                made.skipped[patch] = f"FlashInfer has no module for it here: {fault}"
            for spec in specs:
                made.specs.setdefault(spec.name, spec)
                wanted = made.ops.setdefault(spec.name, [])
                if patch not in wanted:
                    wanted.append(patch)
    return made


def _specs_of(call: Loaded) -> tuple[list[Any], str]:
    """What a call would build and load; or why it comes to nothing."""
    specs: list[Any] = []
    with _collecting(specs):
        try:
            call.getter(*call.args, **dict(call.kwargs))
        except Exception as fault:
            # Once it has its module, that there are no kernels in it is its concern.
            if not specs:
                return [], _one_line(fault)
    return specs, ""


class _Skipped(Exception):
    """Nothing can be told of an example; the message says why."""


def _loads(example: Example, version: Version | None) -> Iterator[Loaded]:
    reason = unsuited(example, version)
    if not reason and example.planned:
        reason = "what it needs is known once its object has planned, on a GPU"
    if reason:
        raise _Skipped(reason)
    function = find(example, version)
    if function is None:
        raise _Skipped(f"FlashInfer {version} has no such function")
    for size in _SIZES:
        yield from _in_shadow(example, original_of(function) or function, size)


def _in_shadow(example: Example, function: Callable[..., Any], size: int) -> tuple[Loaded, ...]:
    with FakeTensorMode(allow_non_fake_inputs=True):
        given = arguments_of(function, example.arguments(fake(), size), example.also)
        return shadow.run(function, given)[1]


@contextmanager
def _collecting(specs: list[Any]) -> Iterator[None]:
    """Within it, upstream's modules are neither built nor loaded. For this process alone."""
    from flashinfer.jit import core

    kind: Any = core.JitSpec
    before = kind.build_and_load

    def build_and_load(self: Any) -> Any:
        specs.append(self)
        return NO_KERNELS

    kind.build_and_load = build_and_load
    try:
        yield
    finally:
        kind.build_and_load = before


def _one_line(fault: BaseException) -> str:
    return " ".join(f"{type(fault).__name__}: {fault}".split())[:300]
