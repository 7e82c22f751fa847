"""Attention over a ragged row: each session's queries see their own session's keys only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention, softmax

Mask = torch.Tensor
MaskKey = tuple[int | None, int, torch.device]


@dataclass(slots=True)
class RowSpan:
    """Where one session lies in the row, and how much it had before."""

    begin: int
    end: int
    past: int
    masks: dict[MaskKey, Mask] = field(default_factory=dict)
    """Layers of one kind share a mask within a forward."""

    @property
    def num_new(self) -> int:
        return self.end - self.begin


def attend(
    span: RowSpan,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Causal attention of one session's new tokens.

    query [heads, new, size]; keys, values [kv heads, past + new, size]; returns
    [heads, new, value size]. Query heads that share a key head are laid out as further rows of it,
    so keys are never repeated. `sinks` [heads] are extra logits that take part in the softmax and
    bring no value (GPT-OSS); `softcap` bounds the scores (Gemma 2).
    """
    heads, num_new, size = query.shape
    kv_heads, length, _ = keys.shape
    first = 0 if window is None else max(0, span.past - window + 1)
    keys, values = keys[:, first:], values[:, first:]
    groups = heads // kv_heads
    rows = query.reshape(kv_heads, groups * num_new, size)
    mask = None
    if num_new > 1:
        mask = _mask(span, window, groups, first, length, query.device)
    if softcap is None and sinks is None:
        out = scaled_dot_product_attention(
            rows.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), mask, scale=scaling
        ).squeeze(0)
    else:
        out = _explicit(rows, keys, values, mask, scaling, softcap, sinks, groups)
    return out.reshape(heads, num_new, values.shape[-1])


def _mask(
    span: RowSpan, window: int | None, groups: int, first: int, length: int, device: torch.device
) -> Mask:
    """[groups * new, keys], true where a query may look."""
    key: MaskKey = (window, groups, device)
    if key not in span.masks:
        positions = torch.arange(span.past, length, device=device).unsqueeze(1)
        seen = torch.arange(first, length, device=device).unsqueeze(0)
        mask = seen <= positions
        if window is not None:
            mask &= seen > positions - window
        span.masks[key] = mask.repeat(groups, 1)
    return span.masks[key]


def _explicit(
    rows: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: Mask | None,
    scaling: float | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    groups: int,
) -> torch.Tensor:
    """What the fused kernel does not know, in the order of transformers' eager attention."""
    scale = rows.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.matmul(rows, keys.transpose(1, 2)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    if sinks is not None:
        kv_heads, num_rows, _ = scores.shape
        column = sinks.reshape(kv_heads, groups, 1).expand(-1, -1, num_rows // groups)
        scores = torch.cat([scores, column.reshape(kv_heads, num_rows, 1).to(scores.dtype)], -1)
    weights = softmax(scores, dim=-1, dtype=torch.float32)
    if sinks is not None:
        weights = weights[..., :-1]
    return torch.matmul(weights.to(values.dtype), values)


KNOWN_KEYWORDS = frozenset(
    {"dropout", "scaling", "sliding_window", "softcap", "s_aux", "is_causal", "position_ids"}
)
"""What a model may pass to its attention function and this module understands."""


def unknown_tensors(keywords: dict[str, Any]) -> list[str]:
    """Tensors handed to attention that would change its result and that we would ignore."""
    return [
        name
        for name, value in keywords.items()
        if name not in KNOWN_KEYWORDS and isinstance(value, torch.Tensor)
    ]
