"""Toolkits, whole and broken, and what ``check`` makes of an environment, without a process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import releases
from check_command import file, nvcc, toolkit

from shim.cli.check_toolchain import Toolchain, look
from shim.cli.environment import Environment, Ourselves, Python, Torch
from shim.settings import read
from shim.toolchain import finding
from shim.upstream import installed


def chain(environ: dict[str, str], **options: Any) -> Toolchain:
    """The toolchain of an environment with this torch's CUDA and FlashInfer."""
    torch_cuda = options.pop("torch_cuda", "13.0")
    release = options.pop("release", "0.6.3")
    environment = Environment(
        python=Python("", ""),
        torch=Torch("2.11.0", torch_cuda, ""),
        flashinfer=None,
        leftover=None,
        companions={},
        toolkit=finding.find(environ),
        wrapt=None,
        shim=Ourselves("", "", "", None),
    )
    return look(
        environ,
        environment,
        installed(releases.path(release) / "flashinfer", []),
        read(environ, ()),
        tells_torch_cuda=True,
        ask=options.pop("ask", False),
        **options,
    )


def broken_toolkits(folder: Path) -> dict[str, dict[str, str]]:
    """Environments whose toolkit is found, or not, and whose nvcc works, or not."""
    good = str(folder / "good")
    toolkit(folder / "good", "12.9")
    nvcc(folder / "fails", "echo 'release 12.9, V12.9.1'; exit 3")
    nvcc(folder / "garbage", "echo 'nothing of use'")
    nvcc(folder / "plain", "exit 0").chmod(0o644)
    nvcc(folder / "no_shebang", "").write_text("exit 0\n")
    nvcc(folder / "no_interpreter", "").write_text("#!/nowhere/sh\n")
    (folder / "directory" / "bin" / "nvcc").mkdir(parents=True)
    (folder / "dangling").symlink_to(folder / "gone")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "bare").mkdir()
    file(folder / "file")
    homes = ("fails", "garbage", "plain", "no_shebang", "no_interpreter", "directory", "dangling")
    return {
        **{home: {"CUDA_HOME": str(folder / home)} for home in (*homes, "loop", "bare", "file")},
        "good": {"CUDA_HOME": good},
        "trailing slash": {"CUDA_HOME": f"{good}/"},
        "leading colon": {"CUDA_HOME": f":{good}"},
        "its bin": {"CUDA_HOME": f"{good}/bin"},
        "its nvcc": {"CUDA_HOME": f"{good}/bin/nvcc"},
        "blank": {"CUDA_HOME": f" {good}"},
        "tilde": {"CUDA_HOME": "~/cuda"},
        "by CUDA_PATH": {"CUDA_PATH": good, "CUDA_HOME": ""},
        "CUDA_HOME first": {"CUDA_PATH": str(folder / "bare"), "CUDA_HOME": good},
        "empty CUDA_PATH": {"CUDA_PATH": "", "PATH": f"{good}/bin:/usr/bin:/bin"},
        "empty CUDA_HOME": {"CUDA_HOME": "", "PATH": f"{good}/bin:/usr/bin:/bin"},
        "on PATH": {"PATH": f"{good}/bin:/usr/bin:/bin"},
        "default": {"PATH": "/usr/bin:/bin"},
    }
