"""The use that this was made for: SGLang's piecewise CUDA graph runner, in small.

One compilation with fullgraph=True and a dynamic number of tokens; a backend of its own that splits
the graph at the attention ops; pieces captured from the largest size down to 1 and replayed. See
sglang_shape.py for the model, and test_framework_shapes.py for what becomes of it without us.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import RunChild

RELEASES = ("0.6.1", "0.6.7.post3", "0.6.9")
SCRIPT = Path(__file__).with_name("sglang_shape.py")
LAYERS = 2
SIZES = [512, 256, 64, 8, 1]


@pytest.mark.parametrize("release", RELEASES)
def test_pieces_are_captured_from_the_largest_size_down_to_one_and_replayed_from_one_compilation(
    release: str, run_child: RunChild
) -> None:
    env = {"FLASHINFER_SHIM_REFERENCE": "1"}
    ran = run_child(None, args=[SCRIPT], release=release, env=env).json
    assert (ran["graphs"], ran["compilations"]) == (1, 1)
    assert ran["equal"] == [True] * (2 * len(SIZES) + len(SIZES) - 1)
    calls = ["compiling", *SIZES, *SIZES, *["guarded"] * (len(SIZES) - 1)]
    assert ran["calls"] == [calls] * (LAYERS + 1)
    # Nobody keeps an output alive: its memory is the graph pool's, to be used again.
    assert ran["outputs"] >= len(calls) * (LAYERS + 1)
    assert ran["alive"] == 0
