"""``docs/adding-an-op.md`` shows what is there."""

from __future__ import annotations

import dataclasses
import re

import releases

from shim.opaque.declare import Op
from shim.patches import PATCHES
from shim.patches.ops import FAMILIES

DOCUMENT = (releases.ROOT / "docs/adding-an-op.md").read_text(encoding="utf-8")
SOURCE = (releases.ROOT / "shim/patches/ops/norm.py").read_text(encoding="utf-8")


def test_the_entry_that_is_shown_is_a_real_one_of_under_ten_lines() -> None:
    shown = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)[0]
    lines = [line for line in shown.splitlines() if line.strip()]
    assert len(lines) < 10
    present = SOURCE.splitlines()
    assert [line for line in lines if line not in present] == []


def test_every_field_of_a_declaration_is_explained_once() -> None:
    explained = re.findall(r"^\| `(\w+)` \|", DOCUMENT, re.MULTILINE)
    assert explained == [field.name for field in dataclasses.fields(Op)]


def test_every_declaration_has_its_row_of_releases() -> None:
    declared = [(op.name, family, op.path) for family, ops in FAMILIES.items() for op in ops]
    known = [
        (patch.name, patch.family, patch.contract.function)
        for patch in PATCHES
        if patch.builder == ".declared_op"
    ]
    assert known == declared, "run tests/write_rows.py"
