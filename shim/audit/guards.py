"""Functions that ask whether they are being compiled, in modules that use FlashInfer.

A framework that found FlashInfer not to compile may call it only where nothing is compiled. Such a
call is in no graph, and Dynamo never meets it: it can be seen in the caller's code alone.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import NamedTuple

from ..ledger import Record
from ..opaque.identity import original_of
from ..replacing import namespace

_QUESTIONS = frozenset(("is_dynamo_compiling", "is_compiling", "is_exporting"))
_NOT_LOOKED_AT = ("torch", "flashinfer", (__package__ or "").partition(".")[0])


class Guard(NamedTuple):
    """One function that asks.

    Attributes:
        function: ``module:function``.
        where: ``FILE:LINE`` where it begins.
        asks: the name of what it asks.
        names: FlashInfer's functions that it names.
    """

    function: str
    where: str
    asks: str
    names: tuple[str, ...]


class Search:
    """Goes through each loaded module once."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[ModuleType, list[Guard]]] = {}

    def run(self, records: Iterable[Record]) -> list[Guard]:
        """What was found so far, the modules that were imported meanwhile included."""
        covered = {record.target.rpartition(":")[2].rpartition(".")[2] for record in records}
        for name, module in list(sys.modules.items()):
            done = self._found.get(name, (None, []))[0] is module
            # Nobody can tell whether the script is through.
            if (done and name != "__main__") or _is_running(module):
                continue
            self._found[name] = (module, [])
            with suppress(Exception):  # there may be anything in sys.modules
                if name.partition(".")[0] not in _NOT_LOOKED_AT and _uses_flashinfer(module):
                    self._found[name] = (module, list(_guards(module, covered)))
        return [guard for _, guards in self._found.values() for guard in guards]


def _is_running(module: ModuleType) -> bool:
    """Whether its body is being executed, so that not all of its functions need be there."""
    # Never by the module's own attributes: that would import what importlib is to import lazily.
    return bool(getattr(namespace(module).get("__spec__"), "_initializing", False))


def _uses_flashinfer(module: ModuleType) -> bool:
    for value in list(namespace(module).values()):
        if isinstance(value, ModuleType):
            if str(namespace(value).get("__name__", "")).partition(".")[0] == "flashinfer":
                return True
        elif original_of(value) is not None:
            return True
    return False


def _guards(module: ModuleType, covered: set[str]) -> Iterator[Guard]:
    replaced = {n for n, v in list(namespace(module).items()) if original_of(v) is not None}
    for function in _functions(module):
        names = set(_names(function.__code__))
        asks, calls = _QUESTIONS & names, (covered | replaced) & names
        if asks and calls:
            code = function.__code__
            yield Guard(
                f"{module.__name__}:{function.__qualname__}",
                f"{code.co_filename}:{code.co_firstlineno}",
                min(asks),
                tuple(sorted(calls)),
            )


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Those that the module defines, in classes too, without what is wrapped around them."""
    values = list(namespace(module).values())
    for kind in [each for each in values if isinstance(each, type)]:
        if kind.__module__ == module.__name__:
            values += vars(kind).values()
    seen = set()
    for value in values:
        if isinstance(value, FunctionType) and value.__module__ == module.__name__:
            with suppress(ValueError):  # wrapped around itself
                value = inspect.unwrap(value)
            if isinstance(value, FunctionType) and value not in seen:
                seen.add(value)
                yield value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
