"""``check``: the text that a person reads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from check_command import path_with_this_python
from children import environment
from conftest import RunChild

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
    tables, _, prose = child.stdout.partition("cuda_version, fp4_quantize:")
    assert max(map(len, tables.splitlines())) <= columns, child
    letters = re.sub(r"\s", "", tables)
    for expected in ("willapply", "0.5.0to0.7.4", "2.", "loadedinchildren", "yes"):
        assert expected in letters, child
    assert prose.endswith("\ncuda_version, fp4_quantize will be applied.\n"), child


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
