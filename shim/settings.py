"""Settings from the environment. Values choose between behaviours; none ever names code to load."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

PREFIX = "FLASHINFER_SHIM"


class Variable(NamedTuple):
    """One environment variable: its accepted spellings, each with the value it stands for."""

    name: str
    default: str
    spellings: Mapping[str, str]
    help: str

    @property
    def choices(self) -> str:
        """The documented spellings, for messages."""
        return ", ".join(dict.fromkeys(self.spellings.values()))


def _same(*values: str) -> dict[str, str]:
    return {value: value for value in values}


def _switch(on: str, off: str) -> dict[str, str]:
    return {
        **dict.fromkeys(("1", "true", "on", "yes"), on),
        **dict.fromkeys(("0", "false", "off", "no"), off),
    }


MODE = Variable(
    PREFIX,
    "auto",
    {**_same("auto", "require", "off"), **_switch("auto", "off")},
    "auto: patch what is recognised, stand aside from the rest; require: raise at FlashInfer's "
    "import instead of standing aside; off: do nothing",
)
POLICY = Variable(
    f"{PREFIX}_POLICY",
    "tested",
    _same("tested", "adapt"),
    "tested: only releases in the table; adapt: also others whose contract still fits",
)
CUDA_VERSION = Variable(
    f"{PREFIX}_CUDA_VERSION",
    "torch",
    _same("torch", "nvcc"),
    "what get_cuda_version answers: torch.version.cuda, or nvcc asked once while patching",
)
LOG = Variable(
    f"{PREFIX}_LOG", "warn", _same("off", "warn", "info", "debug"), "how much to say on stderr"
)
PRELOAD = Variable(
    f"{PREFIX}_PRELOAD",
    "on",
    _switch("on", "off"),
    "load an op's kernel module when the compiler asks for its fake, on a machine with a GPU",
)
REFERENCE = Variable(
    f"{PREFIX}_REFERENCE",
    "off",
    _switch("on", "off"),
    "let CPU tensors through fp4_quantize by the reference kernel in plain PyTorch",
)
JIT = Variable(
    f"{PREFIX}_JIT",
    "off",
    {**_same("off", "warn", "error"), **dict.fromkeys(("0", "false", "no"), "off")},
    "watch what FlashInfer builds and loads: warn of it once the process is warm; error: also "
    "raise where it would come inside a CUDA graph capture",
)
PATCHES = f"{PREFIX}_PATCHES"
AUDIT = f"{PREFIX}_AUDIT"
_NO_FAMILIES: Mapping[str, Collection[str]] = {}

VARIABLES = (MODE, POLICY, CUDA_VERSION, LOG, PRELOAD, REFERENCE, JIT)


class Settings(NamedTuple):
    """The settings of one process, as read once from its environment.

    Attributes:
        mode: ``auto``, ``require`` or ``off``.
        policy: ``tested`` or ``adapt``.
        cuda_version: ``torch`` or ``nvcc``.
        log: ``off``, ``warn``, ``info`` or ``debug``.
        preload: load kernel modules when the compiler asks for a fake.
        reference: CPU tensors go to the reference kernel.
        audit: the directory that each process leaves its notes in; empty: none are taken.
        jit: ``off``, ``warn`` or ``error``.
        enabled: names of the patches that the user wants.
        complaints: one sentence for each value that was not understood. Its default is in force; of
            a list of patches, the rest, or all patches if nothing is left of it.
    """

    mode: str
    policy: str
    cuda_version: str
    log: str
    preload: bool
    reference: bool
    audit: str
    jit: str
    enabled: frozenset[str]
    complaints: tuple[str, ...]

    def summary(self) -> str:
        """All of them on one line; of the patches, how many are enabled."""
        told = self._asdict() | {"enabled": f"{len(self.enabled)} patches"}
        return ", ".join(f"{name}={value}" for name, value in told.items())


def read(
    environ: Mapping[str, str],
    known: Iterable[str],
    families: Mapping[str, Collection[str]] = _NO_FAMILIES,
) -> Settings:
    """Read ``environ``. Never raises.

    Args:
        environ: the process's environment.
        known: the names of all patches.
        families: names that stand for several of them.

    A value that is not understood leaves its default in force and a complaint in the result.
    """
    complaints: list[str] = []
    values = {variable.name: _value(variable, environ, complaints) for variable in VARIABLES}
    return Settings(
        mode=values[MODE.name],
        policy=values[POLICY.name],
        cuda_version=values[CUDA_VERSION.name],
        log=values[LOG.name],
        preload=values[PRELOAD.name] == "on",
        reference=values[REFERENCE.name] == "on",
        audit=_directory(environ.get(AUDIT, ""), complaints),
        jit=values[JIT.name],
        enabled=_selection(environ.get(PATCHES, ""), tuple(known), families, complaints),
        complaints=tuple(complaints),
    )


def _value(variable: Variable, environ: Mapping[str, str], complaints: list[str]) -> str:
    text = environ.get(variable.name, "").strip().lower()
    if not text:
        return variable.default
    value = variable.spellings.get(text)
    if value is None:
        complaints.append(
            f"{variable.name}={environ[variable.name]!r} is not one of {variable.choices}; "
            f"{variable.default} is in force"
        )
        return variable.default
    return value


def _directory(text: str, complaints: list[str]) -> str:
    """An absolute path, since the process may go elsewhere; empty if there is no such directory."""
    path = text.strip()
    if not path:
        return ""
    if not os.path.isdir(path):
        complaints.append(
            f"{AUDIT}={text!r} is not a directory that exists: make it, or name another; nothing "
            "is noted"
        )
        return ""
    return os.path.abspath(path)


def _selection(
    text: str,
    known: tuple[str, ...],
    families: Mapping[str, Collection[str]],
    complaints: list[str],
) -> frozenset[str]:
    """``all``, names, ``-name``; names alone select just those, ``-name`` leaves one out."""
    groups = {"all": known, **families, **{name: (name,) for name in known}}
    by_word = {name.lower(): members for name, members in groups.items()}
    # A minus belongs to the name behind it, with a space between or without.
    words = re.findall(r"-\s*[^\s,]+|[^\s,]+", text)
    wanted: set[str] = set()
    unwanted: set[str] = set()
    unknown: list[str] = []
    for word in words:
        leaves_out = word.startswith("-")
        members = by_word.get(word[leaves_out:].strip().lower())
        if members is None:
            unknown.append(word)
        else:
            (unwanted if leaves_out else wanted).update(members)
    if unknown:
        complaints.append(
            f"{PATCHES}={text!r} names {', '.join(unknown)}, which no patch is called; expected "
            f"are {', '.join(['all', *(families or known)])} and the names that "
            "`flashinfer-shim coverage` lists, commas between, each with one - in front to leave "
            f"it out: correct or remove {'it' if len(unknown) == 1 else 'them'}, "
            f"{'the rest is' if wanted | unwanted else 'all patches are'} in force"
        )
    return frozenset((wanted or set(known)) - unwanted)
