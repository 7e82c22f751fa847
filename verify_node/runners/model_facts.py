"""Facts read off a transformers model, typed."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel


def vocabulary_size(model: PreTrainedModel) -> int:
    """Rows of the embedding; may be padded beyond the tokenizer's vocabulary."""
    return len(_embedding(model))


def input_device(model: PreTrainedModel) -> torch.device:
    """Where token ids go; with a device_map the rest of the model may be elsewhere."""
    return _embedding(model).device


def _embedding(model: PreTrainedModel) -> torch.Tensor:
    weight = model.get_input_embeddings().weight
    if not isinstance(weight, torch.Tensor):
        raise TypeError(f"{type(model).__name__} has no embedding matrix")
    return weight


def configs_of(model: PreTrainedModel) -> list[Any]:
    """Every config object that a part of the model looks into, once."""
    found: dict[int, Any] = {}
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if config is not None:
            found[id(config)] = config
    return list(found.values())
