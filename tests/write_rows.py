"""Writes shim/patches/rows.json: for each declared op, the runs of releases that agree on it.

And ``files.json`` beside it, with the files that hold the functions of all patches.

    python tests/write_rows.py        # fetches every tested release

A row changes only where a release changes the function; a new release mostly moves ``until``.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import releases

sys.path.append(str(releases.ROOT))

from packaging.version import Version

from shim.contract import Contract, Row
from shim.opaque.declare import Op
from shim.patches import PATCHES, RELEASES
from shim.patches.files import FILES
from shim.patches.op_contracts import ROWS, contract
from shim.patches.ops import FAMILIES, OPS
from shim.upstream import FunctionFacts, Sources

#: Where functions of the same names live that are not the ones that users call.
_OTHERS = re.compile(r"flashinfer\.(triton|trace|testing|experimental)\b")
#: Where such functions stand behind the ones that users call, if there are such.
_BEHIND = re.compile(r".*(\.kernels|_backend)\b")
_DEFINITION = re.compile(r"^(?:def|class) (\w+)[(:]", re.MULTILINE)


def index(package: Path) -> Mapping[str, list[str]]:
    """By function or class, the modules that define it."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        module = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        module = module.removesuffix(".__init__")
        for name in dict.fromkeys(_DEFINITION.findall(path.read_text(errors="replace"))):
            found[name].append(module)
    return found


def exports(package: Path) -> set[tuple[str, str]]:
    """The functions that packages export under their own names, with their modules."""
    found = set()
    for path in (package / "__init__.py", *package.glob("*/__init__.py")):
        inside = ".".join(path.parent.relative_to(package.parent).parts)
        for node in ast.walk(ast.parse(path.read_text(errors="replace"))):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                names = (alias.name for alias in node.names if alias.asname in (None, alias.name))
                found |= {(f"{inside}.{node.module}", name) for name in names}
    return found


def find(
    sources: Sources,
    modules: Mapping[str, list[str]],
    exported: Collection[tuple[str, str]],
    op: Op,
) -> FunctionFacts | None:
    """The function as its defining module has it; None where the release has no such function."""
    name = op.path
    every = modules.get(name.partition(".")[0], [])
    if op.module:
        every = [module for module in every if fnmatchcase(module, op.module)]
    else:
        every = [module for module in every if not _OTHERS.match(module)]
    found = [module for module in every if not _BEHIND.match(module)] or every
    if len(found) > 1:
        found = [module for module in found if (module, name) in exported] or found
    if len(found) > 1:
        raise SystemExit(f"{name} is defined in {', '.join(found)}")
    return sources.facts(found[0], name) if found else None


def runs_of_files(releases_of: Mapping[str, Collection[str]]) -> dict[str, list[list[str]]]:
    """By module, the runs of releases in which its file stays as it is: first, last, digest.

    Args:
        releases_of: by module, the releases in which it holds a function of a patch.
    """
    found: dict[str, list[list[str]]] = {}
    for module, wanted in sorted(releases_of.items()):
        runs = found[module] = []
        for release in filter(wanted.__contains__, RELEASES):
            digest = Sources(releases.path(release) / "flashinfer").digest(module)
            if runs and runs[-1][2] == digest:
                runs[-1][1] = release
            else:
                runs.append([release, release, digest])
    return found


def homes(contracts: Iterable[Contract]) -> dict[str, set[str]]:
    """By module, the releases in which it holds a function of a contract."""
    found: dict[str, set[str]] = defaultdict(set)
    for each in contracts:
        for release in RELEASES:
            row = each.row_for(Version(release))
            if row is not None:
                found[row.module].add(release)
    return found


def write(path: Path, told: object) -> None:
    """Write all of a file, or nothing."""
    written = path.with_suffix(".new")
    written.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    written.replace(path)


def main() -> None:
    families = {op.name: family for family, members in FAMILIES.items() for op in members}
    rows: dict[str, list[Row]] = {name: [] for name in OPS}
    for release in RELEASES:
        package = releases.path(release) / "flashinfer"
        sources, modules, exported = Sources(package), index(package), exports(package)
        for name, runs in rows.items():
            facts = find(sources, modules, exported, OPS[name])
            if facts is None:
                continue
            row = Row(release, release, facts.module, facts.signature, facts.digest, facts.source)
            if runs and runs[-1]._replace(until=release) == row._replace(since=runs[-1].since):
                runs[-1] = runs[-1]._replace(until=release)
            else:
                runs.append(row)
        print(release, file=sys.stderr)
    absent = ", ".join(name for name, runs in rows.items() if not runs)
    if absent:
        raise SystemExit(f"no release has {absent}")
    told = {
        name: {
            "family": families[name],
            "function": OPS[name].path,
            # Without the traits, which none of them has.
            "rows": [row[:-1] for row in runs],
        }
        for name, runs in rows.items()
    }
    write(ROWS, told)
    by_hand = [patch.contract for patch in PATCHES if patch.name not in OPS]
    declared = [contract(OPS[name].path, row["rows"]) for name, row in told.items()]
    write(FILES, runs_of_files(homes([*by_hand, *declared])))


if __name__ == "__main__":
    main()
