"""The KV cache of one session: one buffer a layer, grown by doubling, cut by setting a length.

A buffer never grows beyond what its session may come to hold, so that what admission counts is what
is really taken.
"""

from __future__ import annotations

import torch

_FIRST_CAPACITY_TOKENS = 64


class LayerBuffer:
    """Keys and values of one layer, [heads, capacity, head size] each."""

    __slots__ = ("_max_tokens", "keys", "values")

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None

    def write(
        self, start: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores [heads, n, size] from token `start` on; returns all up to there, as views."""
        end = start + keys.shape[1]
        self.keys = _stored(self.keys, keys, start, end, self._max_tokens)
        self.values = _stored(self.values, values, start, end, self._max_tokens)
        return self.keys[:, :end], self.values[:, :end]


def _stored(
    buffer: torch.Tensor | None, new: torch.Tensor, start: int, end: int, max_tokens: int
) -> torch.Tensor:
    if buffer is None or buffer.shape[1] < end:
        capacity = max(min(max(_FIRST_CAPACITY_TOKENS, 2 * start), max_tokens), end)
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

    def __init__(self, max_tokens: int) -> None:
        self._length = 0
        self._max_tokens = max_tokens
        self._closed = False
        self._layers: dict[int, LayerBuffer] = {}

    @property
    def length(self) -> int:
        return self._length

    def layer(self, layer_idx: int) -> LayerBuffer:
        if self._closed:
            raise RuntimeError("the cache of a session that has ended was used")
        layer = self._layers.get(layer_idx)
        if layer is None:
            layer = self._layers[layer_idx] = LayerBuffer(self._max_tokens)
        return layer

    def advance(self, num_tokens: int) -> None:
        """All layers have written `num_tokens` more."""
        self._length += num_tokens

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot cut a cache of {self._length} tokens to {length}")
        self._length = length

    def close(self) -> None:
        self._closed = True
        self._length = 0
        self._layers.clear()
