"""An assistant on torch and transformers, for edges with a small GPU.

With `torch_cache` the only modules of the draft node that import them; import this when it is asked
for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from draft_node.engines.base import AssistantState
from draft_node.engines.checks import prove_rollback, trees_hold
from draft_node.engines.measuring import best_width, chunk_tokens, pass_costs
from draft_node.engines.states import ChainState, TreeState
from draft_node.engines.torch_cache import TorchCache, cannot_roll_back

_DEFAULT_CONTEXT_TOKENS = 2048
_NARROW_WINDOW = 6
"""In tokens: a proof over a short text must cross every window."""


class TorchEngine:
    """See `draft_node.engines.base.AssistantEngine`."""

    def __init__(self, model: Any, *, id_limit: int | None = None) -> None:
        """`model` is a loaded causal language model of transformers, on its device. Ids from
        `id_limit` on are never proposed: the tokenizer does not know them.

        Raises UnsupportedModelError when it keeps state that cannot be rolled back.
        """
        self.model = model.eval()
        if getattr(model, "_is_stateful", False):
            raise cannot_roll_back(f"{type(model).__name__} keeps recurrent state")
        config = model.config.get_text_config(decoder=True)
        device = model.get_input_embeddings().weight.device
        self.description = f"torch {torch.__version__}, {_precision(model.dtype)}, {device}"
        self.context_tokens = int(
            getattr(config, "max_position_embeddings", None) or _DEFAULT_CONTEXT_TOKENS
        )
        self.vocab_size = int(config.vocab_size)
        self.id_limit = id_limit
        generation = getattr(model, "generation_config", None)
        self.eos_ids = frozenset(
            [*_eos_ids(generation), *_eos_ids(model.config), *_eos_ids(config)]
        )
        prove_rollback(self._new_chain, self.vocab_size)
        with _narrowed(config):
            self.takes_trees = trees_hold(self._new_chain, self._new_tree, self.vocab_size)
        new_cache = self._new_tree if self.takes_trees else self._new_chain
        self.chunk_tokens = chunk_tokens(new_cache, self.vocab_size, most=self.context_tokens)
        self.max_paths = 1
        if self.takes_trees:
            costs = pass_costs(self._new_tree, self.vocab_size, most=self.context_tokens)
            self.max_paths = best_width(costs)

    def open(self) -> AssistantState:
        if self.takes_trees:
            return TreeState(self, self._new_tree())
        return ChainState(self, self._new_chain())

    def _new_chain(self) -> TorchCache:
        return TorchCache(self.model, trees=False)

    def _new_tree(self) -> TorchCache:
        return TorchCache(self.model, trees=True)


@contextmanager
def _narrowed(config: Any) -> Iterator[None]:
    """transformers reads the width of the window when a pass runs, and so does `TorchCache`."""
    window = getattr(config, "sliding_window", None)
    if not window:
        yield
        return
    config.sliding_window = _NARROW_WINDOW
    try:
        yield
    finally:
        config.sliding_window = window


def _eos_ids(config: Any) -> list[int]:
    value = getattr(config, "eos_token_id", None)
    if value is None:
        return []
    return [int(value)] if isinstance(value, int) else [int(token_id) for token_id in value]


def _precision(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
