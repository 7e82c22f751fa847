"""The KV cache of one session: one buffer a layer, grown by doubling, cut by setting a length."""

from __future__ import annotations

import torch

_FIRST_CAPACITY_TOKENS = 64


class LayerBuffer:
    """Keys and values of one layer, [heads, capacity, head size] each."""

    __slots__ = ("keys", "values")

    def __init__(self) -> None:
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None

    def write(
        self, start: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores [heads, n, size] from token `start` on; returns all up to there, as views."""
        end = start + keys.shape[1]
        self.keys = _stored(self.keys, keys, start, end)
        self.values = _stored(self.values, values, start, end)
        return self.keys[:, :end], self.values[:, :end]


def _stored(buffer: torch.Tensor | None, new: torch.Tensor, start: int, end: int) -> torch.Tensor:
    if buffer is None or buffer.shape[1] < end:
        capacity = max(_FIRST_CAPACITY_TOKENS, end, 2 * start)
        grown = new.new_empty((new.shape[0], capacity, new.shape[2]))
        if buffer is not None:
            grown[:, :start] = buffer[:, :start]
        buffer = grown
    buffer[:, start:end] = new
    return buffer


class RaggedCache:
    """A `SessionCache` whose layers appear as the model first writes to them.

    Sliding-window layers keep every token too: a window is a matter of which keys a query sees, so
    a rejected draft never has to bring back what a ring buffer would have overwritten.
    """

    def __init__(self) -> None:
        self._length = 0
        self._layers: dict[int, LayerBuffer] = {}

    @property
    def length(self) -> int:
        return self._length

    def layer(self, layer_idx: int) -> LayerBuffer:
        return self._layers.setdefault(layer_idx, LayerBuffer())

    def advance(self, num_tokens: int) -> None:
        """All layers have written `num_tokens` more."""
        self._length += num_tokens

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot cut a cache of {self._length} tokens to {length}")
        self._length = length
