"""By which door we came into this process, and whether the frameworks' plugins would open."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from importlib_metadata import DistributionFinder, MetadataPathFinder

from ..gate import find_gate
from ..plugins import NAME, PLUGINS, VLLM, Plugin, asked_for
from ..settings import MODE

_DISTRIBUTION = "flashinfer-shim"


@dataclass(frozen=True)
class Door:
    """One framework's plugin.

    Attributes:
        framework: vLLM or SGLang.
        group: of entry points.
        acts: whether we would be activated in a process of the framework that gets this
            environment.
        reason: why, or why not.
    """

    framework: str
    group: str
    acts: bool
    reason: str


def activated_by() -> str | None:
    """``sitecustomize``, ``vllm plugin``, ``sglang plugin`` or ``activate()``; None: not at all."""
    gate = find_gate()
    return None if gate is None else getattr(gate, "door", "sitecustomize")


def doors(environ: Mapping[str, str]) -> tuple[Door, ...]:
    """Look at each plugin; imports none."""
    groups = _groups()
    return tuple(_door(plugin, plugin.group in groups, environ) for plugin in PLUGINS)


def _groups() -> set[str]:
    """The groups in which our metadata offer a plugin."""
    context = DistributionFinder.Context(  # type: ignore[no-untyped-call]
        name=_DISTRIBUTION, path=list(sys.path)
    )
    for distribution in MetadataPathFinder().find_distributions(context):
        try:
            return {point.group for point in distribution.entry_points if point.name == NAME}
        except Exception:  # nosec B112  # half of an installation states nothing
            continue
    return set()


def _door(plugin: Plugin, installed: bool, environ: Mapping[str, str]) -> Door:
    acts, reason = False, f"{MODE.name} is not set to auto or require"
    if not installed:
        reason = f"no installed {_DISTRIBUTION} offers it"
    elif _leaves_out(plugin, environ):
        reason = f"{_variable(plugin)} does not list {NAME}"
    elif asked_for(environ):
        acts, reason = True, f"{MODE.name}={environ[MODE.name].strip()}"
    return Door(plugin.framework, plugin.group, acts, reason)


def _leaves_out(plugin: Plugin, environ: Mapping[str, str]) -> bool:
    """Whether the framework's own list of plugins leaves ours out."""
    listed = environ.get(_variable(plugin))
    if listed is None or (plugin is not VLLM and not listed):
        return False  # an empty list is none to SGLang, and to vLLM one without any
    return NAME not in [name.strip() for name in listed.split(",")]


def _variable(plugin: Plugin) -> str:
    return f"{plugin.function.upper()}_PLUGINS"
