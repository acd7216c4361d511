"""The patches: what each one replaces, for which releases, and who builds the replacement.

Everything here is data, read by ``check`` in a process that imports neither torch nor FlashInfer.
The builders are named, and imported only when a module that they patch has been executed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from ..contract import Contract
from ..settings import Settings
from . import cuda_version_contract, fp4_quantize_contract, jit_contract, op_contracts
from .releases import RELEASES as RELEASES


@dataclass(frozen=True)
class Site:
    """Where a builder works.

    Attributes:
        patch: name of the patch.
        module: the FlashInfer module that has just been executed.
        function: the function as its author wrote it (a user's compiler.disable looked through).
        release: of the FlashInfer that is installed, local part included.
        released: whether the function is the very code that the release has in the table.
        traits: of the contract's row.
        settings: of this process.
    """

    patch: str
    module: ModuleType
    function: Callable[..., Any]
    release: str
    released: bool
    traits: Any
    settings: Settings


@dataclass(frozen=True)
class Patch:
    """One patch.

    Attributes:
        name: what the user calls it.
        family: the part of FlashInfer that its function belongs to; users may name that, too.
        contract: what it was written for.
        builder: module of this package whose ``build(site)`` returns the replacement.
        cures: what breaks without it, with the upstream issue, in one sentence.
        tracked: it replaces a method whose op has to find the object: those of its class get
            handles.
        switch: the setting that leaves it out while it is ``off``, a field of
            :class:`~shim.settings.Settings`; empty where there is none.
        rows: module of this package whose rows for it are written by hand; empty where
            ``tests/write_rows.py`` writes them.
    """

    name: str
    family: str
    contract: Contract
    builder: str
    cures: str
    tracked: bool = False
    switch: str = ""
    rows: str = ""

    def left_out(self, settings: Settings) -> str:
        """Why the user does not want it, empty if he does."""
        if self.name not in settings.enabled:
            return "left out by FLASHINFER_SHIM_PATCHES"
        if self.switch and getattr(settings, self.switch) == "off":
            return f"FLASHINFER_SHIM_{self.switch.upper()} is off"
        return ""

    def build(self, site: Site) -> Callable[..., Any]:
        """Build the replacement. May raise; the caller leaves FlashInfer as it was then."""
        built: Callable[..., Any] = import_module(self.builder, __package__).build(site)
        return built


PATCHES = (
    Patch(
        name="cuda_version",
        family="toolchain",
        contract=cuda_version_contract.CONTRACT,
        builder=".cuda_version",
        cures="get_cuda_version starts nvcc, which no compiler can trace (flashinfer #2733)",
        rows="cuda_version_contract",
    ),
    Patch(
        name="jit_load",
        family="toolchain",
        contract=jit_contract.LOAD,
        builder=".jit_watch",
        cures="nobody is told of a module that is loaded, or built, too late (flashinfer #3172)",
        switch="jit",
        rows="jit_contract",
    ),
    Patch(
        name="jit_build",
        family="toolchain",
        contract=jit_contract.BUILD,
        builder=".jit_watch",
        cures="nobody is told of a build, or of how long it takes (flashinfer #3172)",
        switch="jit",
        rows="jit_contract",
    ),
    Patch(
        name="fp4_quantize",
        family="quantization",
        contract=fp4_quantize_contract.CONTRACT,
        builder=".fp4_quantize",
        cures="fp4_quantize builds and loads its kernel from Python (flashinfer #2733)",
        rows="fp4_quantize_contract",
    ),
    *(
        Patch(
            name=op.name,
            family=op.family,
            contract=op.contract,
            builder=".declared_op",
            cures=f"{op.contract.function} builds and loads its kernel from Python "
            "(flashinfer #2733)",
            tracked="." in op.contract.function,
        )
        for op in op_contracts.read()
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
