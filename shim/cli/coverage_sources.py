"""The public functions of an installed FlashInfer, from its source files alone.

Public is what FlashInfer's authors mark so: decorated with ``flashinfer_api`` (or a relative of
it), or exported by the package or by one of its public submodules.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .coverage_text import Text

#: Nothing in them is imported: ``data`` holds the sources of kernels, some of them in Python.
_NO_MODULES = frozenset({"data", "__pycache__"})
#: Only files that hold this are looked into for decorated functions. There are thousands.
_MARK = b"@flashinfer_"


@dataclass(frozen=True, order=True)
class Definition:
    """Where something public is defined.

    Attributes:
        module: dotted name, ``flashinfer`` or below it.
        name: in that module; a method's is ``Class.method``.
        is_class: it is a class, not a function.
    """

    module: str
    name: str
    is_class: bool = False


@dataclass(frozen=True)
class Inventory:
    """All that is public in one FlashInfer.

    Attributes:
        exported: by definition, the dotted names under which it is exported; none for what is
            decorated and nothing more.
        decorated: those that carry a mark of FlashInfer's authors.
        unreadable: files of the package that could not be read.
    """

    exported: Mapping[Definition, tuple[str, ...]]
    decorated: frozenset[Definition]
    unreadable: tuple[str, ...]


def take_inventory(package: Path) -> Inventory:
    """Read the FlashInfer in directory ``package``.

    Raises:
        OSError: the package's own ``__init__.py`` cannot be read.
    """
    tree = _Tree(package)
    exported: dict[Definition, set[str]] = {found: set() for found in tree.decorated()}
    marked = frozenset(exported)
    decorated = {found.name: found for found in exported}
    for module in tree.public():
        for name in tree.exports(module):
            # What no statement binds is made by __getattr__ when it is asked for.
            found = tree.find(module, name) or decorated.get(name)
            if found is not None:
                exported.setdefault(found, set()).add(f"{module}.{name}")
    return Inventory(
        {definition: tuple(sorted(exported[definition])) for definition in sorted(exported)},
        marked,
        tuple(sorted(tree.unreadable)),
    )


class _Tree:
    """The modules of one FlashInfer; looked into when needed."""

    def __init__(self, package: Path) -> None:
        self._root = package.name
        self.unreadable: list[str] = []
        self._paths: dict[str, str] = {}
        self._marked: dict[str, bytes] = {}
        self._texts: dict[str, Text | None] = {}
        (package / "__init__.py").read_bytes()  # for the error, without it there is no package
        self._read_folder(str(package), package.name)

    def _read_folder(self, folder: str, module: str) -> None:
        try:
            entries = list(os.scandir(folder))
        except OSError:
            self.unreadable.append(folder)
            return
        for entry in entries:
            stem, dot, suffix = entry.name.partition(".")
            if suffix == "py":
                self._read_file(module if stem == "__init__" else f"{module}.{stem}", entry.path)
            elif not dot and stem not in _NO_MODULES and entry.is_dir():
                self._read_folder(entry.path, f"{module}.{stem}")

    def _read_file(self, module: str, path: str) -> None:
        try:
            with open(path, "rb", buffering=0) as stream:
                data = stream.read()
        except OSError:
            self.unreadable.append(path)
            return
        self._paths[module] = path
        if _MARK in data:
            self._marked[module] = data

    def _text(self, module: str) -> Text | None:
        if module not in self._texts:
            data = self._marked.get(module)
            if data is None and module in self._paths:
                data = Path(self._paths[module]).read_bytes()
            self._texts[module] = None if data is None else Text(data.decode(errors="replace"))
        return self._texts[module]

    def decorated(self) -> Iterator[Definition]:
        """The decorated functions and methods that have no underscore in front."""
        for module in self._marked:
            text = self._text(module)
            for name in text.decorated() if text else ():
                if not any(part.startswith("_") for part in name.split(".")):
                    yield Definition(module, name)

    def public(self) -> Iterator[str]:
        """The package and its submodules, as far as they have no underscore in front."""
        for module in self._paths:
            head, _, name = module.rpartition(".")
            if module == self._root or (head == self._root and not name.startswith("_")):
                yield module

    def exports(self, module: str) -> set[str]:
        """What ``module`` exports: its ``__all__``, or what a package without one gathers."""
        text = self._text(module)
        if text is None:
            return set()
        names = text.listed()
        if not names and self._is_package(module):
            names = text.gathered()
            for source in text.starred:
                starred = self._text(self._absolute(module, source))
                if starred is not None:
                    names |= starred.listed() or starred.gathered()
        return {name for name in names if not name.startswith("_")}

    def find(self, module: str, name: str, trail: tuple[str, ...] = ()) -> Definition | None:
        """The function or class that ``name`` is in ``module``; None for all else."""
        text = self._text(module)
        here = f"{module}.{name}"
        if text is None or here in trail:
            return None
        trail = (*trail, here)
        if name in text.defined:
            return Definition(module, name, text.defined[name])
        origin = text.origin(name)
        if origin is not None:
            return self.find(self._absolute(module, origin[0]), origin[1], trail)
        for source in text.starred:
            found = self.find(self._absolute(module, source), name, trail)
            if found is not None:
                return found
        if name in text.conditional:
            return Definition(module, name, text.conditional[name])
        return None

    def _absolute(self, module: str, source: str) -> str:
        """The module that ``module`` calls ``source`` (``..core``) in an import."""
        if not source:
            return module
        name = source.lstrip(".")
        level = len(source) - len(name)
        if not level:
            return name
        parents = module.split(".")
        kept = parents[: len(parents) - level + self._is_package(module)]
        return ".".join([*kept, *([name] if name else [])])

    def _is_package(self, module: str) -> bool:
        return os.path.basename(self._paths.get(module, "")) == "__init__.py"
