"""What children of the tests share: a pretended device, a counting backend, descriptions."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

# At the end, so that a child without the shim finds the stand-ins and still starts no gate.
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

import torch  # noqa: E402

from shim.pretend import pretend  # noqa: E402

__all__ = ["Counting", "describe", "error_of", "fake_cuda", "pretend", "records"]


@contextlib.contextmanager
def fake_cuda() -> Iterator[None]:
    """Within it ``torch.empty(..., device="cuda")`` works without a GPU, sizes may be symbolic."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True):
        yield


class Counting:
    """A torch.compile backend that runs the graph as it is and keeps the graphs it was given."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(
        self, graph: torch.fx.GraphModule, example_inputs: Sequence[torch.Tensor]
    ) -> Callable[..., Any]:
        self.graphs.append(graph)
        return graph.forward

    def ops(self) -> list[list[str]]:
        """The names of the functions that each graph calls, torch ops by their qualified name."""
        return [
            [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
            for graph in self.graphs
        ]


def describe(outputs: Sequence[torch.Tensor]) -> list[list[Any]]:
    """Shape, strides, dtype and device type of each tensor, as JSON can hold them."""
    return [
        [list(map(int, t.shape)), list(map(int, t.stride())), str(t.dtype), t.device.type]
        for t in outputs
    ]


def error_of(call: Callable[[], object]) -> list[str] | None:
    """Type name and text of what ``call`` raises, None if it returns."""
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None


def records() -> dict[str, dict[str, Any]]:
    """The ledger of this process by patch; ``imported``: whether its module was by now."""
    import shim

    return {
        r.patch: {
            "verdict": str(r.verdict),
            "reason": r.reason,
            "imported": r.target.partition(":")[0] in sys.modules,
        }
        for r in shim.status()
    }
