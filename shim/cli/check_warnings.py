"""What a user should know though no verdict says it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from .. import matrix
from ..contract import DISABLING
from ..settings import Settings
from ..survey import Finding
from ..toolchain import companions
from ..upstream import DISTRIBUTIONS, Installed, distribution_version
from .environment import Environment

#: Releases whose own op passes enable_pdl by position into is_global_scale_inversed.
_INVERTING_SINCE, _INVERTING_UNTIL = Version("0.6.12"), Version("0.7.0.post1")


@dataclass(frozen=True)
class Warn:
    """One warning: a stable word for programs, a sentence, and what to do."""

    code: str
    text: str
    action: str


def find_warnings(
    environment: Environment,
    settings: Settings,
    installed: Installed | None,
    findings: Sequence[Finding],
    environ: Mapping[str, str],
) -> tuple[Warn, ...]:
    """All warnings but those on the toolchain, the ones on the whole environment first."""
    return (
        *_settings(settings),
        *_other_python(environ),
        *(_untested(environment, installed) if installed else ()),
        *_metadata(),
        *_leftover(environment),
        *(_companions(environment, installed, environ) if installed else ()),
        *_edited(findings),
        *(_upstream_op(installed) if installed else ()),
    )


def _settings(settings: Settings) -> Iterator[Warn]:
    for complaint in settings.complaints:
        yield Warn("setting", complaint, "correct the variable, or unset it")


def _other_python(environ: Mapping[str, str]) -> Iterator[Warn]:
    """Whether ``python`` on the PATH is of another environment: the report is not about that one.

    Two interpreters of which neither is in a virtual environment cannot be told apart by their
    paths (launchers, links), so nothing is said of them.
    """
    found = shutil.which("python", path=environ.get("PATH", os.defpath))
    if found is None:
        return
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(found)))
    virtual = os.path.isfile(os.path.join(prefix, "pyvenv.cfg"))
    here = sys.prefix != sys.base_prefix
    if (virtual or here) and os.path.realpath(prefix) != os.path.realpath(sys.prefix):
        yield Warn(
            "other_python",
            f"python on PATH is {found}, of another environment than this report's {sys.prefix}",
            f"to ask about that one: {found} -m shim check",
        )


def _untested(environment: Environment, installed: Installed) -> Iterator[Warn]:
    """What lies outside of what was tried together; it is patched all the same."""
    torch = environment.torch.version if environment.torch else None
    python = "{}.{}".format(*sys.version_info)
    for doubt in matrix.doubts(installed.release, torch, python):
        yield Warn(doubt.code, doubt.text, doubt.action)


def _metadata() -> Iterator[Warn]:
    stated = {name: distribution_version(name, sys.path) for name in DISTRIBUTIONS}
    if all(stated.values()):
        listed = " and ".join(f"{name} {version}" for name, version in stated.items())
        yield Warn(
            "two_distributions",
            f"{listed} are both installed, and both bring the package flashinfer",
            f"uninstall both, then install {DISTRIBUTIONS[0]}",
        )
    for entry in dict.fromkeys(sys.path):
        for directory in sorted(Path(entry).glob("flashinfer*.dist-info")):
            if not (directory / "METADATA").is_file():
                yield Warn(
                    "empty_metadata",
                    f"{directory} holds no METADATA, as an interrupted installation leaves it",
                    "remove that directory",
                )


def _leftover(environment: Environment) -> Iterator[Warn]:
    if environment.leftover is not None:
        yield Warn(
            "leftover",
            f"{environment.leftover} has no __init__.py, so it is not FlashInfer",
            "remove that directory, or take the one around it off PYTHONPATH",
        )


def _companions(
    environment: Environment, installed: Installed, environ: Mapping[str, str]
) -> Iterator[Warn]:
    """Whether they are of FlashInfer's release, and of torch's CUDA."""
    torch_cuda = environment.torch.cuda if environment.torch else None
    for name, version in environment.companions.items():
        if installed.version is None:
            continue
        if _public(version) != installed.release:
            made = companions.consequence(name, version, installed.version, environ)
            if made:
                yield Warn(
                    "companion_release",
                    f"{name} is {version}, FlashInfer is {installed.version}: {made}",
                    f"pip install {name}=={installed.release}, or uninstall it",
                )
        built = companions.cuda(version)
        if built and torch_cuda and built.major != Version(torch_cuda).major:
            yield Warn(
                "companion_cuda",
                f"{name} {version} was built with CUDA {built}, torch with {torch_cuda}: its "
                f"modules are linked with libcudart.so.{built.major}, which torch does not bring",
                f"install {name} for CUDA {Version(torch_cuda).major}",
            )


def _public(version: str) -> str | None:
    try:
        return Version(version).public
    except InvalidVersion:
        return None


def _edited(findings: Sequence[Finding]) -> Iterator[Warn]:
    for facts in filter(None, (finding.facts for finding in findings)):
        for mark in DISABLING.intersection(facts.decorators):
            yield Warn(
                "edited_function",
                f"{facts.path} was edited: @{mark} stands on {facts.name}; we see through it, "
                "but without us fullgraph=True rejects such a function",
                "take the line out, or install flashinfer-python again",
            )


def _upstream_op(installed: Installed) -> Iterator[Warn]:
    version = installed.version
    if version and _INVERTING_SINCE <= Version(version.public) <= _INVERTING_UNTIL:
        yield Warn(
            "upstream_op",
            f"in FlashInfer {installed.release} torch.ops.flashinfer.fp4_quantize(..., "
            "enable_pdl=True) inverts the global scale, silently",
            "call flashinfer.fp4_quantize instead, which is right",
        )
