"""The doors for frameworks that load every plugin which is installed: vLLM's and SGLang's.

They are for workers that get an environment without our directory on PYTHONPATH. Installing us
must change nothing, so behind these doors nothing happens unless ``FLASHINFER_SHIM`` is set to
``auto`` or ``require``; where it is unset, ``flashinfer_shim_plugin.py`` does not even load this.
Everything but that question is the start-up file's way: a gate is put up, and FlashInfer's import
does the rest. Where it is up already, there is nothing left to do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from .settings import MODE


@dataclass(frozen=True)
class Plugin:
    """One framework's door.

    Attributes:
        framework: its name, as people write it.
        group: of entry points, that it loads in each of its processes.
        function: of ``flashinfer_shim_plugin.py``, that our entry point leads to.
    """

    framework: str
    group: str
    function: str

    @property
    def door(self) -> str:
        """What the gate is told about the way in."""
        return f"{self.function} plugin"


VLLM = Plugin("vLLM", "vllm.general_plugins", "vllm")
#: Since SGLang 0.5.11; releases before it load no plugins.
SGLANG = Plugin("SGLang", "sglang.srt.plugins", "sglang")
PLUGINS = (VLLM, SGLANG)

#: The name of our entry point in each group: what VLLM_PLUGINS and SGLANG_PLUGINS may list.
NAME = "flashinfer_shim"


def asked_for(environ: Mapping[str, str]) -> bool:
    """Whether ``FLASHINFER_SHIM`` is set to a word that says that we are to act."""
    return MODE.spellings.get(environ.get(MODE.name, "").strip().lower()) in ("auto", "require")


def enter(function: str) -> None:
    """Enter by a framework's door; called once in each of its processes.

    Args:
        function: of the plugin.

    Raises:
        Exception: in mode ``require``, for a refusal where FlashInfer is imported already.
    """
    (plugin,) = (plugin for plugin in PLUGINS if plugin.function == function)
    if not asked_for(os.environ):
        return
    from .gate import install
    from .location import package_directory

    gate = install(package_directory(), plugin.door)
    # Another copy of us, which may be older, may have put up the gate.
    if getattr(gate, "door", None) != plugin.door or "flashinfer" not in sys.modules:
        return
    try:
        from .hook import activate

        activate(again=False)
    except Exception as error:
        gate.keep(error)
