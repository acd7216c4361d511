"""The largest of each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...opaque.declare import MakeTensor, Op

_COLUMNS, _K = 512, 8


def _rows(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"input": make(m, _COLUMNS), "k": _K}


def _lengths(make: MakeTensor, m: int) -> Any:
    return make(m, dtype="int32", values=[_COLUMNS] * m)


def _page_table(make: MakeTensor, m: int) -> dict[str, Any]:
    table = make(m, _COLUMNS, dtype="int32")
    return {**_rows(make, m), "src_page_table": table, "lengths": _lengths(make, m)}


def _ragged(make: MakeTensor, m: int) -> dict[str, Any]:
    offsets = make(m, dtype="int32")
    return {**_rows(make, m), "offsets": offsets, "lengths": _lengths(make, m)}


def _varlen(make: MakeTensor, m: int) -> dict[str, Any]:
    logits = make(m, _COLUMNS, dtype="float32")
    return {"logits": logits, "seq_lens": _lengths(make, m), "top_k": _K}


def _values_if_asked(given: Mapping[str, Any]) -> tuple[int, int]:
    return (2 if given.get("return_values") else 1), 2


OPS = (
    Op("top_k", _rows, "(Tensor, Tensor)"),
    Op("top_k_page_table_transform", _page_table, mutates=("out_raw_indices",), out=("out",)),
    Op("top_k_ragged_transform", _ragged),
    Op(
        "top_k_varlen",
        _varlen,
        "(Tensor, Tensor)",
        results=_values_if_asked,
        out=("out_indices", "out_values"),
    ),
)
