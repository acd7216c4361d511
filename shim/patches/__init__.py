"""The patches: what each one replaces, for which releases, and who builds the replacement.

Everything here is data, read by ``check`` in a process that imports neither torch nor FlashInfer.
The builders are named, and imported only when a module that they patch has been executed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..settings import Settings
from ..whole import one_version
from .releases import RELEASES as RELEASES

if TYPE_CHECKING:  # a process that finds what it knows does without
    from ..contract import Contract

#: The declared ops, by family: each one's function, as ``tests/write_rows.py`` writes them.
FUNCTIONS = Path(__file__).with_name("functions.json")


class Site(NamedTuple):
    """Where a builder works.

    Attributes:
        patch: name of the patch.
        module: the FlashInfer module that has just been executed.
        function: the function as its author wrote it (a user's compiler.disable looked through).
        release: of the FlashInfer that is installed, local part included.
        released: whether the function is the very code that the release has in the table.
        traits: gives those of the contract's row.
        settings: of this process.
    """

    patch: str
    module: ModuleType
    function: Callable[..., Any]
    release: str
    released: bool
    traits: Callable[[], Any]
    settings: Settings


class Patch(NamedTuple):
    """One patch.

    Attributes:
        name: what the user calls it.
        family: the part of FlashInfer that its function belongs to; users may name that, too.
        function: its function's name in the module, ``Class.method`` of a method.
        builder: module of this package whose ``build(site)`` returns the replacement.
        tracked: it replaces a method whose op has to find the object: those of its class get
            handles.
        switch: the setting that leaves it out while it is ``off``, a field of
            :class:`~shim.settings.Settings`; empty where there is none.
        rows: module of this package whose rows for it are written by hand; empty where
            ``tests/write_rows.py`` writes them.
    """

    name: str
    family: str
    function: str
    builder: str
    tracked: bool = False
    switch: str = ""
    rows: str = ""

    @property
    def contract(self) -> Contract:
        """What it was written for. Hundreds of rows are read when the first one is asked for."""
        return _contracts(self.rows or "op_contracts")[self.name]

    def target(self, module: str = "") -> str:
        """``module:function``, for messages: the newest known module where none is given.

        Without the contracts, whose table may be gone by then, the function alone.
        """
        if not module:
            try:
                module = self.contract.modules(None)[0]
            except Exception:
                return self.function
        return f"{module}:{self.function}"

    def left_out(self, settings: Settings) -> str:
        """Why the user does not want it, empty if he does."""
        if self.name not in settings.enabled:
            return "left out by FLASHINFER_SHIM_PATCHES"
        if self.switch and getattr(settings, self.switch) == "off":
            return f"FLASHINFER_SHIM_{self.switch.upper()} is off"
        return ""

    def build(self, site: Site) -> Callable[..., Any]:
        """Build the replacement. May raise; the caller leaves FlashInfer as it was then."""
        with one_version(f"patches{self.builder}"):
            builder = import_module(self.builder, __package__)
        built: Callable[..., Any] = builder.build(site)
        return built


@functools.cache
def _contracts(module: str) -> Mapping[str, Contract]:
    with one_version(f"patches.{module}"):
        contracts: Mapping[str, Contract] = import_module(f".{module}", __package__).CONTRACTS
    return contracts


PATCHES = (
    Patch(
        name="cuda_version",
        family="toolchain",
        function="get_cuda_version",
        builder=".cuda_version",
        rows="cuda_version_contract",
    ),
    Patch(
        name="jit_load",
        family="toolchain",
        function="JitSpec.build_and_load",
        builder=".jit_watch",
        switch="jit",
        rows="jit_contract",
    ),
    Patch(
        name="jit_build",
        family="toolchain",
        function="run_ninja",
        builder=".jit_watch",
        switch="jit",
        rows="jit_contract",
    ),
    Patch(
        name="fp4_quantize",
        family="quantization",
        function="fp4_quantize",
        builder=".fp4_quantize",
        rows="fp4_quantize_contract",
    ),
    *(
        Patch(
            name=name,
            family=family,
            function=function,
            builder=".declared_op",
            tracked="." in function,
        )
        for family, functions in json.loads(FUNCTIONS.read_text(encoding="utf-8")).items()
        for name, function in functions.items()
    ),
)
NAMES = tuple(patch.name for patch in PATCHES)
#: Those that are in force where no setting asks for more or less.
USUAL = tuple(patch.name for patch in PATCHES if not patch.switch)
#: Names that stand for several patches, in the order in which tables show them.
FAMILIES = {
    family: tuple(patch.name for patch in PATCHES if patch.family == family)
    for family in dict.fromkeys(patch.family for patch in PATCHES)
}
