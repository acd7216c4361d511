"""What FlashInfer's source files say of its functions, read without importing anything."""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import re
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .upstream import contents, module_file

_NOTHING_KNOWN: Mapping[str, tuple[str, str]] = {}


@dataclass(frozen=True)
class FunctionFacts:
    """What the source says of one module-level function, or of a method (``Class.method``).

    Attributes:
        module: dotted module name.
        name: the function's name.
        path: file that holds it.
        signature: parameters and defaults without annotations, as ``ast.unparse`` writes them.
        digest: 12 hex digits over the text of its body and of the contract's companions,
            docstrings and decorators left out.
        source: 12 hex digits over its whole text.
        decorators: dotted names of its decorators, outermost first.
        names: every identifier and attribute name that its body mentions.
        first_line, last_line: its lines, decorators included, counted from 1.
        rebound: the line below it that binds its name to something else, 0 if none does.
        released: its whole text, or its file, is known; ``decorators`` and ``names`` are not
            filled in then, and of a known file the lines are not either.
    """

    module: str
    name: str
    path: Path
    signature: str
    digest: str
    source: str
    decorators: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    first_line: int = 0
    last_line: int = 0
    rebound: int = 0
    released: bool = False

    def defines(self, name: str, line: int) -> bool:
        """Whether a function called ``name`` whose code begins on ``line`` of the file is this."""
        if self.last_line:
            return self.first_line <= line <= self.last_line
        return name == self.name.rpartition(".")[2]


class Sources:
    """The source files of one FlashInfer, each read once.

    Args:
        package: directory of the ``flashinfer`` package.
    """

    def __init__(self, package: Path) -> None:
        self._package = package
        self._files: dict[str, tuple[Path, bytes] | None] = {}
        self._texts: dict[str, _Text | None] = {}

    def _file(self, module: str) -> tuple[Path, bytes] | None:
        if module not in self._files:
            file = module_file(self._package, module)
            read = contents(file)
            self._files[module] = None if file is None or read is None else (Path(file), read)
        return self._files[module]

    def facts(
        self,
        module: str,
        name: str,
        companions: Sequence[str] = (),
        known: Mapping[str, tuple[str, str]] = _NOTHING_KNOWN,
    ) -> FunctionFacts | None:
        """Facts on ``module.name``, None where there is no such file or no such function in it.

        Args:
            module: dotted name, ``flashinfer`` or below it.
            name: of a function defined at the left margin of that module, or ``Class.method`` of a
                class that is.
            companions: other functions of that module whose bodies belong to the digest, since
                they decide what the function returns.
            known: signature and digest by ``source``. A known function is not parsed: there are
                many, and FlashInfer's import waits for us.
        """
        if module not in self._texts:
            file = self._file(module)
            self._texts[module] = None if file is None else _Text.decode(*file)
        text = self._texts[module]
        block = text.block(name) if text else None
        if text is None or block is None:
            return None
        first, source = block
        facts = FunctionFacts(
            module=module,
            name=name,
            path=text.path,
            signature="",
            digest="",
            source=_hash(source),
            first_line=first,
            last_line=first + source.count("\n"),
            rebound=text.rebound(name),
        )
        if facts.source in known:
            signature, digest = known[facts.source]
            return replace(facts, signature=signature, digest=digest, released=True)
        node = _parse(source)
        if node is None:
            return None
        bodies = [_body(source, node)]
        for companion in companions:
            other = text.block(companion)
            other_node = _parse(other[1]) if other else None
            bodies.append(_body(other[1], other_node) if other and other_node else "")
        try:
            return replace(
                facts,
                signature=_signature(node.args),
                decorators=tuple(_dotted(decorator) for decorator in node.decorator_list),
                names=frozenset(_names(node.body)),
                digest=_hash("\0".join(bodies)),
            )
        except RecursionError:  # an expression too deep to be written by anybody
            return None


def function_facts(
    package: Path, module: str, name: str, companions: Sequence[str] = ()
) -> FunctionFacts | None:
    """:meth:`Sources.facts` for one function alone."""
    return Sources(package).facts(module, name, companions)


