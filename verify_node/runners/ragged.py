"""One forward pass over many sessions, on an unchanged transformers model.

All new tokens of all sessions lie in one row [1, total]; positions are given per token, so the
linear layers see one big matrix. Attention is the only place where sessions differ: a custom
attention function, registered with transformers, looks up which tokens belong to whom.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from verify_node.runners.base import Row, SessionCache
from verify_node.runners.model_facts import configs_of, input_device
from verify_node.runners.ragged_attention import Branches, RowSpan, attend, unknown_tensors
from verify_node.runners.ragged_cache import RaggedCache

ATTENTION_NAME = "anydraft_ragged"


_new_layer: Any = DynamicLayer


class _Batch(Cache):
    """The cache object that a model sees during one forward: it knows who owns which tokens."""

    def __init__(
        self, caches: Sequence[RaggedCache], spans: Sequence[RowSpan], layers: int
    ) -> None:
        # Models only ask the layers for lengths and kinds, to build masks that we do not use.
        super().__init__(layers=[_new_layer() for _ in range(layers)])
        self.spans = spans
        self._caches = caches
        self.views: list[tuple[torch.Tensor, torch.Tensor]] = []

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores the row's new keys and values, [1, kv heads, total, size], per session."""
        if self.views:
            raise NotImplementedError("a layer stored keys and never called the attention function")
        self.views = [
            cache.layer(layer_idx).write(
                span.past,
                key_states[0, :, span.begin : span.end],
                value_states[0, :, span.begin : span.end],
            )
            for cache, span in zip(self._caches, self.spans, strict=True)
        ]
        return key_states, value_states

    def take_views(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """All keys and values of the layer that has just been stored, per session; once."""
        if not self.views:
            raise NotImplementedError("a layer attends to keys that it did not store")
        views, self.views = self.views, []
        return views

    def get_seq_length(self, layer_idx: int = 0) -> int:
        del layer_idx
        return max(span.past for span in self.spans)


# Not an argument of the attention function: some models (StableLM) drop keyword arguments on the
# way down to it.
_batch: ContextVar[_Batch | None] = ContextVar("_batch", default=None)


def _ragged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' contract: query [1, heads, total, size] -> [1, total, heads, size]."""
    batch = _batch.get()
    if batch is None:
        raise RuntimeError("ragged attention outside of a ragged forward")
    if attention_mask is not None:
        raise NotImplementedError(f"{type(module).__name__} builds an attention mask of its own")
    if unknown := unknown_tensors(kwargs):
        raise NotImplementedError(f"{type(module).__name__} passes {unknown} to its attention")
    out = [
        attend(
            span,
            query[0, :, span.begin : span.end],
            keys,
            values,
            scaling=scaling,
            window=sliding_window,
            softcap=softcap,
            sinks=s_aux,
        )
        for span, (keys, values) in zip(batch.spans, batch.take_views(), strict=True)
    ]
    joined = out[0] if len(out) == 1 else torch.cat(out, dim=1)
    return joined.transpose(0, 1).unsqueeze(0).contiguous(), None


AttentionInterface.register(ATTENTION_NAME, _ragged_attention)


class RaggedRunner:
    """A `ModelRunner` with no padding and no copying of caches in and out of a batch."""

    name = "ragged"

    def __init__(self, model: PreTrainedModel, *, takes_trees: bool = True) -> None:
        """`takes_trees`: whether the model was found to be exact on them."""
        self.takes_trees = takes_trees
        self._model = model
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._configs = configs_of(model)
        self._num_layers = int(model.config.get_text_config().num_hidden_layers)

    def new_cache(self, max_tokens: int) -> RaggedCache:
        return RaggedCache(max_tokens)

    def copy_of(self, cache: SessionCache, num_tokens: int, max_tokens: int) -> RaggedCache:
        return _own(cache).copied(num_tokens, max_tokens)

    @torch.inference_mode()
    def forward(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        caches = [_own(row.cache) for row in rows]
        spans = _spans(rows)
        device = input_device(self._model)
        token_ids = torch.tensor(
            [list(itertools.chain.from_iterable(row.token_ids for row in rows))], device=device
        )
        positions = torch.tensor(
            [list(itertools.chain.from_iterable(span.positions for span in spans))], device=device
        )
        wanted = [range(s.end - row.num_logits, s.end) for row, s in zip(rows, spans, strict=True)]
        keep = torch.tensor(
            list(itertools.chain.from_iterable(wanted)), dtype=torch.long, device=device
        )
        batch = _Batch(caches, spans, self._num_layers)
        with _entered(batch), _attention(self._configs):
            logits = self._logits(token_ids, positions, batch, keep)
        if batch.views:
            raise NotImplementedError("the model does not use transformers' attention interface")
        for cache, span in zip(caches, spans, strict=True):
            cache.advance(span.num_new)
        return list(torch.split(logits.float(), [row.num_logits for row in rows]))

    def _logits(
        self, token_ids: torch.Tensor, positions: torch.Tensor, batch: _Batch, keep: torch.Tensor
    ) -> torch.Tensor:
        """[kept, vocabulary]"""
        narrowed: dict[str, Any] = {"logits_to_keep": keep} if self._keeps_logits else {}
        output = self._model(
            input_ids=token_ids, position_ids=positions, cache=batch, use_cache=True, **narrowed
        )
        logits: torch.Tensor = output.logits[0]
        return logits if self._keeps_logits else logits[keep]


def _own(cache: SessionCache) -> RaggedCache:
    if not isinstance(cache, RaggedCache):
        raise TypeError(f"the ragged runner cannot use a {type(cache).__name__}")
    return cache


def _spans(rows: Sequence[Row]) -> list[RowSpan]:
    spans: list[RowSpan] = []
    begin = 0
    for row in rows:
        end = begin + len(row.token_ids)
        spans.append(RowSpan(begin, end, row.cache.length, Branches.of(row.parents)))
        begin = end
    return spans


@contextmanager
def _entered(batch: _Batch) -> Iterator[None]:
    token = _batch.set(batch)
    try:
        yield
    finally:
        _batch.reset(token)


@contextmanager
def _attention(configs: Sequence[Any]) -> Iterator[None]:
    """The model calls our attention function meanwhile; a plain pass finds its own again."""
    before = [config._attn_implementation for config in configs]
    for config in configs:
        config._attn_implementation = ATTENTION_NAME
    try:
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = name
