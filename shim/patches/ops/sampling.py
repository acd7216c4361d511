"""Sampling, and what is done to probabilities before it.

The functions that sample move on a generator of the process, on the host, unless they are told
where to begin; up to 0.5.3 they make a new generator with the same seed for every call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...opaque.declare import Example, MakeTensor, Op

_VOCABULARY, _TOP_K, _TOP_P = 512, 8, 0.9
_DRAFTED = 3
#: So many candidates of each row the kernels of flashinfer.cake_sampling have room for.
_SLAB = 1024


def _logits(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"logits": make(m, _VOCABULARY, dtype="float32")}


def _probs(make: MakeTensor, m: int) -> dict[str, Any]:
    return {"probs": make(m, _VOCABULARY, dtype="float32", values="probabilities")}


def _with(example: Example, **numbers: float) -> Example:
    return lambda make, m: {**example(make, m), **numbers}


def _chain(make: MakeTensor, m: int) -> dict[str, Any]:
    def probs(tokens: int) -> Any:
        return make(m, tokens, _VOCABULARY, dtype="float32", values="probabilities")

    return {
        "draft_probs": probs(_DRAFTED),
        "draft_token_ids": make(m, _DRAFTED, dtype="int32"),
        "target_probs": probs(_DRAFTED + 1),
    }


def _with_validity(given: Mapping[str, Any]) -> int:
    return 2 if given.get("return_valid") else 1


def _samples_fake(probs: Any, **_: Any) -> Any:
    import torch

    return probs.new_empty(probs.shape[:1], dtype=torch.int32)


def _slab_fake(probs: Any, **_: Any) -> Any:
    import torch

    slab = (probs.shape[0], _SLAB)
    return probs.new_empty(slab), probs.new_empty(slab, dtype=torch.int32), _samples_fake(probs)


_RANDOM: Mapping[str, Any] = {"draws": ("seed", "offset"), "unseen": ("check_nan",)}

OPS = (
    Op("softmax", _logits),
    Op("top_p_renorm_probs", _with(_probs, top_p=_TOP_P)),
    Op("top_k_renorm_probs", _with(_probs, top_k=_TOP_K)),
    Op("top_k_mask_logits", _with(_logits, top_k=_TOP_K)),
    Op("sampling_from_logits", _logits, **_RANDOM),
    Op(
        "top_k_top_p_sampling_from_logits",
        _with(_logits, top_k=_TOP_K, top_p=_TOP_P),
        **_RANDOM,
    ),
    *(
        Op(name, example, "(Tensor, Tensor)", results=_with_validity, **_RANDOM)
        for name, example in {
            "sampling_from_probs": _probs,
            "top_p_sampling_from_probs": _with(_probs, top_p=_TOP_P),
            "top_k_sampling_from_probs": _with(_probs, top_k=_TOP_K),
            "min_p_sampling_from_probs": _with(_probs, min_p=0.1),
            "top_k_top_p_sampling_from_probs": _with(_probs, top_k=_TOP_K, top_p=_TOP_P),
        }.items()
    ),
    Op(
        "chain_speculative_sampling",
        _chain,
        "(Tensor, Tensor, Tensor)",
        out=(
            None,
            "maybe_output_accepted_token_num",
            "maybe_output_emitted_draft_token_num",
        ),
        annotations=dict.fromkeys(("draft_probs", "draft_token_ids", "target_probs"), "Tensor"),
        draws=("seed", "offset"),
    ),
    # The next two choose among kernels by a file that lies beside those, and by the number of rows.
    Op(
        "cake_top_k_top_p_sampling_from_probs",
        _with(_probs, top_k=_TOP_K, top_p=_TOP_P),
        function="top_k_top_p_sampling_from_probs",
        module="flashinfer.cake_sampling",
        out=("out",),
        # What else it writes into, an op whose calls all count may not.
        annotations={"renorm_out": "None", "workspace": "None"},
        draws=("philox_seed", "philox_offset"),
        fake=_samples_fake,
        capability=(9, 0),
    ),
    Op(
        "top_k_probs_to_slab",
        _with(_probs, top_k=_TOP_K),
        "(Tensor, Tensor, Tensor)",
        out=("out_vals", "out_idx", "out_count"),
        fake=_slab_fake,
        capability=(9, 0),
    ),
)
