"""Writes shim/patches/rows.json: for each declared op, the runs of releases that agree on it.

And ``functions.json`` and ``files.json`` beside it: the functions, and the files that hold them.

    python tests/write_rows.py          # after a change of declarations: reads every tested release
    python tests/write_rows.py 0.7.5    # makes 0.7.5 a tested release

A row changes only where a release changes the function; a new release mostly moves ``until``. The
rows end where upstream makes it an op itself. Releases are fetched on first use.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import releases
from packaging.version import InvalidVersion, Version

sys.path.append(str(releases.ROOT))

from shim.contract import Row
from shim.definitions import Ambiguous, Definitions
from shim.patches import FUNCTIONS, PATCHES, Patch
from shim.patches.files import FILES, digest
from shim.patches.op_contracts import ROWS, fixed
from shim.patches.ops import FAMILIES, OPS
from shim.patches.releases import FILE, RELEASES
from shim.sources import Sources
from shim.upstream import module_file

#: By op.
Rows = dict[str, list[Row]]
#: By module, the runs of releases in which its file stays as it is: first, last, digest, patches.
Files = dict[str, list[tuple[str, str, str, list[str]]]]

BY_HAND = tuple(patch for patch in PATCHES if patch.rows)


def main(added: Sequence[str]) -> None:
    """Read all releases, or only those that are added where they follow the others."""
    try:
        known = sorted({*RELEASES, *added}, key=Version)
    except InvalidVersion as error:
        raise SystemExit(f"expected the number of a release, such as 0.7.5: {error}") from None
    rows, files = _written()
    follow = added and known[: len(RELEASES)] == list(RELEASES) and rows.keys() == OPS.keys()
    if not follow:
        rows, files = {name: [] for name in OPS}, {}
    for release in known[len(RELEASES) :] if follow else known:
        sources = Sources(releases.path(release) / "flashinfer")
        for patch in BY_HAND:
            check_row(patch, release, sources)
        extend_rows(rows, release, sources)
        extend_files(files, rows, release)
        print(release, file=sys.stderr)
    absent = ", ".join(name for name, runs in rows.items() if not runs)
    if absent:
        raise SystemExit(f"no release has {absent}")
    functions = {
        family: {op.name: op.path for op in members} for family, members in FAMILIES.items()
    }
    _write(
        {
            ROWS: dict(_told(rows)),
            FUNCTIONS: functions,
            FILES: dict(sorted(files.items())),
            FILE: known,
        }
    )


def check_row(patch: Patch, release: str, sources: Sources) -> None:
    """Stop where a function is not as its row, which is written by hand, says."""
    contract = patch.contract
    row = contract.row_for(Version(release)) or contract.rows[-1]
    facts = sources.facts(row.module, contract.function, contract.companions)
    if facts is None or (facts.signature, facts.digest) != (row.signature, row.digest):
        found = facts and f"({facts.signature}) body {facts.digest}"
        raise SystemExit(
            f"{contract.function} of {release} is {found} in {row.module}, and the row of "
            f"{row.since} says ({row.signature}) body {row.digest}: end that row in "
            f"shim/patches/{patch.rows}.py and add one"
        )


def extend_rows(rows: Rows, release: str, sources: Sources) -> None:
    """Add what ``release`` has of each function behind the releases before it."""
    definitions = Definitions(releases.path(release) / "flashinfer")
    for name, runs in rows.items():
        try:
            module = definitions.module(OPS[name].path, OPS[name].module)
        except Ambiguous as error:
            raise SystemExit(f"{release}: {error}: give the op its `module`") from None
        facts = module and sources.facts(module, OPS[name].path)
        if not facts or fixed(facts):
            continue
        row = Row(release, release, facts.module, facts.signature, facts.digest, facts.source)
        if runs and runs[-1]._replace(until=release) == row._replace(since=runs[-1].since):
            runs[-1] = runs[-1]._replace(until=release)
        else:
            runs.append(row)


def extend_files(files: Files, rows: Rows, release: str) -> None:
    """Add the files of ``release`` that hold a function of a patch."""
    patches: dict[str, list[str]] = {}
    for patch in BY_HAND:
        module = (patch.contract.row_for(Version(release)) or patch.contract.rows[-1]).module
        patches.setdefault(module, []).append(patch.name)
    for name, runs in rows.items():
        if runs and runs[-1].until == release:
            patches.setdefault(runs[-1].module, []).append(name)
    for module, names in patches.items():
        file = module_file(releases.path(release) / "flashinfer", module)
        if file is None:
            raise SystemExit(f"{module} of {release} has no file")
        state = (digest(file), names)
        found = files.setdefault(module, [])
        since = found.pop()[0] if found and tuple(found[-1][2:]) == state else release
        found.append((since, release, *state))


def _written() -> tuple[Rows, Files]:
    """What the files say now."""
    rows = json.loads(ROWS.read_text(encoding="utf-8"))
    files = json.loads(FILES.read_text(encoding="utf-8"))
    return {name: [Row(*run) for run in runs] for name, runs in rows.items()}, files


def _told(rows: Rows) -> Iterator[tuple[str, object]]:
    """In the order of the declarations."""
    for members in FAMILIES.values():
        for op in members:
            # The last field, traits, is for rows that are written by hand.
            yield op.name, [run[:-1] for run in rows[op.name]]


def _write(contents: Mapping[Path, object]) -> None:
    """All of the files, or none where one cannot be written."""
    for path, value in contents.items():
        path.with_suffix(".new").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    for path in contents:
        path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    main(sys.argv[1:])
