"""``check``: the text that a person reads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from check_command import fine_on, path_with_this_python
from children import environment
from conftest import CopyRelease, RunChild

from shim.patches import FAMILIES, RELEASES

WITHOUT_RICH = """
import sys
sys.modules["rich"] = None  # as if it were not installed
from shim.cli import main
sys.exit(main(["check"]))
"""
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9]m")


def on_a_terminal(scratch: Path, **env: str) -> str:
    """What ``check`` writes when its stdout is a terminal."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "shim", "check"],
        env=environment(scratch, release="0.6.3", env={"TERM": "xterm", **env}),
        cwd=scratch,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
    )
    os.close(theirs)
    said = b""
    try:
        while chunk := os.read(ours, 65536):
            said += chunk
    except OSError:
        pass  # the way in which Linux says that the other side is closed
    assert process.wait() == 0
    os.close(ours)
    return said.decode()


def test_colours_go_to_a_terminal_only(run_child: RunChild, tmp_path: Path) -> None:
    pytest.importorskip("rich")
    assert COLOUR.search(on_a_terminal(tmp_path))
    assert not COLOUR.search(on_a_terminal(tmp_path, NO_COLOR="1"))
    piped = run_child(None, args=["-m", "shim", "check"], release="0.6.3")
    assert "\x1b" not in piped.stdout


@pytest.mark.parametrize("columns", [70, 100, 160])
@pytest.mark.parametrize("rich", [True, False])
def test_tables_keep_to_the_width_and_lose_nothing(
    rich: bool, columns: int, run_child: RunChild
) -> None:
    env = {"COLUMNS": str(columns), "PATH": path_with_this_python()}
    args = ["-m", "shim", "check"] if rich else []
    child = run_child(None if rich else WITHOUT_RICH, args=args, release="0.7.4", env=env)
    assert child.returncode == 0, child
    environment, patches, prose = child.stdout.split("\n\n", 2)
    assert max(map(len, [*environment.splitlines(), *patches.splitlines()])) <= columns, child
    letters = re.sub(r"\s", "", environment)
    known = f"{RELEASES[0]}to{RELEASES[-1]}"
    for expected in ("FlashInfer0.7.4", known, "2.", "loadedinchildren", "yes"):
        assert expected in letters, child
    letters = re.sub(r"\s", "", patches)
    # Words that are too long for a narrow column are folded, among those of other columns.
    whole = FAMILIES if columns > 70 else ("toolchain", "norm", "gemm", "page")
    for expected in ("willapply", "cuda_version", "quantization.fp4_quantization", *whole):
        assert expected in letters, child
    assert max(map(len, prose.splitlines())) <= columns, child
    said = [" ".join(paragraph.split()) for paragraph in prose.split("\n\n")]
    assert "release 0.7.4 is in the table and its code is the released code. " in said[0], child
    assert said[-1].partition(";")[0].rstrip(".").endswith(" will be applied"), child


def text_of_check(run_child: RunChild, release: str | Path, **env: str) -> tuple[list[str], str]:
    """The rows of the table of patches and what stands below, word by word."""
    env = {"COLUMNS": "80", "PATH": path_with_this_python(), **env}
    child = run_child(WITHOUT_RICH, release=release, env=env)
    _, patches, prose = child.stdout.split("\n\n", 2)
    return [" ".join(line.split()) for line in patches.splitlines()[2:]], " ".join(prose.split())


def test_patches_of_a_family_that_fare_alike_are_one_row(run_child: RunChild) -> None:
    here = {name for name, verdict in fine_on("0.5.0").items() if verdict == "pending"}
    rows, prose = text_of_check(run_child, "0.5.0")
    for family, names in FAMILIES.items():
        there = len(here.intersection(names))
        starts = [row for row in rows if row.startswith(f"{family} ")]
        if there == len(names) > 1:
            assert [row.split(" 0.5.0 ")[0] for row in starts] == [
                f"{family} {there} patches will apply"
            ]
        elif 1 < there < len(names) - 1:
            assert sorted(row.split(" 0.5.0 ")[0] for row in starts) == sorted(
                [
                    f"{family} {there} of {len(names)} will apply",
                    f"{family} {len(names) - there} of {len(names)} not needed",
                ]
            )
    # Each family is told by the table, and by nothing else.
    assert not any(f"{family} (" in prose for family in FAMILIES)
    # A screen, however many patches there are.
    assert len(rows) <= 4 * len(FAMILIES)
    assert prose.count("release 0.5.0 has no such function") == 1


def test_where_some_of_a_family_are_refused_or_left_out_the_row_names_them(
    run_child: RunChild, copy_release: CopyRelease
) -> None:
    def change_bodies(text: str) -> str:
        for name in ("gemma_rmsnorm", "layernorm"):
            head, define, rest = text.partition(f"\ndef {name}(")
            text = head + define + rest.replace("    return out", "    return (out)", 1)
        return text

    tree = copy_release("0.6.3", edit={"flashinfer/norm.py": change_bodies})
    rows, prose = text_of_check(run_child, tree, FLASHINFER_SHIM_PATCHES="-fused_add_rmsnorm,-page")
    starts = [row.split(" 0.6.3 ")[0] for row in rows]
    assert "norm gemma_rmsnorm, refused" in starts  # the names go on in the next line
    assert "layernorm" in rows
    assert "norm fused_add_rmsnorm disabled" in starts
    assert f"page {len(FAMILIES['page'])} patches disabled" in starts
    # Where one verdict has several reasons, each says whose it is.
    left_out = f"fused_add_rmsnorm, page ({len(FAMILIES['page'])}): left out by FLASHINFER_SHIM_PAT"
    assert left_out in prose
    assert "jit_load, jit_build: FLASHINFER_SHIM_JIT is off." in prose
    refused = "refused: its body is not the one that 0.6.3 released. Next: "
    assert refused in prose
    assert prose.endswith(" gemma_rmsnorm, layernorm would stand aside.")


def test_a_child_process_is_a_column_and_a_family_a_row(run_child: RunChild) -> None:
    env = {
        "COLUMNS": "80",
        "PATH": path_with_this_python(),
        "FLASHINFER_SHIM_PATCHES": "norm,-rmsnorm",
    }
    child = run_child(None, args=["-m", "shim", "check", "--deep"], release="0.6.3", env=env)
    assert child.returncode == 0, child
    words = [line.split() for line in child.stdout.splitlines()]
    assert ["loads", "us", "yes", "yes", "yes"] in words, child
    assert ["rope", "disabled", "disabled", "disabled"] in words, child
    (norm,) = [line for line in words if line[:1] == ["norm"] and "disabled," in line]
    assert norm.count("1") == 3, child


def test_a_word_too_long_for_its_column_is_folded_and_not_cut(run_child: RunChild) -> None:
    child = run_child(
        """
        import sys
        from shim.cli.table import print_table
        for rich in (True, False):
            if not rich:
                sys.modules["rich"] = sys.modules["rich.table"] = None
            print_table("Title", ["a", "b"], [["[bold]", "x" * 90], ["one\\ntwo", "y"]], width=40)
        """
    )
    assert child.returncode == 0, child
    assert child.stdout.count("x") == 180
    assert child.stdout.count("[bold]") == 2
    assert child.stdout.count("Title") == 2
    assert max(map(len, child.stdout.splitlines())) <= 40
