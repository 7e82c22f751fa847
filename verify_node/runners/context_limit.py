"""How long a text a model can take, served exactly."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

_FALLBACK_TOKENS = 4096
_LENGTH_DEPENDENT_ROPES = ("dynamic", "longrope")
"""Rotary embeddings whose frequencies change once a text passes the original context. In one
forward over many sessions the longest would decide for all, and keys already cached keep the old
frequencies, so a session stays below that length."""


def context_tokens(model: PreTrainedModel, asked: int | None) -> int:
    """Prompt plus answer, in tokens: the model's own limit, or `asked` when that is smaller."""
    config = model.config.get_text_config()
    own = int(getattr(config, "max_position_embeddings", None) or _FALLBACK_TOKENS)
    original = _original_context(config)
    limit = own if original is None else min(own, original)
    return limit if asked is None else min(limit, asked)


def _original_context(config: Any) -> int | None:
    parameters = getattr(config, "rope_parameters", None) or {}
    # One set of parameters, or one for each kind of layer.
    sets = [parameters, *(p for p in parameters.values() if isinstance(p, dict))]
    lengths = [
        int(
            p.get("original_max_position_embeddings")
            or getattr(config, "original_max_position_embeddings", None)
            or config.max_position_embeddings
        )
        for p in sets
        if p.get("rope_type") in _LENGTH_DEPENDENT_ROPES
    ]
    return min(lengths) if lengths else None
