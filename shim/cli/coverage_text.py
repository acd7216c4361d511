"""What one source file defines, decorates, imports and exports, by searching its text.

Parsing would be exact, and too slow: some files have half a megabyte, and hundreds are looked
into. FlashInfer's are written by a formatter, so a few patterns read them right.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping

# A pattern begins with the line break in front of what it looks for: a literal that the search can
# skip to, which ``^`` is not.

#: A function or class at the left margin: its first line, and all lines that belong to it.
_BLOCK = re.compile(r"\n((?:async )?(?:def|class) [^\n]*)(?:\n(?:[ \t)\]}#][^\n]*)?)*(?=\n|$)")
_MARGIN = re.compile(r"\n([^\s#)\]}]\w*)")
_BRANCHES = frozenset({"if", "elif", "else", "try", "except", "finally", "with", "for", "while"})
_MARK = "@flashinfer_"
_DECORATOR = re.compile(r"([ \t]*)@flashinfer_(?:\w+_)?api\b")
_DEFINED = re.compile(r"\n(?:async )?(def|class) (\w+)")
_BRANCHED = re.compile(r"\n[ \t]+(?:async )?(def|class) (\w+)")
_PARTIAL = re.compile(r"\n(\w+) = (?:functools\.)?partial\(\s*(\w+)")
_FROM = re.compile(
    r"\n[ \t]*from ([\w.]+) import (\((?:[^()#]|#[^\n]*)*\)|[^\n\\]*(?:\\\n[^\n\\]*)*)"
)
_INNER = re.compile(r"\.(?!\.)")
_LAZY = re.compile(r"\n(_\w*LAZY\w*)\b")
_COMMENT = re.compile(r"#[^\n]*")
_IMPORTED = re.compile(r"([\w*]+)(?:\s+as\s+(\w+))?")
_NAME = re.compile(r"(?:([\w.]+)\.)?([^\W\d]\w*)(?=\s)")
_TOKEN = re.compile(r"#[^\n]*|(?P<quote>[\"'])(?P<text>\w+)(?P=quote)|[(){}\[\]]|\n|[^\W\d]\w*")


class Text:
    """The text of one module."""

    def __init__(self, text: str) -> None:
        self._text = f"\n{text}\n"

    @functools.cached_property
    def _outside(self) -> str:
        """The module-level code: what is left without the bodies of functions and classes."""
        return _BLOCK.sub(r"\n\1", self._text)

    def decorated(self) -> Iterator[str]:
        """Functions, and methods as ``Class.method``, that are decorated as public."""
        at = self._text.find(_MARK)
        while at >= 0:
            start = self._text.rfind("\n", 0, at) + 1
            decorator = _DECORATOR.match(self._text, start)
            if decorator:
                define = re.compile(rf"\n{decorator[1]}(?:async )?def (\w+)")
                function = define.search(self._text, at)
                owner = self._owner(start - 1) if decorator[1] else ""
                if function and owner is not None:
                    yield f"{owner}{function[1]}"
            at = self._text.find(_MARK, at + 1)

    def _owner(self, end: int) -> str | None:
        """Where an indented line stands: ``Class.``, empty at module level, None elsewhere."""
        start = self._text.rfind("\nclass ", 0, end) + 1
        if start and not _MARGIN.search(self._text, start, end):
            return re.split(r"\W", self._text[start + 6 : end], maxsplit=1)[0] + "."
        words = [line[1] for line in _MARGIN.finditer(self._text, 0, end)]
        return "" if words and words[-1] in _BRANCHES else None

    @functools.cached_property
    def defined(self) -> Mapping[str, bool]:
        """Functions and classes at the left margin; whether each is a class."""
        return {name: word == "class" for word, name in _DEFINED.findall(self._text)}

    @functools.cached_property
    def conditional(self) -> Mapping[str, bool]:
        """The same for those in an ``if``, ``try`` or ``with`` at module level."""
        return {name: word == "class" for word, name in _BRANCHED.findall(self._outside)}

    @functools.cached_property
    def _partials(self) -> Mapping[str, str]:
        return dict(_PARTIAL.findall(self._outside))

    def origin(self, name: str) -> tuple[str, str] | None:
        """What ``name`` is another name for: a module as written, empty for this one, and a name.

        A ``functools.partial`` is one for the function in it. None where it is no other name.
        """
        if name in self.imported:
            return self.imported[name]
        if name in self._partials:
            return "", self._partials[name]
        beginning = f"\n{name} = "
        at = self._outside.find(beginning)
        value = _NAME.match(self._outside, at + len(beginning)) if at >= 0 else None
        if value is None:
            return None
        if value[1] is None:
            return "", value[2]
        if value[1] not in self.imported:
            return None
        source, module = self.imported[value[1]]
        return f"{source}{'' if source.endswith('.') else '.'}{module}", value[2]

    @functools.cached_property
    def imported(self) -> Mapping[str, tuple[str, str]]:
        """By name, the module as written (``.core``) and the name there."""
        return {
            alias or name: (source, name) for source, name, alias in self._imports if name != "*"
        }

    @functools.cached_property
    def starred(self) -> tuple[str, ...]:
        """The modules, as written, of which everything is imported."""
        return tuple(source for source, name, _ in self._imports if name == "*")

    @functools.cached_property
    def _imports(self) -> list[tuple[str, str, str]]:
        return [
            (source, name, alias)
            for source, names in _FROM.findall(self._outside)
            for name, alias in _IMPORTED.findall(_COMMENT.sub("", names))
        ]

    def gathered(self) -> set[str]:
        """What a package without ``__all__`` offers: its own, and what it takes from its modules.

        What it makes on demand is named in variables that say ``LAZY``.
        """
        names = {name for name, (source, _) in self.imported.items() if _INNER.match(source)}
        names |= set(self.defined)
        for variable in _LAZY.findall(self._outside):
            names |= self.listed(variable)
        return names

    def listed(self, variable: str = "__all__") -> set[str]:
        """The strings in ``variable``, and in the variables that it is made of."""
        if variable not in self._text:
            return set()
        found: set[str] = set()
        statement = re.compile(
            rf"\n[ \t]*{variable}(?:: [^=\n]+)?(?: \+?= |\.(?:append|extend)(?=\())"
        )
        for match in statement.finditer(self._outside):
            depth = 0
            for token in _TOKEN.finditer(self._outside, match.end()):
                word = token[0]
                if token["text"]:
                    found.add(token["text"])
                elif word in "([{":
                    depth += 1
                elif word in ")]}":
                    depth -= 1
                elif word == "\n" and not depth:
                    break
                elif word.startswith("_"):
                    found |= self.listed(word)
        return found
