"""Attention over a ragged row: each session's queries see their own session's keys only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention, softmax

Mask = torch.Tensor
MaskKey = tuple[int | None, int, torch.device]


@dataclass(frozen=True, slots=True)
class Branches:
    """How the new tokens of one session hang together, where they are no chain."""

    depths: tuple[int, ...]
    """Of each token: how many of the others stand before it on its path."""
    sees: torch.Tensor
    """[new, new], true where the first is the second, or stands behind it on a path."""

    @classmethod
    def of(cls, parents: Sequence[int] | None) -> Branches | None:
        """See `Row.parents`; None for a chain. ValueError for what is no tree."""
        if parents is None or all(parent == i - 1 for i, parent in enumerate(parents)):
            return None
        sees = np.eye(len(parents), dtype=np.bool_)
        depths: list[int] = []
        for index, parent in enumerate(parents):
            if not -1 <= parent < index:
                raise ValueError(f"token {index} of a row cannot follow token {parent}")
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
            if parent >= 0:
                sees[index] |= sees[parent]
        return cls(tuple(depths), torch.from_numpy(sees))


@dataclass(slots=True)
class RowSpan:
    """Where one session lies in the row, and how much it had before."""

    begin: int
    end: int
    past: int
    branches: Branches | None = None
    masks: dict[MaskKey, Mask] = field(default_factory=dict)
    """Layers of one kind share a mask within a forward."""

    @property
    def num_new(self) -> int:
        return self.end - self.begin

    @property
    def positions(self) -> Sequence[int]:
        """Of the new tokens, in the session's text."""
        if self.branches is None:
            return range(self.past, self.past + self.num_new)
        return [self.past + depth for depth in self.branches.depths]


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
    """Causal attention of one session's new tokens, each along its own path.

    query [heads, new, size]; keys, values [kv heads, past + new, size]; returns
    [heads, new, value size]. Query heads that share a key head are laid out as further rows of it,
    so keys are never repeated. `sinks` [heads] are extra logits that take part in the softmax and
    bring no value (GPT-OSS); `softcap` bounds the scores (Gemma 2).
    """
    heads, num_new, size = query.shape
    kv_heads = keys.shape[0]
    first = 0 if window is None else max(0, span.past - window + 1)
    keys, values = keys[:, first:], values[:, first:]
    groups = heads // kv_heads
    rows = query.reshape(kv_heads, groups * num_new, size)
    mask = None
    if num_new > 1:
        mask = _mask(span, window, groups, first, query.device)
    if softcap is None and sinks is None:
        out = scaled_dot_product_attention(
            rows.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), mask, scale=scaling
        ).squeeze(0)
    else:
        out = _explicit(rows, keys, values, mask, scaling, softcap, sinks, groups)
    return out.reshape(heads, num_new, values.shape[-1])


def _mask(span: RowSpan, window: int | None, groups: int, first: int, device: torch.device) -> Mask:
    """[groups * new, keys], true where a query may look; the first key is that of token `first`."""
    key: MaskKey = (window, groups, device)
    if key not in span.masks:
        new = torch.tensor(span.positions, device=device)
        # A window counts positions, not places: siblings have one position, and a place each.
        stored = torch.cat([torch.arange(first, span.past, device=device), new]).unsqueeze(0)
        positions = new.unsqueeze(1)
        mask = stored <= positions
        if window is not None:
            mask &= stored > positions - window
        if span.branches is not None:
            mask[:, span.past - first :] &= span.branches.sees.to(device)
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
