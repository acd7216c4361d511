"""What FlashInfer itself makes of environments, release by release, in one process.

Started with a JSON file: trees by release, and environments. Of each release only the modules that
deal with the toolchain are executed, below packages whose own ``__init__`` is left out.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from packaging.version import Version

CUDAS = ("12.6", "12.8", "12.9", "13.0")


@contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Variables for a while; None takes one away."""
    before = dict(os.environ)
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def load(tree: str, name: str) -> Any:
    """A module of the release in ``tree``, and nothing of any other release."""
    for other in [each for each in sys.modules if each.split(".")[0] == "flashinfer"]:
        del sys.modules[other]
    for package in ("flashinfer", "flashinfer.jit"):
        module = ModuleType(package)
        module.__path__ = [str(Path(tree, *package.split(".")))]
        sys.modules[package] = module
    return importlib.import_module(name)


def outcome(call: Any) -> str:
    """What it returns, or the class and the text of what it raises."""
    try:
        return str(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def toolkits(tree: str, environments: list[dict[str, str | None]]) -> list[list[str]]:
    """Where it looks for nvcc, and which version of CUDA that gives."""
    cpp_ext = load(tree, "flashinfer.jit.cpp_ext")
    found = []
    for variables in environments:
        with environment(variables):
            cpp_ext.get_cuda_path.cache_clear()
            cpp_ext.get_cuda_version.cache_clear()
            found.append([outcome(cpp_ext.get_cuda_path), outcome(cpp_ext.get_cuda_version)])
    return found


def archs(tree: str, lists: list[str]) -> dict[str, dict[str, Any]]:
    """By version of CUDA: the targets of each list, and whether every module gets the flag."""
    cpp_ext = load(tree, "flashinfer.jit.cpp_ext")
    context = sys.modules["flashinfer.compilation_context"].CompilationContext
    found: dict[str, dict[str, Any]] = {}
    for cuda in CUDAS:
        cpp_ext.get_cuda_version = lambda cuda=cuda: Version(cuda)
        found[cuda] = {}
        for text in lists:
            with environment({"FLASHINFER_CUDA_ARCH_LIST": text}):
                found[cuda][text] = outcome(
                    lambda: " ".join(f"{a}{b}" for a, b in sorted(context().TARGET_CUDA_ARCHS))
                )
        with environment({"FLASHINFER_CUDA_ARCH_LIST": "9.0a"}):
            text = cpp_ext.generate_ninja_build_for_op("x", [Path("x.cu")], [], [], [], [])
        found[cuda]["stub"] = "-static-global-template-stub=false" in text
    return found


def caches(tree: str, environments: list[dict[str, str | None]]) -> list[str]:
    """Where it puts its modules."""
    found = []
    for variables in environments:
        with environment(variables):
            found.append(outcome(lambda: load(tree, "flashinfer.jit.env").FLASHINFER_CACHE_DIR))
    return found


def companions(tree: str, cases: list[list[str]]) -> list[str]:
    """Whether its import takes a companion of a version, leaves it aside, or raises."""
    return [_companion(tree, *case) for case in cases]


def _companion(tree: str, package: str, version: str) -> str:
    module = ModuleType(package)
    module.__dict__.update(
        __version__=version,
        __spec__=importlib.machinery.ModuleSpec(package, None),
        get_cubin_dir=lambda: "/companion",
        get_jit_cache_dir=lambda: "/companion",
        get_jit_cache_providers=lambda: [_Provider(version)],
    )
    sys.modules[package] = module
    try:
        env = load(tree, "flashinfer.jit.env")
    except RuntimeError:
        return "raises"
    finally:
        del sys.modules[package]
    names = ("FLASHINFER_CUBIN_DIR", "FLASHINFER_AOT_DIR", "FLASHINFER_AOT_DIRS")
    taken = any("/companion" in str(getattr(env, name, "")) for name in names)
    return "takes" if taken else "leaves"


class _Provider:
    """What flashinfer-jit-cache tells FlashInfer 0.7 of its modules."""

    provider_id = distribution = "companion"
    jit_cache_dir = "/companion"
    cuda_architectures = modules = ()

    def __init__(self, version: str) -> None:
        self.version = version


def main() -> None:
    """Print one JSON object: for each release what became of each case."""
    import torch

    torch.version.cuda = "13.0"  # what its get_cuda_version falls back on
    work = json.loads(Path(sys.argv[1]).read_text())
    found = {
        release: {
            "toolkits": toolkits(tree, work["toolkits"]),
            "archs": archs(tree, work["lists"]),
            "caches": caches(tree, work["caches"]),
            "companions": companions(tree, work["companions"][release]),
        }
        for release, tree in work["trees"].items()
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
