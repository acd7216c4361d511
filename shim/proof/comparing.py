"""Results side by side, and errors in one line."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor


def difference(found: Any, expected: Any, *, bits: bool) -> str:
    """What first distinguishes two results: tensors, or tuples of results, or plain values.

    Args:
        found: of the compiled function.
        expected: of the eager one.
        bits: compare the contents of tensors too, bit by bit.

    Returns:
        One phrase, empty where the two are equal.
    """
    if isinstance(expected, (tuple, list)):
        if not isinstance(found, (tuple, list)) or len(found) != len(expected):
            return f"{found!r} instead of {len(expected)} results"
        each = (difference(f, e, bits=bits) for f, e in zip(found, expected, strict=True))
        return next((f"result {place}: {text}" for place, text in enumerate(each, 1) if text), "")
    if not isinstance(expected, Tensor):
        return "" if found == expected else f"{found!r} instead of {expected!r}"
    if not isinstance(found, Tensor):
        return f"{found!r} instead of a tensor"
    for what in ("dtype", "device", "shape"):
        one, other = getattr(found, what), getattr(expected, what)
        if one != other:
            return f"{what} {one} instead of {other}"
    if found.stride() != expected.stride():
        return f"strides {found.stride()} instead of {expected.stride()}"
    if bits and not torch.equal(_bytes(found), _bytes(expected)):
        unequal = int((_bytes(found) != _bytes(expected)).sum())
        return f"{unequal} of {_bytes(expected).numel()} bytes differ"
    return ""


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def compiler_reason(error: BaseException) -> str:
    """The compiler's reason in one sentence, out of the many lines that it writes."""
    text = str(error)
    explanation = re.search(r"^\s*Explanation: (.+)$", text, re.MULTILINE)
    line = explanation.group(1) if explanation else first_line(text)
    # A sentence ends where another begins; names such as `os.path` have no space behind the dot.
    return re.split(r"(?<=[.`]) (?=[A-Z])", line)[0]


def one_line(error: BaseException) -> str:
    """``Type: text``, the first line of it."""
    return f"{type(error).__name__}: {first_line(str(error))}".rstrip(": ")


def first_line(text: str) -> str:
    """The first line that says anything."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
