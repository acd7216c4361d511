"""Forks while other threads are within blocks, switch, patch, compile or hold our locks."""

from __future__ import annotations

from pathlib import Path

from conftest import RunChild

CHILD = Path(__file__).with_name("forks_child.py")


def test_a_forked_child_has_nothing_of_what_other_threads_were_doing(run_child: RunChild) -> None:
    found = run_child(None, args=[CHILD], release="0.6.3").json
    number = found.pop("patched")
    assert number > 200
    whole, none = [[True, True], number, True], [[False, False], 0, False]
    assert found == {
        "a thread in a block": [whole, "compiled"],
        "the thread that forks in a block": [none, whole],
        "both": [none, whole],
        "a block of another thread, which is left": [whole, whole],
        "entering": whole,
        "leaving": whole,
        # What was begun is done, or not at all; a call does the rest.
        "deactivating": [none, whole],
        "activating": [none, whole],
        "compiling": [none, whole],
        "our locks held": [whole, "made"],
        # Nothing of it is to be seen here.
        "the parent": whole,
    }
