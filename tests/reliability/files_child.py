"""Import FlashInfer, compile one of its functions, and say what became of it."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))


def settle(limits: dict[str, Any]) -> None:
    """Take away from this process what it is to do without."""
    if "file_size" in limits:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that a write fails with EFBIG
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits["file_size"],) * 2)


def compiled() -> list[str]:
    """The calls in the graph of one compiled function; without us it calls no FlashInfer."""
    import torch
    from child_side import Counting, fake_cuda
    from flashinfer import silu_and_mul

    called = silu_and_mul if "shim.hook" in sys.modules else torch.neg
    backend = Counting()
    with fake_cuda():
        x = torch.empty(4, 256, dtype=torch.bfloat16, device="cuda")
        torch.compile(lambda x: called(x) + 1, fullgraph=True, backend=backend)(x)
    (ops,) = backend.ops()
    return ops


def main(limits: dict[str, Any]) -> None:
    # Torch first, by whoever we were: what is tried here is FlashInfer's import and ours.
    from child_side import pretend

    pretend()
    settle(limits)
    seen: dict[str, Any] = {"error": None, "ops": [], "applied": 0}
    try:
        import flashinfer

        seen["version"] = flashinfer.__version__
        seen["ops"] = compiled()
    except Exception as error:
        seen["error"] = f"{type(error).__name__}: {error}"
    if "shim.hook" in sys.modules:
        import shim

        verdicts = [str(record.verdict) for record in shim.status()]
        seen["applied"] = verdicts.count("applied")
    print(json.dumps(seen))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
