"""Writes shim/patches/rows.json: for each declared op, the runs of releases that agree on it.

And ``files.json`` beside it, with the files that hold the functions of all patches.

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
from shim.patches import PATCHES, Patch
from shim.patches.files import FILES
from shim.patches.op_contracts import ROWS, fixed
from shim.patches.ops import FAMILIES, OPS
from shim.patches.releases import FILE, RELEASES
from shim.upstream import Sources

#: By op.
Rows = dict[str, list[Row]]
#: By module, the runs of releases in which its file stays as it is: first, last, digest.
Files = dict[str, list[list[str]]]

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
        extend_files(files, rows, release, sources)
        print(release, file=sys.stderr)
    absent = ", ".join(name for name, runs in rows.items() if not runs)
    if absent:
        raise SystemExit(f"no release has {absent}")
    _write({ROWS: dict(_told(rows)), FILES: dict(sorted(files.items())), FILE: known})


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


def extend_files(files: Files, rows: Rows, release: str, sources: Sources) -> None:
    """Add the files of ``release`` that hold a function of a patch."""
    modules = {runs[-1].module for runs in rows.values() if runs and runs[-1].until == release}
    for patch in BY_HAND:
        modules.add((patch.contract.row_for(Version(release)) or patch.contract.rows[-1]).module)
    for module in modules:
        runs, digest = files.setdefault(module, []), sources.digest(module)
        if runs and runs[-1][2] == digest:
            runs[-1][1] = release
        else:
            runs.append([release, release, digest])


def _written() -> tuple[Rows, Files]:
    """What the files say now."""
    told = json.loads(ROWS.read_text(encoding="utf-8"))
    rows = {name: [Row(*run) for run in each["rows"]] for name, each in told.items()}
    return rows, json.loads(FILES.read_text(encoding="utf-8"))


def _told(rows: Rows) -> Iterator[tuple[str, Mapping[str, object]]]:
    """In the order of the declarations."""
    for family, members in FAMILIES.items():
        for op in members:
            # The last field, traits, is for rows that are written by hand.
            runs = [run[:-1] for run in rows[op.name]]
            yield op.name, {"family": family, "function": op.path, "rows": runs}


def _write(contents: Mapping[Path, object]) -> None:
    """All of the files, or none where one cannot be written."""
    for path, value in contents.items():
        path.with_suffix(".new").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    for path in contents:
        path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    main(sys.argv[1:])
