"""A CUDA toolkit for tests: its nvcc is a script that compiles nothing, by the C++ compiler.

FlashInfer's own ninja files run it, so all but the kernels is real.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import CopyRelease

#: Kernel sources, which the trees of the tests lack.
SOURCES = ("norm.cu", "flashinfer_norm_binding.cu")

_NVCC = """#!/bin/sh
case " $* " in
*" --version "*) echo "Cuda compilation tools, release 12.8, V12.8.93"; exit ;;
*compute_120f*) echo "nvcc fatal   : Unsupported gpu architecture 'compute_120f'" >&2; exit 1 ;;
*" --dryrun "*) exit ;;
esac
while [ $# -gt 0 ]; do
    case $1 in
    -c) source=$2 ;;
    -o) object=$2 ;;
    --dependency-output) dependencies=$2 ;;
    esac
    shift
done
[ "$source" ] || exit  # upstream asks it something else
echo "$source" >> '{log}'
if [ -p '{hold}' ]; then
    echo "half an object" > "$object"
    exec 3> '{hold}'
    echo "$source" >&3
    sleep 100000
fi
echo "$object: $source" > "$dependencies"
echo "static int nothing;" | c++ -x c++ -fPIC -c - -o "$object"
"""


class Toolkit:
    """In directory ``home``: CUDA 12.8, which knows no 12.0f."""

    def __init__(self, home: Path) -> None:
        if shutil.which("c++") is None or shutil.which("ninja") is None:
            pytest.skip("FlashInfer builds with ninja and a C++ compiler, which are not here")
        self.home = home
        self._log, self.hold = home / "compiled", home / "hold"
        for folder in ("bin", "include", "lib64/stubs"):
            (home / folder).mkdir(parents=True)
        self.nvcc = home / "bin" / "nvcc"
        self.nvcc.write_text(_NVCC.format(log=self._log, hold=self.hold))
        self.nvcc.chmod(0o755)
        (home / "version.json").write_text('{"cuda_nvcc": {"version": "12.8.93"}}')
        for library in ("libcudart.so", "stubs/libcuda.so"):
            file = str(home / "lib64" / library)
            subprocess.run(["c++", "-shared", "-x", "c++", "/dev/null", "-o", file], check=True)

    @property
    def env(self) -> dict[str, str]:
        """What lets FlashInfer build with it."""
        return {
            "CUDA_HOME": str(self.home),
            "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
            "FLASHINFER_LOGGING_LEVEL": "error",
        }

    @property
    def compiled(self) -> Sequence[str]:
        """The names of the sources that were compiled, in order."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [Path(line).name for line in lines]


def with_sources(copy_release: CopyRelease, release: str) -> Path:
    """A copy of a release with sources that kernels are made of, which the trees lack."""
    # FlashInfer looks for them where that file is, links resolved.
    edit = {"flashinfer/jit/env.py": lambda text: f"{text}\n# a copy\n"}
    tree = copy_release(release, edit=edit)
    folder = tree / "flashinfer"
    for name in ("data", "csrc"):
        folder /= name
        target = folder.resolve()
        if folder.is_symlink():
            folder.unlink()
        folder.mkdir(exist_ok=True)
        for entry in target.iterdir() if target != folder else ():
            (folder / entry.name).symlink_to(entry)
    for name in SOURCES:
        (folder / name).write_text("// a kernel\n")
    return tree
