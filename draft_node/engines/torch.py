"""An assistant on torch and transformers, for edges with a small GPU.

The only module of the draft node that imports them; import it when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from anydraft.errors import UnsupportedModelError
from draft_node.engines.base import Logits
from draft_node.engines.checks import check_feed, check_truncate, closed_state, prove_rollback

_CHUNK_TOKENS = 512
_DEFAULT_CONTEXT_TOKENS = 2048


class TorchEngine:
    """See `draft_node.engines.base.AssistantEngine`."""

    def __init__(self, model: Any) -> None:
        """`model` is a loaded causal language model of transformers, on its device.

        Raises UnsupportedModelError when it keeps state that cannot be rolled back.
        """
        self.model = model.eval()
        if getattr(model, "_is_stateful", False):
            raise _cannot_roll_back(f"{type(model).__name__} keeps recurrent state")
        config = model.config.get_text_config(decoder=True)
        self.device = model.get_input_embeddings().weight.device
        self.description = f"torch {torch.__version__}, {_precision(model.dtype)}, {self.device}"
        self.context_tokens = int(
            getattr(config, "max_position_embeddings", None) or _DEFAULT_CONTEXT_TOKENS
        )
        self.vocab_size = int(config.vocab_size)
        generation = getattr(model, "generation_config", None)
        self.eos_ids = frozenset(
            [*_eos_ids(generation), *_eos_ids(model.config), *_eos_ids(config)]
        )
        prove_rollback(self)

    def open(self) -> TorchState:
        return TorchState(self)


class TorchState:
    """See `draft_node.engines.base.AssistantState`."""

    def __init__(self, engine: TorchEngine) -> None:
        self._engine = engine
        cache = cast(Any, DynamicCache(config=engine.model.config))
        _check_layers(cache.layers)
        # Sliding layers then keep what has left their window, so that any cut is exact.
        cache.activate_past_recording()
        self._open_cache: Any | None = cache

    @property
    def _cache(self) -> Any:
        if self._open_cache is None:
            raise closed_state()
        return self._open_cache

    @property
    def length(self) -> int:
        return 0 if self._open_cache is None else int(self._open_cache.get_seq_length())

    def feed(self, ids: Sequence[int]) -> Logits:
        cache, before = self._cache, self.length
        check_feed(ids, before, self._engine)
        try:
            for start in range(0, len(ids), _CHUNK_TOKENS):
                logits = self._forward(cache, ids[start : start + _CHUNK_TOKENS])
        except BaseException:
            _cut(cache.layers, before)
            raise
        return np.array(logits.float().cpu().numpy(), dtype=np.float32)

    def truncate(self, length: int) -> None:
        cache = self._cache
        check_truncate(length, self.length)
        _cut(cache.layers, length)

    def close(self) -> None:
        if self._open_cache is not None:
            # Whoever still refers to the cache holds no tensors: the layers own them.
            self._open_cache.layers.clear()
            self._open_cache = None

    @torch.inference_mode()
    def _forward(self, cache: Any, ids: Sequence[int]) -> torch.Tensor:
        output = self._engine.model(
            input_ids=torch.tensor([list(ids)], device=self._engine.device),
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = output.logits[0, -1]
        return logits


def _check_layers(layers: Iterable[Any]) -> None:
    for layer in layers:
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise _cannot_roll_back(f"it uses {type(layer).__name__}")


def _cut(layers: Iterable[Any], length: int) -> None:
    """Cuts every layer to `length` tokens.

    `DynamicSlidingWindowLayer.crop` would also forget what has left the window, and a second,
    deeper cut would then be wrong without a sign of it.
    """
    for layer in layers:
        excess = layer.get_seq_length() - length
        if excess <= 0 or not layer.is_initialized:
            continue
        layer.keys = layer.keys[..., :-excess, :]
        layer.values = layer.values[..., :-excess, :]
        if isinstance(layer, DynamicSlidingWindowLayer):
            layer.cumulative_length -= excess


def _eos_ids(config: Any) -> list[int]:
    value = getattr(config, "eos_token_id", None)
    if value is None:
        return []
    return [int(value)] if isinstance(value, int) else [int(token_id) for token_id in value]


def _precision(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cannot_roll_back(problem: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"This model cannot draft: {problem}, which cannot be rolled back. "
        "Choose an assistant with plain attention layers.",
        reason="ASSISTANT_CANNOT_ROLL_BACK",
    )
