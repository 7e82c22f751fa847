"""The likeliest of a vocabulary of logits, in less than a tenth of a millisecond a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from draft_node.engines.base import MAX_CHOICES, Choices

_GROUP = 256
"""Sorting the maxima of groups, and then the members of the best groups alone, looks at every logit
once. With the sum of exponentials 49,152 logits take 0.05 ms; ONNX Runtime's own TopK and
ReduceLogSumExp, inside the graph, would take 0.19."""

NO_CHOICES = Choices((), ())


def best_choices(logits: np.ndarray[Any, Any], id_limit: int | None = None) -> Choices:
    """What a row of logits, [vocabulary], says is likely; of equals any. No ids from `id_limit` on.

    Empty where one is not a number, or infinite: the engine overflowed. (Minus infinity is what an
    engine says of ids that it never wants.)
    """
    row = np.ascontiguousarray(logits[:id_limit], dtype=np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        total = float(np.exp(row - row.max()).sum())
    if not np.isfinite(total):
        return NO_CHOICES
    candidates = _candidates(row)
    values = row[candidates]
    order = np.argsort(-values, kind="stable")[:MAX_CHOICES]
    best, values = candidates[order], values[order]
    best = best[np.isfinite(values)]
    logprobs = row[best].astype(np.float64) - float(values[0]) - np.log(total)
    return Choices(tuple(best.tolist()), tuple(logprobs.tolist()))


def _candidates(row: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Indices among which the MAX_CHOICES largest are: each of those is in a group whose maximum
    is among the MAX_CHOICES largest maxima. A group is a column, which is quicker than a row."""
    groups = len(row) // _GROUP
    if groups <= MAX_CHOICES:
        return np.arange(len(row))
    grouped = groups * _GROUP
    maxima = row[:grouped].reshape(_GROUP, groups).max(axis=0)
    best = np.argpartition(maxima, -MAX_CHOICES)[-MAX_CHOICES:]
    members = (best + groups * np.arange(_GROUP)[:, None]).ravel()
    near = np.concatenate([members, np.arange(grouped, len(row))])
    values = row[near]
    least = np.partition(values, -MAX_CHOICES)[-MAX_CHOICES]
    return np.asarray(near[values >= least])
