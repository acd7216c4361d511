"""All that ``check`` finds, as one value, and its two forms: text for people, JSON for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..ledger import Record, Verdict
from ..patches import FAMILIES, PATCHES, RELEASES
from ..records import counted, grouped, names
from ..upstream import Installed
from . import check_toolchain
from .check_doors import Door
from .check_loading import Loading
from .check_toolchain import Toolchain
from .check_warnings import Warn
from .environment import Environment
from .table import paragraph, print_table

if TYPE_CHECKING:  # it brings subprocess along, for --deep alone
    from .check_deep import ChildReport

_PATCHES = {patch.name: patch for patch in PATCHES}

#: Raised when a key of the JSON changes its meaning or goes away; new keys do not raise it.
SCHEMA = 1

#: A row names so many modules.
_MOST_MODULES = 3

FINE = (Verdict.PENDING, Verdict.NOT_NEEDED)


@dataclass(frozen=True)
class Report:
    """What ``check`` found.

    Attributes:
        environment: what is installed.
        flashinfer: what is known of FlashInfer, None if it is not installed.
        toolchain: what FlashInfer would compile with, for, and into.
        loading: whether children load us.
        activated_by: the door by which we came into this process, None if we did not.
        doors: the frameworks' plugins.
        records: one for each patch; ``pending`` means that nothing stands against it.
        warnings: what else a user should know.
        children: one for each child that ``--deep`` started, None without it.
    """

    environment: Environment
    flashinfer: Installed | None
    toolchain: Toolchain
    loading: Loading
    activated_by: str | None
    doors: tuple[Door, ...]
    records: tuple[Record, ...]
    warnings: tuple[Warn, ...]
    children: tuple[ChildReport, ...] | None

    @property
    def enabled(self) -> tuple[Record, ...]:
        """The patches that the user has not switched off."""
        return tuple(r for r in self.records if r.verdict is not Verdict.DISABLED)

    @property
    def refused(self) -> tuple[Record, ...]:
        """The enabled patches that FlashInfer, or its absence, stands against."""
        return tuple(r for r in self.enabled if r.verdict not in FINE)

    @property
    def missed(self) -> tuple[Record, ...]:
        """The patches that would be applied if only children loaded us."""
        pending = tuple(r for r in self.enabled if r.verdict is Verdict.PENDING)
        return () if self.loading.loads else pending

    @property
    def faulty_children(self) -> tuple[ChildReport, ...]:
        """The children of ``--deep`` that did not do what they should."""
        wanted = [r.patch for r in self.enabled if r.verdict is not Verdict.NOT_NEEDED]
        return tuple(child for child in self.children or () if not child.as_wanted(wanted))

    @property
    def exit_status(self) -> int:
        """0: all enabled patches come into force or are not needed. 1: some do not."""
        return 1 if self.refused or self.missed or self.faulty_children else 0


def as_json(report: Report) -> str:
    """The documented form for programs; docs/check.md holds the schema."""
    environment, here = report.environment, report.flashinfer
    toolkit = environment.toolkit
    return json.dumps(
        {
            "schema": SCHEMA,
            "exit_status": report.exit_status,
            "summary": summary(report),
            "python": asdict(environment.python),
            "torch": environment.torch and asdict(environment.torch),
            "flashinfer": here and _flashinfer(here),
            "companions": dict(environment.companions),
            "toolkit": toolkit
            and {**asdict(toolkit), "release": toolkit.release and str(toolkit.release)},
            **check_toolchain.as_json(report.toolchain),
            "wrapt": environment.wrapt,
            "shim": asdict(environment.shim),
            "loading": asdict(report.loading),
            "activated_by": report.activated_by,
            "plugins": [asdict(door) for door in report.doors],
            "patches": [_patch(record) for record in report.records],
            "warnings": [asdict(warn) for warn in report.warnings],
            "children": None
            if report.children is None
            else [child.as_json() for child in report.children],
        },
        indent=2,
    )


def _flashinfer(here: Installed) -> dict[str, Any]:
    return {
        "version": here.version and str(here.version),
        "distribution": here.distribution,
        "metadata_version": here.metadata_version,
        "module_version": here.module_version,
        "package": str(here.package),
        "problem": here.problem,
    }


def _patch(record: Record) -> dict[str, str]:
    patch = _PATCHES[record.patch]
    rows = patch.contract.rows
    return {
        "patch": record.patch,
        "family": patch.family,
        "target": record.target,
        "found": record.found,
        "expected": record.expected,
        "since": rows[0].since,
        "until": rows[-1].until,
        "verdict": str(record.verdict),
        "reason": record.reason,
        "action": record.action,
    }


def summary(report: Report) -> str:
    """The whole report in one sentence, or one for each thing that is wrong."""
    said = []
    if report.refused:
        said.append(f"{names(report.refused)} would stand aside.")
    if report.missed:
        said.append(f"{_counted(report.missed)} would not be applied: {report.loading.reason}.")
    if report.faulty_children:
        kinds = ", ".join(child.kind for child in report.faulty_children)
        said.append(f"Patches are not in force in child processes started by {kinds}.")
    return " ".join(said) or _success(report)


def _success(report: Report) -> str:
    said = [
        f"{_counted(chosen)} {words}"
        for verdict, words in (
            (Verdict.PENDING, "will be applied"),
            (Verdict.NOT_NEEDED, "not needed"),
            (Verdict.DISABLED, "switched off"),
        )
        if (chosen := [record for record in report.records if record.verdict is verdict])
    ]
    return f"{'; '.join(said)}."


def _counted(group: Sequence[Record]) -> str:
    return counted([record.patch for record in group])


def print_text(report: Report, *, patches: bool) -> None:
    """The form for people: tables, what they do not say, and the summary.

    Args:
        report: what was found.
        patches: with a table of them, which takes more than one screen.
    """
    print_table("", ("environment", "found", "where"), _environment_rows(report))
    if patches:
        _print_patches(report)
    if report.children is not None:
        _print_children(report.children)
    _print_differences(report.toolchain)
    for warn in report.warnings:
        print()
        _say(f"Warning: {warn.text}.", warn.action)
    print()
    print(paragraph(summary(report)))
    if report.missed:
        print(f"    Next: {report.loading.action}")


def _print_patches(report: Report) -> None:
    """What becomes of each family, and why."""
    print()
    print_table(
        "", ("family", "patches", "verdict", "found", "flashinfer module"), _patch_rows(report)
    )
    print()
    for reason, action in _reasons(report):
        _say(reason, action)


def _say(text: str, action: str) -> None:
    """A paragraph, and what to do about it: in one line, for it may hold a command to copy."""
    print(paragraph(text))
    if action:
        print(f"    Next: {action}.")


def _patch_rows(report: Report) -> list[tuple[str, ...]]:
    """One row for the patches of a family that share verdict and reason."""
    here = report.flashinfer
    found = _release(here) if here else "-"
    by_family = sorted(report.records, key=lambda record: _FAMILY_ORDER[_family(record)])
    groups = grouped(
        by_family, lambda record: (_family(record), _word(record, report), record.reason)
    )
    return [
        (family, _members(family, group), word, found, _modules(group))
        for (family, word, _), group in groups
    ]


_FAMILY_ORDER = {family: place for place, family in enumerate(FAMILIES)}


def _family(record: Record) -> str:
    return _PATCHES[record.patch].family


def _members(family: str, group: Sequence[Record]) -> str:
    """How many they are; their names where they are not as they should be, unless all are so."""
    number, whole = len(group), len(FAMILIES[family])
    if number == 1 or (number < whole and group[0].verdict not in FINE):
        return ", ".join(record.patch for record in group)
    return f"{number} patches" if number == whole else f"{number} of {whole}"


def _modules(group: Sequence[Record]) -> str:
    """Where the functions are; a release that does not need the patches may lack the modules."""
    if group[0].verdict is Verdict.NOT_NEEDED:
        return "-"
    modules = [record.target.partition(":")[0].removeprefix("flashinfer.") for record in group]
    found = list(dict.fromkeys(modules))
    first, rest = found[:_MOST_MODULES], found[_MOST_MODULES:]
    return "\n".join([*first, f"and {len(rest)} more"] if rest else first)


def _word(record: Record, report: Report) -> str:
    """``pending`` tells a person too little: it waits for an import that is yet to come."""
    if record.verdict is not Verdict.PENDING:
        return str(record.verdict)
    return "will apply" if report.loading.loads else "would apply"


def _reasons(report: Report) -> list[tuple[str, str]]:
    """Why verdicts are what they are, and what to do about it.

    Patches are named where others have the same verdict for another reason: else the table has
    them.
    """
    groups = grouped(report.records, lambda each: (_word(each, report), each.reason, each.action))
    reasons = Counter(word for (word, _, _), _ in groups)
    return [
        (f"{names(group) if reasons[word] > 1 else word}: {reason}.", action)
        for (word, reason, action), group in groups
    ]


def _print_differences(chain: Toolchain) -> None:
    """What FlashInfer chooses without us and with us, where that is not the same."""
    if not chain.differences:
        return
    columns = (
        "FlashInfer chooses",
        f"without us: nvcc's {chain.without_us.version}",
        f"with us: torch's {chain.with_us.version}",
        "nvcc",
    )
    print()
    print_table("", columns, check_toolchain.difference_rows(chain))


def _print_children(children: Sequence[ChildReport]) -> None:
    """What became of each family in each child, and what the children say beside that."""
    kinds = [child.kind for child in children]
    rows = [
        ("loads us", *(child.loads_us for child in children)),
        ("activated by", *(child.activated_by or "-" for child in children)),
    ]
    rows += [
        (family, *(child.verdicts(patches) for child in children))
        for family, patches in FAMILIES.items()
    ]
    print()
    print_table("", ("child process", *kinds), rows)
    for note, group in _notes(children).items():
        print(paragraph(f"{', '.join(group)}: {note}."))


def _notes(children: Sequence[ChildReport]) -> dict[str, list[str]]:
    """What there is to say, each with the kinds of children that it is said of."""
    notes: dict[str, list[str]] = {}
    for child in children:
        for note in child.notes():
            notes.setdefault(note, []).append(child.kind)
    return notes


def _environment_rows(report: Report) -> list[tuple[str, str, str]]:
    environment, here = report.environment, report.flashinfer
    torch, ours = environment.torch, environment.shim
    rows = [("Python", environment.python.version, environment.python.executable)]
    if torch is None:
        rows.append(("torch", "-", "not installed"))
    else:
        built = f"built with CUDA {torch.cuda}" if torch.cuda else "built without CUDA"
        rows.append(("torch", torch.version or "unknown", f"{torch.package}, {built}"))
    if here is None:
        rows.append(("FlashInfer", "-", "not installed"))
    else:
        rows.append(("FlashInfer", _release(here), f"{here.package}, {_origin(here)}"))
    rows += [(name, version, "") for name, version in environment.companions.items()]
    rows += check_toolchain.rows(report.toolchain)
    rows.append(("wrapt", environment.wrapt or "-", "" if environment.wrapt else "not installed"))
    knows = f"knows FlashInfer {RELEASES[0]} to {RELEASES[-1]}"
    rows.append(("flashinfer-shim", ours.version, f"{ours.package} ({ours.kind}), {knows}"))
    rows.append(
        ("loaded in children", "yes" if report.loading.loads else "no", report.loading.reason)
    )
    rows.append(("activated by", report.activated_by or "-", _plugins(report.doors)))
    return rows


def _plugins(doors: Sequence[Door]) -> str:
    """What the frameworks' plugins would do, those of one mind together."""
    said: dict[str, list[str]] = {}
    for door in doors:
        words = "would activate us" if door.acts else "would do nothing"
        said.setdefault(f"{words}, {door.reason}", []).append(door.framework)
    return "; ".join(f"plugin for {' and '.join(names)}: {what}" for what, names in said.items())


def _release(here: Installed) -> str:
    return str(here.version or here.metadata_version or here.module_version or "unknown")


def _origin(here: Installed) -> str:
    if here.distribution is None:
        return "no metadata"
    return f"of {here.distribution} {here.metadata_version}"
