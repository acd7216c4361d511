"""Child of test_fp4_fake: the same cases for upstream's own Python and for our fake.

The fake sees each case with the sizes as they are, and some, since that takes a hundred times as
long, with a symbolic batch or with all sizes symbolic too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import oracle
import torch
import torch._dynamo.config
from oracle import Json
from packaging.version import Version
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
    SymbolicContext,
)

from shim.patches.fp4_fake import fake_fp4_quantize
from shim.patches.fp4_quantize_contract import CONTRACT
from shim.patches.fp4_traits import Fp4Traits


def traits_of(release: str) -> Fp4Traits:
    """What the contract says of a release."""
    (traits,) = [row.traits for row in CONTRACT.rows if row.covers(Version(release))]
    assert isinstance(traits, Fp4Traits)
    return traits


def run(
    fake: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    case: Json,
    symbolic: Callable[[Json, int], bool] | None = None,
) -> Json:
    """The outcome of the fake for a case.

    Args:
        fake: Takes the arguments of the release, by name.
        case: See ``oracle.arguments``.
        symbolic: Which dimensions of the input are symbolic; None for fake tensors of fixed sizes.

    Returns:
        An outcome of the oracle; from symbolic sizes also ``guards``, what the fake has asked of
        them, and ``fixed``, the dimensions that were symbolic and no longer are.
    """
    found = oracle.arguments(case)
    real, scale = found["input"], found["global_scale"]
    context: SymbolicContext | None = None
    if symbolic is not None:
        dims = [symbolic(case, dim) for dim in range(real.dim())]
        context = StatelessSymbolicContext(
            dynamic_sizes=[DimDynamic.DYNAMIC if dim else DimDynamic.STATIC for dim in dims]
        )
    shapes = ShapeEnv() if symbolic else None
    mode = FakeTensorMode(shape_env=shapes)
    found["input"] = mode.from_tensor(real, symbolic_context=context)
    found["global_scale"] = scale if scale is None else mode.from_tensor(scale, static_shapes=True)
    before = _symbolic_dims(found["input"], shapes)
    facts: Json = {}

    def call() -> tuple[torch.Tensor, torch.Tensor]:
        try:
            with mode:
                outputs = fake(**found)
        finally:
            if shapes is not None:  # looked at now: reading a geometry asks for more
                facts["guards"] = [str(guard.expr) for guard in shapes.guards]
                facts["fixed"] = sorted(before - _symbolic_dims(found["input"], shapes))
        assert all(isinstance(output, FakeTensor) for output in outputs)
        return outputs

    with oracle.environment(case):
        return oracle.outcome(call) | facts


def _symbolic_dims(input: torch.Tensor, shapes: ShapeEnv | None) -> set[int]:
    """Dimensions whose size is still a symbol; a size of 0 or 1 never was one."""
    if shapes is None:
        return set()
    sizes: list[object] = list(input.size())
    return {
        dim
        for dim, size in enumerate(sizes)
        if isinstance(size, torch.SymInt) and shapes.replace(size.node.expr).free_symbols
    }


def batch(case: Json, dim: int) -> bool:
    """Whether a dimension belongs to the batch, not to what is quantized in blocks."""
    options, strides = case["options"], case["stride"]
    column_major = len(strides) > 1 and strides[-2] == 1 and options.get("backend") != "cute-dsl"
    if options.get("batch_invariant"):
        column_major = column_major and strides[-1] != 1
    return dim != len(strides) - (2 if column_major else 1)


def main(request: Path) -> None:
    """Answer the cases of a file, as JSON on the last line."""
    # It keeps what it saw, each case here is seen once, and looking costs more than running.
    torch._dynamo.config.fake_tensor_cache_enabled = False
    asked: Mapping[str, Any] = json.loads(request.read_text())
    upstream = oracle.upstream()
    assert "shim.patches.fp4_quantize" not in sys.modules  # unpatched, or we would judge ourselves
    traits = traits_of(asked["release"])
    defaults = {
        name: parameter.default for name, parameter in signature(upstream).parameters.items()
    }

    def fake(**arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return fake_fp4_quantize(traits, **(defaults | arguments))

    answers = []
    for number, case in enumerate(asked["cases"]):
        answer = {"upstream": oracle.judge(upstream, case), "fixed sizes": run(fake, case)}
        # Periods that share no factor with those of the grid.
        if number % 11 == 0:
            answer["symbolic batch"] = run(fake, case, batch)
        if number % 13 == 0:
            answer["symbolic sizes"] = run(fake, case, lambda case, dim: True)
        answers.append(answer)
    print(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
