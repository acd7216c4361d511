"""Where a release defines a function, looked up in its source files, whether it is known or not."""

from __future__ import annotations

import ast
import functools
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

#: Where functions of the same names live that are not the ones that users call.
_OTHERS = re.compile(r"flashinfer\.(triton|trace|testing|experimental)\b")
#: Where such functions stand behind the ones that users call, if there are such.
_BEHIND = re.compile(r".*(\.kernels|_backend)\b")
_DEFINITION = re.compile(r"^(?:def|class) (\w+)[(:]", re.MULTILINE)


class Ambiguous(Exception):
    """Several modules define a function of that name; ``modules`` are their names."""

    def __init__(self, path: str, modules: tuple[str, ...]) -> None:
        super().__init__(f"{path} is defined in {', '.join(modules)}")
        self.modules = modules


class Definitions:
    """The functions and classes at the left margins of one FlashInfer's modules.

    Args:
        package: directory of the ``flashinfer`` package. Its ``data`` holds sources of kernels.
    """

    def __init__(self, package: Path) -> None:
        self._package = package

    def module(self, path: str, pattern: str = "") -> str | None:
        """The module that defines a function, None if none does.

        Args:
            path: its name in the module; ``Class.method`` for a method, of which the class is
                looked for.
            pattern: what the module's name is like (``*`` stands for any characters); where it is
                empty, the places of kernels and tests do not count.

        Raises:
            Ambiguous: several do, and the package's exports do not say which one users get.
        """
        every = self._by_name.get(path.partition(".")[0], ())
        if pattern:
            found = [module for module in every if fnmatchcase(module, pattern)]
        else:
            found = [module for module in every if not _OTHERS.match(module)]
        found = [module for module in found if not _BEHIND.match(module)] or found
        if len(found) > 1:
            found = [module for module in found if (module, path) in self._exports] or found
        if len(found) > 1:
            raise Ambiguous(path, tuple(found))
        return found[0] if found else None

    def names(self, module: str) -> tuple[str, ...]:
        """What ``module`` defines, in the order of the text."""
        return tuple(name for name, modules in self._by_name.items() if module in modules)

    @functools.cached_property
    def _by_name(self) -> Mapping[str, list[str]]:
        """By function or class, the modules that define it."""
        found: dict[str, list[str]] = defaultdict(list)
        for path in self._files():
            module = ".".join(path.relative_to(self._package).with_suffix("").parts)
            module = f"flashinfer.{module}".removesuffix(".__init__")
            for name in dict.fromkeys(_DEFINITION.findall(_read(path))):
                found[name].append(module)
        return found

    def _files(self) -> Iterator[Path]:
        seen: set[str] = set()
        for folder, inside, files in os.walk(self._package, followlinks=True):
            top = folder == str(self._package)
            if os.path.realpath(folder) in seen:  # by a link, perhaps in a circle
                inside.clear()
                continue
            seen.add(os.path.realpath(folder))
            inside[:] = sorted(name for name in inside if not (top and name == "data"))
            for name in sorted(files):
                if name.endswith(".py"):
                    yield Path(folder, name)

    @functools.cached_property
    def _exports(self) -> frozenset[tuple[str, str]]:
        """The functions that packages export under their own names, with their modules."""
        found = set()
        for path in (self._package / "__init__.py", *self._package.glob("*/__init__.py")):
            inside = ".".join(("flashinfer", *path.parent.relative_to(self._package).parts))
            for node in _nodes(_read(path)):
                if isinstance(node, ast.ImportFrom) and node.level == 1:
                    names = (each.name for each in node.names if each.asname in (None, each.name))
                    found |= {(f"{inside}.{node.module}", name) for name in names}
        return frozenset(found)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _nodes(text: str) -> Iterator[ast.AST]:
    try:
        yield from ast.walk(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # nothing that can be imported
        return
