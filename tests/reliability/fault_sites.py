"""Where our code calls outside of itself, found in its syntax; each place can be made to fail.

Our modules are compiled from their own source, in which each call, each value of a module that is
not ours and each import goes by way of :class:`Sites`. That one passes everything on, notes what
comes by, or has one place fail. No place is named by hand, so a new one is there by itself.
"""

from __future__ import annotations

import ast
import builtins
import functools
import os
import types
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

#: What a place may raise.
ERRORS: dict[str, Callable[[], BaseException]] = {
    "OSError": lambda: OSError(5, "injected"),
    "ValueError": lambda: ValueError("injected"),
    "TypeError": lambda: TypeError("injected"),
    "RuntimeError": lambda: RuntimeError("injected"),
    "ImportError": lambda: ImportError("injected"),
    "KeyError": lambda: KeyError("injected"),
    "AttributeError": lambda: AttributeError("injected"),
    "MemoryError": MemoryError,
    "RecursionError": lambda: RecursionError("injected"),
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "injected"),
    "SystemExit": lambda: SystemExit("injected"),
    "KeyboardInterrupt": KeyboardInterrupt,
}
#: What any call may raise, one of str.strip included.
ANYWHERE = ("MemoryError", "RecursionError", "KeyboardInterrupt")
#: What a place may answer instead.
VALUES: dict[str, Callable[[], object]] = {
    "None": lambda: None,
    "an object": object,
    "a string": lambda: "injected \udc80",
    "a number": lambda: -1,
}


@dataclass(frozen=True)
class Site:
    """A place in our code.

    Its kind is ``call``, ``effect`` (a call whose result nobody takes), ``decorator``, ``value``
    (of a module), or ``import``.
    """

    file: str
    line: int
    column: int
    kind: str
    text: str


@dataclass(frozen=True)
class Fault:
    """What happens at a place, instead of what it asks for.

    Attributes:
        site: the number of the place.
        what: a key of :data:`ERRORS` or :data:`VALUES`.
        turn: which time of those that the place is come to, from 1; 0 for each.
    """

    site: int
    what: str
    turn: int = 1


class Sites:
    """The places of the modules that were compiled by it, each with a number.

    Args:
        root: what lies below it is ours.
        files: ours that are compiled so: all below ``root / "shim"``, and these.
    """

    def __init__(self, root: Path, *files: str) -> None:
        self._root = root
        self._prefix = str(root / "shim") + "/"
        self._files = {str(root / file) for file in files}
        self.sites: list[Site] = []
        #: By place, how often it was come to, and whether what was called is not ours.
        self.seen: dict[int, tuple[int, str]] = {}
        self.noting = False
        self.fault: Fault | None = None
        self.fired = False
        self._turns = 0

    def install(self) -> None:
        """From now on modules of ours are compiled so."""
        builtins.__fault_call__ = self._call  # type: ignore[attr-defined]
        builtins.__fault_value__ = self._value  # type: ignore[attr-defined]
        builtins.__fault_import__ = self._import  # type: ignore[attr-defined]
        usual = SourceFileLoader.get_code

        def get_code(loader: SourceFileLoader, name: str) -> types.CodeType | None:
            path = str(loader.path)
            if path.startswith(self._prefix) or path in self._files:
                return self.code(path)
            return usual(loader, name)

        SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]

    @functools.cache  # noqa: B019
    def code(self, path: str) -> types.CodeType:
        """The code of a file of ours."""
        tree = ast.parse(Path(path).read_bytes())
        changed = _Rewriting(self, str(Path(path).relative_to(self._root)), tree).visit(tree)
        code: types.CodeType = compile(ast.fix_missing_locations(changed), path, "exec")
        return code

    def number(self, site: Site) -> int:
        """Take a place in."""
        self.sites.append(site)
        return len(self.sites) - 1

    def _call(self, number: int, function: Any) -> Any:
        if self.noting:
            count, _ = self.seen.get(number, (0, ""))
            self.seen[number] = (count + 1, self._owner(function))
        if self.fault is not None and self.fault.site == number and self._due():
            what = self.fault.what

            def failing(*args: Any, **kwargs: Any) -> Any:
                return self._fail(what)

            return failing
        return function

    def _value(self, number: int, value: Any) -> Any:
        if self.noting:
            count, _ = self.seen.get(number, (0, ""))
            self.seen[number] = (count + 1, "outside")
        if self.fault is not None and self.fault.site == number and self._due():
            return self._fail(self.fault.what)
        return value

    def _import(self, number: int) -> None:
        self._value(number, None)

    def _due(self) -> bool:
        fault = self.fault
        self._turns += 1
        return fault is not None and fault.turn in (0, self._turns)

    def _fail(self, what: str) -> Any:
        self.fired = True
        if what in ERRORS:
            raise ERRORS[what]()
        return VALUES[what]()

    def _owner(self, function: Any) -> str:
        """Whose ``function`` is: ``ours``, ``python`` (str.strip, isinstance), or ``outside``."""
        home = getattr(function, "__self__", None)
        if isinstance(home, types.ModuleType | None):
            kind = getattr(function, "__objclass__", None)  # of object.__getattribute__
            homes = (getattr(each, "__module__", None) for each in (function, kind))
            module = next((home for home in homes if home), "")
        else:
            module = (home if isinstance(home, type) else type(home)).__module__
        if module.startswith(("shim", "_flashinfer_shim", "sitecustomize")):
            return "ours"
        if (module == "builtins" and function is not open) or function is os.path.join:
            return "python"
        return "outside"