class _Text:
    """One module's source."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self._text = text
        self._lines = text.split("\n")
        self._classes: dict[str, _Text] = {}
        # The last one of a name, since that is what the module's namespace ends up with.
        self._offsets = {match[1]: match.start() for match in _DEFINITION.finditer(text)}

    @classmethod
    def decode(cls, path: Path, contents: bytes) -> _Text | None:
        """The text of a file as the interpreter decodes it, None where it cannot."""
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(contents).readline)
            text = io.TextIOWrapper(io.BytesIO(contents), encoding).read()
        except (SyntaxError, UnicodeError, LookupError):  # rot13 is a codec, and not of text
            return None
        return cls(path, text)

    def block(self, name: str) -> tuple[int, str] | None:
        """First line number and text of ``def name`` at the left margin, decorators included.

        Of a method, as it would stand at the left margin. Only this block is parsed, if at all: a
        whole module is thousands of lines.
        """
        owner, _, method = name.rpartition(".")
        if owner:
            return self._method(owner, method)
        lines, start = self._lines, self._start(name)
        if start is None:
            return None
        end = self._end(start)
        while start > 0 and lines[start - 1] and lines[start - 1][0] in "@ \t)#":
            start -= 1
        while end > start and not lines[end - 1].strip():
            end -= 1
        return start + 1, "\n".join(lines[start:end])

    def rebound(self, name: str) -> int:
        """The line, from 1, that binds a name again after its last definition; 0: none does.

        ``name = decorator(name)`` is a decorator in other words. What stands in an ``if`` is not
        looked at: what it comes to is seen when the module has been executed.
        """
        owner, _, method = name.rpartition(".")
        if owner:
            line = self._classes[owner].rebound(method) if self.block(name) else 0
            return line and line + (self._start(owner) or 0) + 1
        offset = self._bindings.get(name, -1)
        if offset < self._offsets.get(name, 0):
            return 0
        return self._text.count("\n", 0, offset) + 1

    @functools.cached_property
    def _bindings(self) -> Mapping[str, int]:
        """By name, where the last statement at the left margin begins that binds it."""
        found: dict[str, int] = {}
        for match in _BINDING.finditer(self._text):
            target, decorated, imported = match.groups()
            if target is None:
                names = [alias or name for name, alias in _IMPORTED.findall(imported)]
                found.update(dict.fromkeys(names, match.start()))
            elif target != decorated:
                found[target] = match.start()
        return found

    def _start(self, name: str) -> int | None:
        """The line, from 0, on which the last definition of a name starts."""
        offset = self._offsets.get(name)
        return None if offset is None else self._text.count("\n", 0, offset)

    def _end(self, start: int) -> int:
        """Where the definition that starts at a line ends."""
        lines, end = self._lines, start + 1
        # A line at the left margin ends it, except the closing bracket of the signature.
        while end < len(lines) and (not lines[end] or lines[end][0] in " \t)]#"):
            end += 1
        return end

    def _method(self, owner: str, name: str) -> tuple[int, str] | None:
        start = self._start(owner)
        if start is None:
            return None
        if owner not in self._classes:
            lines = self._lines[start + 1 : self._end(start)]
            body = "\n".join(line.removeprefix("    ") for line in lines)
            self._classes[owner] = _Text(self.path, body)
        found = self._classes[owner].block(name)
        return found and (found[0] + start + 1, found[1])


_DEFINITION = re.compile(r"^(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)[ \t]*[(:]", re.MULTILINE)

_BINDING = re.compile(
    r"^(?:(\w+)[ \t]*(?::[^=\n]*)?=(?!=)[ \t]*(?:[\w.]+\(\s*(\w+)\s*[,)])?"
    r"|from[ \t]+[\w.]+[ \t]+import[ \t]*(\([^)]*|[^(\n]*))",
    re.MULTILINE,
)
_IMPORTED = re.compile(r"(\w+)(?:\s+as\s+(\w+))?")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _parse(source: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return functions[-1] if functions else None


def _body(source: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The lines of the body after its docstring: text, which no Python version writes otherwise."""
    statements = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if not statements:
        return ""
    last = statements[-1].end_lineno
    return "\n".join(source.splitlines()[statements[0].lineno - 1 : last])


def _signature(arguments: ast.arguments) -> str:
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        argument.annotation = None
    return ast.unparse(arguments)


def _dotted(node: ast.expr) -> str:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node)


def _names(body: Sequence[ast.stmt]) -> Iterable[str]:
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node, ast.Attribute):
                yield node.attr
