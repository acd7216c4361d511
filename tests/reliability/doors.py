"""The ways in which a Python process comes to be, each as a command that becomes ``python *words``.

A place is what such a process needs: an interpreter that finds torch, FlashInfer and us. The
simplest is the tests' own with PYTHONPATH; another is a virtual environment with our wheel in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import shutil
import sys
import zipapp
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = os.path.dirname(os.path.abspath(__file__))

#: Beginnings of the variables that vLLM hands on to its workers in a Ray cluster.
HANDED_ON = ("VLLM_", "NCCL_", "HF_", "RAY_")


@dataclass(frozen=True)
class Place:
    """Where doors are tried.

    Attributes:
        python: the interpreter.
        path: the directories for PYTHONPATH.
        site: directories that the interpreter has by itself, but not with ``-S``.
        scratch: a directory of the test's own.
    """

    python: Path
    path: tuple[Path, ...]
    site: tuple[Path, ...]
    scratch: Path


@dataclass(frozen=True)
class Command:
    """What to start: words, and what the usual environment is changed by (None: unset)."""

    words: list[str | Path]
    env: Mapping[str, str | None] = field(default_factory=dict)


Door = Callable[[Place, Sequence[str]], Command]


def run_here(words: Sequence[str], report: str | None = None) -> None:
    """Be ``python *words`` in this very process; stdout goes to the file ``report`` if given."""
    with contextlib.ExitStack() as stack:
        if report:
            file = stack.enter_context(open(report, "w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(file))
        stack.enter_context(contextlib.suppress(SystemExit))
        if words[0] == "-m":
            sys.argv = list(words[1:])
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(words)
            runpy.run_path(words[0], run_name="__main__")
    sys.stdout.flush()


def flags(*given: str) -> Door:
    """The interpreter with those flags."""
    return lambda place, words: Command([place.python, *given, *words])


def without_site(place: Place, words: Sequence[str]) -> Command:
    """With ``-S``; what it has no more by itself is on PYTHONPATH, too."""
    path = os.pathsep.join(map(str, (*place.path, *place.site)))
    return Command([place.python, "-S", *words], {"PYTHONPATH": path})


def script(body: str) -> Door:
    """A script that becomes, or starts, ``python *words`` by ``body``."""

    def door(place: Place, words: Sequence[str]) -> Command:
        file = place.scratch / "door.py"
        file.write_text(
            "import json, os, subprocess, sys\n"
            f"sys.path.append({HERE!r})\n"
            "from functools import partial\n"
            "from doors import *\n"
            "words = json.loads(os.environ['WORDS'])\n"
            "if __name__ == '__main__':\n"
            + "".join(f"    {line}\n" for line in body.strip().splitlines())
        )
        return Command([place.python, file], {"WORDS": json.dumps(words)})

    return door


def multiprocessing(method: str, before: str = "") -> Door:
    """A process of that start method, after ``before`` in its parent."""
    return script(
        f"""
{before or "pass"}
import multiprocessing
child = multiprocessing.get_context({method!r}).Process(target=run_here, args=(words,))
child.start()
child.join()
"""
    )


POOL = """
from concurrent.futures import ProcessPoolExecutor
with ProcessPoolExecutor(1) as pool:
    pool.submit(run_here, words).result()
"""

#: The pool that Inductor compiles kernels in: a process with an environment of torch's making,
#: and workers that it forks. What they print is torch's.
INDUCTOR = """
from torch._inductor.compile_worker.subproc_pool import SubprocPool
pool = SubprocPool(1)
pool.submit(partial(run_here, words, "report")).result()
pool.shutdown()
print(open("report").read())
"""

#: What vLLM does in each of its processes.
PLUGIN = """
from importlib.metadata import entry_points
for point in entry_points(group="vllm.general_plugins"):
    if point.name == "flashinfer_shim":
        point.load()()
