"""What is installed, read without importing it: FlashInfer's release and its functions' source.

One reader serves the command line (before any process starts) and the hook (while FlashInfer is
being imported), so that ``check`` and a running process cannot disagree about what they looked at.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from importlib_metadata import Distribution, DistributionFinder, MetadataPathFinder
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

#: Names under which FlashInfer was distributed.
DISTRIBUTIONS = ("flashinfer-python", "flashinfer")

#: Companions whose release has to agree with FlashInfer's.
COMPANIONS = ("flashinfer-cubin", "flashinfer-jit-cache")

_NOTHING_KNOWN: Mapping[str, tuple[str, str]] = {}

_BUILD_META = re.compile(r"^__version__\s*(?::\s*str\s*)?=\s*[\"']([^\"']+)[\"']", re.MULTILINE)


#: Blanks around the value are left to strip(), which takes a long line of them in one go.
_HEADER = re.compile(r"^(Name|Version)[ \t]*:(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Installed:
    """The FlashInfer that an import would give.

    Attributes:
        package: directory of the package.
        distribution: name of the distribution whose metadata describes it, if any.
        metadata_version: the version that metadata states, verbatim, if any.
        module_version: the version that the package's own ``_build_meta`` states, if any.
        version: the parsed version, None where ``problem`` says why it cannot be told.
        problem: one sentence, empty if there is none.
    """

    package: Path
    distribution: str | None
    metadata_version: str | None
    module_version: str | None
    version: Version | None
    problem: str

    @property
    def release(self) -> str | None:
        """The public version as the table writes it (``0.6.7.post3``): no local part."""
        return None if self.version is None else self.version.public


def installed(package: Path, search_path: Sequence[str]) -> Installed:
    """Describe the FlashInfer in directory ``package``.

    Metadata beside the package wins; only where there is none (an editable install, a source
    tree) does other metadata on ``search_path`` count. An empty ``dist-info`` counts as none.
    """
    found = _distributions([str(package.parent)]) or _distributions(search_path)
    module_version = _module_version(package)
    versions = dict(found)
    name, metadata_version = found[0] if found else (None, None)
    version, problem = _agree(package, versions, module_version)
    return Installed(package, name, metadata_version, module_version, version, problem)


def _distributions(search_path: Sequence[str]) -> list[tuple[str, str]]:
    """Names and versions of FlashInfer distributions on ``search_path``, in its order."""
    found: list[tuple[str, str]] = []
    for name in DISTRIBUTIONS:
        version = distribution_version(name, search_path)
        if version:
            found.append((name, version))
    return found


def distribution_version(name: str, search_path: Sequence[str]) -> str | None:
    """The version of the first distribution called ``name`` on ``search_path`` that states one."""
    context = DistributionFinder.Context(  # type: ignore[no-untyped-call]
        name=name, path=list(search_path)
    )
    distributions: Iterable[Distribution] = MetadataPathFinder().find_distributions(context)
    for distribution in distributions:
        # An interrupted upgrade leaves a dist-info without METADATA, or with half of one; it states
        # nothing then.
        stated = _headers(distribution)
        if canonicalize_name(stated.get("Name", "")) == canonicalize_name(name):
            version = stated.get("Version")
            if version:
                return version
    return None


def _headers(distribution: Distribution) -> Mapping[str, str]:
    """What the metadata of a distribution state of themselves, by name of the header.

    Not by ``Distribution.metadata``, which reads the description, too, a long text, and differs
    between its releases in what it raises.
    """
    try:
        text = _text(distribution, "METADATA") or _text(distribution, "PKG-INFO")
    except Exception:
        return {}
    headers, _, _ = text.replace("\r\n", "\n").partition("\n\n")
    return {name: value.strip() for name, value in _HEADER.findall(headers)}


def _text(distribution: Distribution, name: str) -> str:
    # To read what is no plain file may take for ever: a pipe that nobody writes into.
    folder = getattr(distribution, "_path", None)
    if isinstance(folder, Path) and not (folder / name).is_file():
        return ""
    return distribution.read_text(name) or ""


def _module_version(package: Path) -> str | None:
    contents = _contents(module_path(package, "flashinfer._build_meta"))
    if contents is None:
        return None
    text = contents[1].decode("utf-8", "replace")
    match = _BUILD_META.search(text)
    return match.group(1) if match else None


def _agree(
    package: Path, versions: dict[str, str], module_version: str | None
) -> tuple[Version | None, str]:
    stated = dict(versions)
    if module_version is not None:
        stated["flashinfer/_build_meta.py"] = module_version
    if not stated:
        return None, f"no metadata states the release of the FlashInfer in {package}"
    parsed: dict[str, Version] = {}
    for source, text in stated.items():
        try:
            parsed[source] = Version(text)
        except InvalidVersion:
            return None, f"{source} states the version {text!r}, which is not a version"
    if len({version.public for version in parsed.values()}) > 1:
        listed = ", ".join(f"{source} says {version}" for source, version in parsed.items())
        return None, f"the installed FlashInfer contradicts itself: {listed}"
    return next(iter(parsed.values())), ""


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
        self._digests: dict[str, str] = {}
        self._texts: dict[str, _Text | None] = {}

    def digest(self, module: str) -> str:
        """16 hex digits over the whole file of ``module``, empty where there is no such file."""
        if module not in self._digests:
            file = self._file(module)
            self._digests[module] = hashlib.sha256(file[1]).hexdigest()[:16] if file else ""
        return self._digests[module]

    def path(self, module: str) -> Path | None:
        """The file of ``module``, None where there is no such file or it cannot be read."""
        file = self._file(module)
        return None if file is None else file[0]

    def _file(self, module: str) -> tuple[Path, bytes] | None:
        if module not in self._files:
            self._files[module] = _contents(module_path(self._package, module))
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


def module_path(package: Path, module: str) -> Path | None:
    """The source file of ``module`` (``flashinfer.x.y``) below ``package``, None if none."""
    stem = package.joinpath(*module.split(".")[1:])
    for candidate in (stem.with_name(stem.name + ".py"), stem / "__init__.py"):
        if os.path.isfile(candidate):
            return candidate
    return None


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


def _contents(path: Path | None) -> tuple[Path, bytes] | None:
    try:
        return None if path is None else (path, path.read_bytes())
    except OSError:
        return None


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
