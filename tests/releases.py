"""Real FlashInfer releases for the tests: their Python files and metadata, unpacked once.

``path("0.6.3")`` is a directory to put on ``PYTHONPATH``. It is fetched on first use, with pip,
and kept in ``.cache/flashinfer`` of the checkout, or where ``FLASHINFER_SHIM_TEST_CACHE`` says:
that may also name a directory of trees that are there already.

``cuda_packages()`` are the directories of NVIDIA's packages for kernels written in Python, kept
likewise. Many functions take another path where they are installed, as for all users with a GPU.
``neighbours()`` is the directory of libraries that act in the same processes as we do.

``python tests/releases.py [VERSION...]`` fetches them beforehand, without a version all of it.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: What a run goes through: all that is declared on every release where the variable says ``whole``,
#: an op of each family on each release where it says ``core``, else what differs most.
_MATRIX = os.environ.get("FLASHINFER_SHIM_TEST_MATRIX")
IS_WHOLE, IS_CORE = _MATRIX == "whole", _MATRIX == "core"

_KNOWN = json.loads((ROOT / "shim" / "patches" / "releases.json").read_text(encoding="utf-8"))


def asked(*usual: str) -> tuple[str, ...]:
    """The releases that ``FLASHINFER_SHIM_TEST_RELEASES`` names, the usual ones if it names none.

    Tests that say something of every release take theirs from here.
    """
    named = os.environ.get("FLASHINFER_SHIM_TEST_RELEASES", "")
    return tuple(named.replace(",", " ").split()) or usual


#: Those that differ most, and the newest that is known.
_CHOSEN = (
    "0.5.0",
    "0.5.3",
    "0.6.3",
    "0.6.7.post3",
    "0.6.9",
    "0.6.11.post3",
    "0.6.13",
    "0.6.18.post1",
    "0.7.4",
)
RELEASES = asked(*dict.fromkeys((*_CHOSEN, _KNOWN[-1])))

#: The CuTe DSL (`nvidia-cutlass-dsl[cu13]`) and cuTile, but for what the tests' tools bring along.
_CUTE_DSL = "4.8.1"
_CUDA_PACKAGES = (
    f"nvidia-cutlass-dsl=={_CUTE_DSL}",
    f"nvidia-cutlass-dsl-libs-base=={_CUTE_DSL}",
    f"nvidia-cutlass-dsl-libs-core=={_CUTE_DSL}",
    f"nvidia-cutlass-dsl-libs-cu13=={_CUTE_DSL}",
    "protobuf==7.36.2",
    "cuda-tile==1.7.0",
)

#: Other libraries that come into every process, or change modules while they are imported.
_NEIGHBOURS = (
    "beartype==0.23.1",
    "bytecode==0.19.1",
    "coverage==7.17.5",
    "ddtrace==4.16.0",
    "ddtrace-internal==0.1.0",
    "envier==0.6.1",
    "opentelemetry-api==1.45.2",
    "opentelemetry-distro==0.66b2",
    "opentelemetry-instrumentation==0.66b2",
    "opentelemetry-sdk==1.45.2",
    "opentelemetry-semantic-conventions==0.66b2",
    "typeguard==4.6.1",
)


def cache() -> Path:
    """The directory that holds one tree for each version."""
    override = os.environ.get("FLASHINFER_SHIM_TEST_CACHE")
    return Path(override).resolve() if override else ROOT / ".cache" / "flashinfer"


def path(version: str) -> Path:
    """The tree of ``version``, fetched if it is not there; safe in several processes at once.

    Raises:
        subprocess.CalledProcessError: pip could not fetch it; its own words are on stderr.
    """
    return _kept(version, [f"flashinfer-python=={version}"], _wanted)


def cuda_packages() -> list[Path]:
    """What to put on ``PYTHONPATH`` for them, fetched if it is not there.

    Raises:
        subprocess.CalledProcessError: pip could not fetch it; its own words are on stderr.
    """
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    tree = _kept(f"cuda-packages-{_CUTE_DSL}-{python}", _CUDA_PACKAGES, lambda member: True)
    # In site-packages a .pth file names the second.
    return [tree, tree / "nvidia_cutlass_dsl" / "dsl_packages"]


def neighbours() -> Path:
    """A directory for ``site.addsitedir`` that holds them, fetched if it is not there.

    Raises:
        subprocess.CalledProcessError: pip could not fetch it; its own words are on stderr.
    """
    pins = format(zlib.crc32(" ".join(_NEIGHBOURS).encode()), "08x")
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return _kept(f"neighbours-{pins}-{python}", _NEIGHBOURS, lambda member: True)


def copy(
    version: str,
    to: Path,
    *,
    metadata_version: str | None = None,
    edit: Mapping[str, Callable[[str], str]] | None = None,
) -> Path:
    """A tree like ``path(version)`` below ``to``, of which a test may change some files.

    Everything that is not changed is a symbolic link, so that a large release takes no time.

    Args:
        version: The release to copy.
        to: A directory of the test's own; the tree is made inside it.
        metadata_version: The version that the distribution's metadata give instead. What
            ``flashinfer.__version__`` says is ``flashinfer/_build_meta.py``'s: change it by
            ``edit``.
        edit: For paths relative to the tree, a function from the old text to the new one.
    """
    source, tree = path(version), to / f"flashinfer-{version}"
    tree.mkdir(parents=True)
    for entry in source.iterdir():
        (tree / entry.name).symlink_to(entry)
    for name, change in (edit or {}).items():
        _rewrite(tree, name, change)
    if metadata_version is not None:
        old = next(tree.glob("*.dist-info"))
        line = "\nVersion: {}\n".format
        _rewrite(
            tree,
            f"{old.name}/METADATA",
            lambda text: text.replace(line(version), line(metadata_version)),
        )
        old.rename(tree / old.name.replace(version, metadata_version))
    return tree


def _rewrite(tree: Path, name: str, change: Callable[[str], str]) -> None:
    """Replace the file ``name`` by a changed copy, and each link above it by a real directory."""
    for parent in reversed(Path(name).parents[:-1]):
        folder = tree / parent
        if folder.is_symlink():
            source = folder.resolve()
            folder.unlink()
            folder.mkdir()
            for entry in source.iterdir():
                if entry.name != "__pycache__":
                    (folder / entry.name).symlink_to(entry)
    file = tree / name
    old = file.read_text()
    new = change(old)
    if new == old:
        raise ValueError(f"the edit of {name} changes nothing: is the text it looks for there?")
    file.unlink()
    file.write_text(new)


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Hold ``lock`` against other processes; the kernel releases it if we are killed."""
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _kept(name: str, wheels: Sequence[str], wanted: Callable[[str], bool]) -> Path:
    """The tree ``name`` of the cache; if it is not there, fetched, whole or not at all."""
    tree = cache() / name
    if not tree.is_dir():
        cache().mkdir(parents=True, exist_ok=True)
        with alone(cache() / f".{name}.lock"):
            if not tree.is_dir():
                _fetch(wheels, tree, wanted)
    return tree


def _fetch(wheels: Sequence[str], tree: Path, wanted: Callable[[str], bool]) -> None:
    """Download wheels and leave what is wanted of them at ``tree``."""
    with tempfile.TemporaryDirectory(prefix=f".{tree.name}.", dir=tree.parent) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        pip += ["--only-binary=:all:", f"--dest={scratch}", *wheels]
        subprocess.run(pip, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        unpacked = Path(scratch, "unpacked")
        for file in Path(scratch).glob("*.whl"):
            with zipfile.ZipFile(file) as wheel:
                wheel.extractall(unpacked, [name for name in wheel.namelist() if wanted(name)])
        unpacked.rename(tree)


def _wanted(member: str) -> bool:
    """Python files, metadata, and the tables that some releases read while they are imported."""
    return (
        member.endswith(".py")
        or ".dist-info/" in member
        or (member.endswith(".json") and not member.startswith("flashinfer/data/"))
    )


if __name__ == "__main__":
    for version in sys.argv[1:] or RELEASES:
        print(path(version), flush=True)
    if not sys.argv[1:]:
        print(cuda_packages()[0], flush=True)
