"""The KV cache of one session: one buffer a layer, cut by setting a length.

On a CPU a buffer has addresses for all that any session may come to hold, and memory for what it
does: a copy of a long text's keys and values would hold up every session of the step.

Blocks that lie anywhere would let sessions share a prefix's memory. But attention on a CPU wants
the keys of a head side by side, and gathering them first reads and writes all of a session's cache
in each step: 0.78x of the speed with one session of 2,000 tokens, 0.29x with 16 of 500
(`benchmarks/kv_layout.py`; the mappings are at 1.00x and 1.02x of buffers from the allocator). So a
session that begins with what another has computed gets a copy of it: 2,000 tokens in 18 ms, but the
memory of each is its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verify_node.runners.reserved_memory import with_room


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

    @torch.inference_mode()
    def copied(self, num_tokens: int, max_tokens: int) -> LayerBuffer:
        """A buffer of its own with the first `num_tokens`."""
        copy = LayerBuffer(max_tokens)
        if self.keys is not None and self.values is not None:
            copy.write(0, self.keys[:, :num_tokens], self.values[:, :num_tokens])
        return copy

    @torch.inference_mode()
    def move(self, start: int, places: torch.Tensor) -> None:
        """What is stored at `places` goes to `start` and the places behind it."""
        for buffer in (self.keys, self.values):
            if buffer is not None:
                # A copy: the places may overlap those that are written.
                moved = buffer.index_select(1, places.to(buffer.device))
                buffer[:, start : start + len(places)] = moved


def _stored(
    buffer: torch.Tensor | None, new: torch.Tensor, start: int, end: int, max_tokens: int
) -> torch.Tensor:
    if end > max_tokens:
        raise ValueError(f"a cache for {max_tokens} tokens was given {end}")
    buffer = with_room(new, buffer, end, max_tokens)
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

    def keep(self, length: int, slots: Sequence[int]) -> None:
        if list(slots) != sorted(set(slots)) or (slots and slots[0] < 0):
            raise ValueError(f"slots must grow from 0 on, not {list(slots)}")
        if not 0 <= length + (slots[-1] + 1 if slots else 0) <= self._length:
            raise ValueError(f"a cache of {self._length} tokens has no {list(slots)} at {length}")
        in_place = next((i for i, slot in enumerate(slots) if slot != i), len(slots))
        if moved := [length + slot for slot in slots[in_place:]]:
            places = torch.tensor(moved)
            for layer in self._layers.values():
                layer.move(length + in_place, places)
        self._length = length + len(slots)

    def copied(self, num_tokens: int, max_tokens: int) -> RaggedCache:
        """Its first `num_tokens` in a cache of their own."""
        if not 0 <= num_tokens <= self._length:
            raise ValueError(f"cannot copy {num_tokens} tokens of a cache of {self._length}")
        copy = RaggedCache(max_tokens)
        copy._layers = {
            index: layer.copied(num_tokens, max_tokens) for index, layer in self._layers.items()
        }
        copy._length = num_tokens
        return copy

    def close(self) -> None:
        self._closed = True
        self._length = 0
        self._layers.clear()
