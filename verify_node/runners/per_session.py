"""The slower way that is exact on more models: one transformers cache a session, one forward each.

Used where the ragged runner's proof fails. The model builds its own masks, and the cache keeps
every token of every layer, so cutting it never needs what a window has dropped.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from verify_node.runners.base import Row
from verify_node.runners.model_facts import input_device


class CroppedCache:
    """A `SessionCache` around a DynamicCache without windows."""

    def __init__(self) -> None:
        self.inner = DynamicCache()
        self._closed = False

    @property
    def length(self) -> int:
        """Of the layer that holds fewest: a forward that raised has written the first ones only."""
        written = [layer for layer in self._layers if layer.is_initialized]
        return min((int(layer.get_seq_length()) for layer in written), default=0)

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot cut a cache of {self.length} tokens to {length}")
        for layer in self._layers:
            if surplus := int(layer.get_seq_length()) - length:
                layer.crop(-surplus)

    def keep(self, length: int, slots: Sequence[int]) -> None:
        if list(slots) != list(range(len(slots))):
            raise ValueError(f"this cache holds chains only, and cannot keep {list(slots)}")
        self.truncate(length + len(slots))

    @property
    def _layers(self) -> Sequence[Any]:
        return self.inner.layers

    def open_inner(self) -> DynamicCache:
        """For the next forward."""
        if self._closed:
            raise RuntimeError("the cache of a session that has ended was used")
        return self.inner

    def close(self) -> None:
        self._closed = True
        self.inner = DynamicCache()


class PerSessionRunner:
    name = "per-session"
    takes_trees = False
    """The model builds its own masks, which know of no branches."""
    copy_of = None

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    def new_cache(self, max_tokens: int) -> CroppedCache:
        del max_tokens  # grows by what is added
        return CroppedCache()

    def forward(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        return [self._one(row) for row in rows]

    @torch.inference_mode()
    def _one(self, row: Row) -> torch.Tensor:
        if not isinstance(row.cache, CroppedCache):
            raise TypeError(f"the per-session runner cannot use a {type(row.cache).__name__}")
        if row.parents is not None:
            raise ValueError("the per-session runner takes chains only")
        device = input_device(self._model)
        narrowed: dict[str, Any] = (
            {"logits_to_keep": max(row.num_logits, 1)} if self._keeps_logits else {}
        )
        output = self._model(
            input_ids=torch.tensor([list(row.token_ids)], device=device),
            cache=row.cache.open_inner(),
            use_cache=True,
            **narrowed,
        )
        logits: torch.Tensor = output.logits[0]
        return logits[len(logits) - row.num_logits :].float()
