"""Put the report together: settings, environment, judgements, warnings."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

from .. import records
from ..ledger import Record, Verdict
from ..patches import FAMILIES, NAMES, PATCHES
from ..settings import Settings, read
from ..survey import Finding, survey
from ..upstream import Installed
from .check_doors import activated_by, doors
from .check_loading import loading
from .check_report import Report
from .check_toolchain import look as look_at_toolchain
from .check_toolchain_warnings import gpu_warnings as target_warnings
from .check_toolchain_warnings import toolchain_warnings
from .check_warnings import find_warnings
from .check_writers import writer_warnings
from .environment import ABSENT, INSTALL, look


def inspect_environment(environ: Mapping[str, str], *, deep: bool, ask: bool) -> Report:
    """Look at this interpreter's environment.

    Args:
        environ: its variables.
        deep: start children that import FlashInfer.
        ask: start nvcc.

    Raises:
        Unreadable: an import finder of somebody else's fails.
    """
    settings = read(environ, NAMES, FAMILIES)
    environment = look(environ)
    installed: Installed | None = None
    findings: tuple[Finding, ...] = ()
    if environment.flashinfer is None:
        entries = _absent(settings)
    else:
        installed, findings = survey(environment.flashinfer, sys.path, settings.policy)
        entries = tuple(_record(finding, settings) for finding in findings)
    chain = look_at_toolchain(
        environ,
        environment,
        installed,
        settings,
        tells_torch_cuda=any(
            record.patch == "cuda_version" and record.verdict is Verdict.PENDING
            for record in entries
        ),
        ask=ask,
    )
    warnings = (
        *find_warnings(environment, settings, installed, findings, environ),
        *writer_warnings(environment.shim, environ),
        *toolchain_warnings(chain, installed.version if installed else None),
    )
    children = None
    if deep:
        from .check_deep import gpu_warnings, start_children

        children = start_children()
        seen = [each for child in children for each in child.capabilities]
        warnings = (
            *warnings,
            *gpu_warnings(children),
            *target_warnings(chain, installed.version if installed else None, seen),
        )
    return Report(
        environment=environment,
        flashinfer=installed,
        toolchain=chain,
        loading=loading(environment, environ, off=settings.mode == "off"),
        activated_by=activated_by(),
        doors=doors(environ),
        records=entries,
        warnings=warnings,
        children=children,
    )


def _absent(settings: Settings) -> tuple[Record, ...]:
    """The records where there is no FlashInfer."""
    missing = records.all_unjudged(
        Verdict.REFUSED,
        ABSENT,
        INSTALL,
    )
    return tuple(_switched_off(record, settings) or record for record in missing)


def _record(finding: Finding, settings: Settings) -> Record:
    record = records.judged(finding)
    if settings.mode == "require" and settings.complaints:
        record = records.overruled(
            finding,
            Verdict.REFUSED,
            "FLASHINFER_SHIM=require makes a value that is not understood an error at "
            "FlashInfer's import",
            "correct the variable that the warning names",
        )
    return _switched_off(record, settings) or record


_PATCHES = {patch.name: patch for patch in PATCHES}


def _switched_off(record: Record, settings: Settings) -> Record | None:
    """The record of a patch that the user does not want, None for one that he does."""
    if settings.mode == "off":
        reason, action = "FLASHINFER_SHIM=off", "set FLASHINFER_SHIM=auto"
    else:
        reason, action = _PATCHES[record.patch].left_out(settings), ""
    if not reason:
        return None
    return replace(record, verdict=Verdict.DISABLED, reason=reason, action=action)
