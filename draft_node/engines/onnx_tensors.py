"""What a pass is for an exported decoder: all inputs but the cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from anydraft.models.tree_inputs import ATTENTION_BIAS, LOGITS_POSITIONS, MASKED, WINDOW_BIAS
from draft_node.engines.cache import Array, Pass
from draft_node.engines.onnx_signature import BRANCH, KEEP, Signature

Tensors = dict[str, np.ndarray[Any, Any]]


def make_tensors(
    signature: Signature, work: Pass, length: int, window: int | None = None
) -> Tensors:
    """For `work` behind `length` filled slots; `window` is that of `window_bias`."""
    count = len(work.ids)
    end = length + count
    names = signature.names
    tensors: Tensors = {names.input_ids: np.array([work.ids], signature.id_dtype)}
    if signature.mask_dtype is not None:
        tensors[names.attention_mask] = np.ones((1, end), signature.mask_dtype)
    if signature.position_dtype is not None:
        tensors[names.position_ids] = _positions(work, length).astype(signature.position_dtype)
    if signature.logits_to_keep_shape is not None:
        tensors[KEEP] = np.ones(signature.logits_to_keep_shape, np.int64)
    if signature.has_cache_branch:
        tensors[BRANCH] = np.array([length > 0])
    if signature.takes_trees:
        tensors[LOGITS_POSITIONS] = np.array(work.wanted, np.int64)
        tensors[ATTENTION_BIAS] = _bias(work, length, None)
    if signature.has_window_bias:
        tensors[WINDOW_BIAS] = _bias(work, length, window)
    return tensors


def _positions(work: Pass, length: int) -> Array:
    if work.tree is None:
        return np.arange(length, length + len(work.ids))[None]
    return work.tree.positions(len(work.ids))[None]


def _bias(work: Pass, length: int, window: int | None) -> Array:
    """[1, 1, new, slots]. The operator itself hides the slots behind each token's own."""
    count = len(work.ids)
    if work.tree is not None:
        hidden = ~work.tree.visible(window)
    elif window is not None:
        slots = np.arange(length + count)
        hidden = slots <= slots[length:, None] - window
    else:
        return np.zeros((1, 1, count, length + count), np.float32)
    return (hidden * np.float32(MASKED))[None, None]
