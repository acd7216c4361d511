"""Kernels that compute nothing, so that FlashInfer's own Python runs on CPU tensors. In children.

What is replaced launches kernels (C++ modules, CuTe DSL) or asks a device that is not there. Every
other line that runs is upstream's.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import oracle
import torch
from ops_making import tensors_of

#: What ``pretend`` is told: the card that has a kernel for every op.
ARCH = "10.0"

#: The constant that kernels write, one that every dtype has.
WRITTEN = 1


class Kernel(oracle.Stub):
    """A kernel, or a module of them: counts its calls and writes what upstream says it writes.

    Attributes:
        calls: how many kernels ran in this process.
        writing: whether they write.
    """

    calls = 0
    writing = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Kernel(name)

    def __getitem__(self, key: Any) -> Any:
        return self

    def __call__(self, *args: Any, **options: Any) -> Any:
        Kernel.calls += 1
        if Kernel.writing:
            for tensor in tensors_of(args):
                if _is_unwritten(tensor):
                    tensor.fill_(WRITTEN)
            for tensor in _registered_as_written(sys._getframe(1)):
                tensor.fill_(WRITTEN)
        return oracle.Stub("result")


def install() -> None:
    """Replace the launchers in all of FlashInfer, which has been imported."""
    core: Any = importlib.import_module("flashinfer.jit.core")
    core.JitSpec.build_and_load = lambda *args, **options: Kernel("module")
    if importlib.util.find_spec("cutlass") is not None:
        cute: Any = importlib.import_module("cutlass.cute")
        cute.compile = Kernel("compile")
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "flashinfer":
            for asked, answer in oracle.ANSWERS.items():
                if asked in vars(module):
                    # The shadow runs what is FlashInfer's, and refuses what it does not know.
                    answer.__module__ = name
                    setattr(module, asked, answer)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Within it kernels write a constant, and what nobody has written is the same every time."""
    Kernel.writing = True
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        Kernel.writing = False


def _is_unwritten(tensor: torch.Tensor) -> bool:
    """Whether the tensor holds what ``torch.empty`` gives under deterministic algorithms."""
    return tensor.is_floating_point() and bool(tensor.float().isnan().all())


def _registered_as_written(frame: FrameType | None) -> list[torch.Tensor]:
    """The arguments that the running functions of upstream say, by decorator, they write into.

    Those decorators register nothing (upstream switched that off), but they were written by those
    who know the kernels: an opinion on mutation that is not ours.
    """
    found: list[torch.Tensor] = []
    while frame is not None:
        code = frame.f_code
        if frame.f_globals.get("__name__", "").partition(".")[0] == "flashinfer":
            names = _registrations(code.co_filename).get(code.co_firstlineno, ())
            for name in names:
                found += tensors_of(frame.f_locals.get(name))
        frame = frame.f_back
    return found


@functools.cache
def _registrations(filename: str) -> Mapping[int, tuple[str, ...]]:
    """By the line on which a function of the file begins, the ``mutates_args`` it has."""
    with open(filename, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    found: dict[int, tuple[str, ...]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and "register_custom_op" in ast.dump(decorator.func):
                first = min(each.lineno for each in node.decorator_list)
                found[first] = _mutated(decorator)
    return found


def _mutated(decorator: ast.Call) -> tuple[str, ...]:
    values = [k.value for k in decorator.keywords if k.arg == "mutates_args"]
    names = ast.literal_eval(values[0]) if values else ()
    return (names,) if isinstance(names, str) else tuple(names)