run_here(words)
"""


def filtered(body: str, **kept: str) -> Door:
    """A worker that gets of its environment what vLLM hands on, and ``kept``."""

    def door(place: Place, words: Sequence[str]) -> Command:
        command = script(body)(place, words)
        keeps = [f"{name}={value}" for name, value in kept.items()]
        needs = [f"WORDS={json.dumps(words)}", *_own(place)]
        env = {f"{prefix}OF_THE_USER": "1" for prefix in HANDED_ON}
        handed = [f"{name}={value}" for name, value in env.items()]
        return Command(["/usr/bin/env", "-i", *needs, *handed, *keeps, *command.words])

    return door


def empty_environment(place: Place, words: Sequence[str]) -> Command:
    """``env -i``, but for what keeps FlashInfer's files in the test's own directory."""
    return Command(["/usr/bin/env", "-i", *_own(place), place.python, *words])


def _own(place: Place) -> list[str]:
    return [
        f"HOME={place.scratch}",
        f"FLASHINFER_WORKSPACE_BASE={place.scratch}",
        "FLASHINFER_CUDA_ARCH_LIST=12.0f",
        "TVM_FFI_DISABLE_TORCH_C_DLPACK=1",
    ]


def zip_application(place: Place, words: Sequence[str]) -> Command:
    """A user's application in one file."""
    source = place.scratch / "application"
    source.mkdir(exist_ok=True)
    shutil.copy(os.path.join(HERE, "doors.py"), source)
    (source / "__main__.py").write_text(
        "import sys\nfrom doors import run_here\nrun_here(sys.argv[1:])\n"
    )
    target = place.scratch / "application.pyz"
    zipapp.create_archive(source, target)
    return Command([place.python, target, *words])


def conda_prefix(place: Place, words: Sequence[str]) -> Command:
    """An interpreter in a prefix as conda makes them, which has a sitecustomize of its own."""
    prefix = place.scratch / "conda"
    version = "python{}.{}".format(*sys.version_info)
    base = Path(os.path.realpath(place.python))
    library = prefix / "lib" / version
    packages = library / "site-packages"
    if not prefix.exists():
        (prefix / "conda-meta").mkdir(parents=True)
        (prefix / "bin").mkdir()
        packages.mkdir(parents=True)
        shutil.copy(base, prefix / "bin" / version)
        for entry in (Path(sys.base_prefix) / "lib" / version).iterdir():
            if entry.name not in ("site-packages", "__pycache__"):
                (library / entry.name).symlink_to(entry)
        (packages / "a.pth").write_text("".join(f"{entry}\n" for entry in place.site))
        (packages / "sitecustomize.py").write_text("import sys\nsys.condas_ran = True\n")
    code = (
        f"import sys; sys.path.append({HERE!r}); from doors import run_here; "
        f"assert sys.condas_ran and sys.prefix == {str(prefix)!r}, sys.prefix; "
        "run_here(sys.argv[1:])"
    )
    return Command([prefix / "bin" / version, "-c", code, *words])


def uv_run(place: Place, words: Sequence[str]) -> Command:
    """``uv run`` in that environment."""
    from uv import find_uv_bin

    return Command(
        [
            find_uv_bin(),
            "run",
            "--offline",
            "--no-project",
            "--python",
            place.python,
            "python",
            *words,
        ],
        {"UV_CACHE_DIR": str(place.scratch / "uv"), "UV_NO_CONFIG": "1"},
    )


BACKEND = """
import os, subprocess, sys

def build_wheel(directory, config_settings=None, metadata_directory=None):
    with open({report!r}, "w") as report:
        code = "import sys; sys.path[:0] = {path!r}; import doors; doors.run_here({words!r})"
        subprocess.run([sys.executable, "-c", code], stdout=report)
    raise SystemExit("that is all")
"""


def isolated_build(place: Place, words: Sequence[str]) -> Command:
    """A backend's process in pip's isolated build, where a path is added to by hand."""
    project = place.scratch / "project"
    project.mkdir(exist_ok=True)
    report = str(place.scratch / "report")
    path = [HERE, *map(str, place.site)]
    (project / "backend.py").write_text(BACKEND.format(report=report, path=path, words=list(words)))
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    build = [place.python, "-m", "pip", "wheel", "--no-index", "--no-deps", str(project)]
    show = f"{' '.join(map(str, build))} >&2; cat {report}"
    return Command(["/bin/sh", "-c", show], {"PIP_DISABLE_PIP_VERSION_CHECK": "1"})
