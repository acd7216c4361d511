"""``flashinfer-shim prewarm``: build the kernel modules that ops need ahead of their first call."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from ..patches import FAMILIES, NAMES, PATCHES
from ..settings import read
from ..talking import events, started
from ..toolchain import finding
from .environment import NOT_INSTALLED
from .prewarm_progress import Progress, progress
from .prewarm_report import Run, as_json, exit_status, print_text

NATIVE = "native"
_ARCHITECTURES = re.compile(r"\d+\.\d[af]?( \d+\.\d[af]?)*")
#: What has modules.
_OPS = tuple(patch.name for patch in PATCHES if patch.family != "toolchain")
_FAMILIES = {name: members for name, members in FAMILIES.items() if name != "toolchain"}


@dataclass(frozen=True)
class Target:
    """One child's part.

    Attributes:
        label: what the report calls it.
        arch: the compute capability to pretend, None for the GPU.
        env: what is set in the child's environment.
    """

    label: str
    arch: str | None
    env: Mapping[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="OP",
        type=_name,
        help="names of ops, as `flashinfer-shim coverage` lists them, or of families "
        f"({', '.join(_FAMILIES)}); when left out, all ops that FLASHINFER_SHIM_PATCHES enables",
    )
    parser.add_argument(
        "--arch",
        action="append",
        type=_arch,
        metavar="ARCH",
        help="native (default): what FlashInfer itself would build for here, by "
        "FLASHINFER_CUDA_ARCH_LIST or the GPUs; or what that variable would hold, such as 9.0a or "
        "'9.0a 12.0f'; may be given more than once",
    )
    parser.add_argument(
        "--jobs", type=_jobs, metavar="N", help="compilers at a time (MAX_JOBS); ninja's choice"
    )
    parser.add_argument("--dry-run", action="store_true", help="list the modules, build nothing")
    parser.add_argument(
        "--json", action="store_true", help="print JSON; docs/prewarm.md has the schema"
    )
    parser.epilog = (
        "Exit status: 0 if all modules are there now, 1 if one could not be built or nothing could "
        "be, 2 for wrong usage."
    )


def main(args: argparse.Namespace) -> int:
    """Plan and build for each architecture, and print what came of it."""
    missing = _missing(os.environ)
    if missing:
        print(f"flashinfer-shim prewarm: {missing}", file=sys.stderr)
        return 1
    ops = _chosen(args.names)
    runs = []
    for target in _targets(args.arch or [NATIVE], os.environ):
        with progress() as shown:
            runs.append(_run(target, ops, args.jobs, shown, dry_run=args.dry_run))
    print(as_json(runs, dry_run=args.dry_run)) if args.json else print_text(runs)
    return exit_status(runs, dry_run=args.dry_run)


def _missing(environ: Mapping[str, str]) -> str:
    """What is not here that has to be, and what to do about it; or empty."""
    path = environ.get("PATH", os.defpath)
    if shutil.which("ninja", path=path) is None:
        return "there is no ninja on PATH, by which FlashInfer builds: pip install ninja"
    found = _without_nvcc(environ)
    if found:
        return (
            f"FlashInfer has no nvcc to build with: {found}; set CUDA_HOME to a CUDA toolkit with "
            "bin/nvcc"
        )
    if find_spec("flashinfer") is None:
        return NOT_INSTALLED
    return ""


def _without_nvcc(environ: Mapping[str, str]) -> str:
    toolkit = finding.find(environ)
    if toolkit is None:
        return f"neither CUDA_HOME nor CUDA_PATH, no nvcc on PATH, no {finding.DEFAULT_HOME}"
    if environ.get("FLASHINFER_NVCC"):  # a command line, which ninja alone reads
        return ""
    fault = finding.fault(toolkit)
    return f"{fault.text} ({toolkit.chosen_by})" if fault else ""


def _chosen(names: Sequence[str]) -> list[str]:
    if not names:
        enabled = read(os.environ, NAMES, FAMILIES).enabled
        return [op for op in _OPS if op in enabled]
    wanted = {patch for name in names for patch in _FAMILIES.get(name, (name,))}
    return [op for op in _OPS if op in wanted]


def _targets(archs: Sequence[str], environ: Mapping[str, str]) -> list[Target]:
    targets = []
    for arch in dict.fromkeys(archs):
        wanted = environ.get("FLASHINFER_CUDA_ARCH_LIST", "") if arch == NATIVE else arch
        if not wanted:
            targets.append(Target(NATIVE, None, {}))
        # FlashInfer has one cache for such a list, and modules of their own for some in it.
        for each in wanted.split():
            label = each if each == wanted else f"{each} of {wanted}"
            env = {"FLASHINFER_CUDA_ARCH_LIST": wanted}
            targets.append(Target(label, each.rstrip("af"), env))
    return targets


def _run(
    target: Target, ops: Sequence[str], jobs: int | None, shown: Progress, *, dry_run: bool
) -> Run:
    run = Run(target.label)
    env = {**os.environ, **target.env, **({"MAX_JOBS": str(jobs)} if jobs else {})}
    request = {"arch": target.arch, "ops": list(ops), "dry_run": dry_run}
    shown.say(f"{target.label}: importing FlashInfer")
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
        with started("prewarm.child", request, env=env, stderr=stderr) as child:
            for event in events(child):
                if event is not None:
                    run.take(event)
                    shown.take(target.label, event)
            status = child.wait()
        stderr.seek(0)
        lines = [line.strip() for line in stderr if line.strip()]
    if status:
        said = lines[-1] if lines else "nothing on stderr"
        run.refused = f"the child process ended with status {status}: {said}"
    return run


def _name(word: str) -> str:
    if word not in _OPS and word not in _FAMILIES:
        raise argparse.ArgumentTypeError(
            f"{word!r} is no op that `flashinfer-shim coverage` lists, and none of the families "
            f"{', '.join(_FAMILIES)}"
        )
    return word


def _arch(word: str) -> str:
    if word != NATIVE and not _ARCHITECTURES.fullmatch(word):
        raise argparse.ArgumentTypeError(
            f"{word!r} is neither {NATIVE} nor of the form of FLASHINFER_CUDA_ARCH_LIST, as 9.0a"
        )
    return word


def _jobs(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number from 1 on")
    return int(word)