class _Rewriting(ast.NodeTransformer):
    def __init__(self, sites: Sites, file: str, tree: ast.Module) -> None:
        self._sites = sites
        self._file = file
        self._modules = {
            (alias.asname or alias.name).partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        }

        self._effects = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}

    def _number(self, node: ast.expr | ast.stmt, kind: str) -> ast.Constant:
        text = ast.unparse(node)
        site = Site(self._file, node.lineno, node.col_offset, kind, text.partition("\n")[0])
        return ast.Constant(self._sites.number(site))

    def _by(
        self,
        how: str,
        node: ast.expr | ast.stmt,
        value: Callable[[], ast.expr] | None = None,
        kind: str = "",
    ) -> ast.Call:
        number = self._number(node, kind or how)  # before the text is another one
        values = [value()] if value else []
        made = ast.Call(ast.Name(f"__fault_{how}__", ast.Load()), [number, *values], [])
        return ast.copy_location(made, node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        # Of the function's own path only what is called within it: one place for one call.
        kind = "effect" if node in self._effects else ""
        by = self._by("call", node, lambda: self._path(node.func), kind)
        node.args = [self.visit(argument) for argument in node.args]
        node.keywords = [self.visit(keyword) for keyword in node.keywords]
        node.func = by
        return node

    def _path(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Attribute):
            node.value = self._path(node.value)
            return node
        visited: ast.expr = self.visit(node)
        return visited

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in self._modules:
            return self._by("value", node, lambda: node) if isinstance(node.ctx, ast.Load) else node
        return self.generic_visit(node)

    def _decorated(self, node: Any) -> Any:
        node.decorator_list = [
            self._by("call", decorator, functools.partial(self._path, decorator), "decorator")
            for decorator in node.decorator_list
        ]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._decorated(node)
        node.args.defaults = [self.visit(default) for default in node.args.defaults]
        node.args.kw_defaults = [d and self.visit(d) for d in node.args.kw_defaults]
        node.body = self._statements(node.body)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._decorated(node)
        node.bases = [self._path(base) for base in node.bases]
        node.body = self._statements(node.body)
        return node

    def _statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in body:
            visited = self.visit(statement)
            made += visited if isinstance(visited, list) else [visited]
        return made

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = node.value and self.visit(node.value)
        return node

    def visit_Import(self, node: ast.Import) -> Any:
        return [ast.copy_location(ast.Expr(self._by("import", node)), node), node]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        return node if node.module == "__future__" else self.visit_Import(node)  # type: ignore[arg-type]
