"""Sliding windows and attention chunks, narrowed for a while so that a short text crosses them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

_WINDOW_ATTRIBUTES = (
    "sliding_window",
    "attention_chunk_size",
    "sliding_window_size",
    "window_size",
)


def has_windows(model: PreTrainedModel) -> bool:
    return any(True for _ in _windows(model))


@contextmanager
def narrowed(model: PreTrainedModel, num_tokens: int) -> Iterator[None]:
    """Sets every window of the model to `num_tokens`, and puts the real ones back.

    transformers reads windows from the config and from attributes of the attention modules, both
    at the time of the call.
    """
    found = list(_windows(model))
    for owner, name, _ in found:
        setattr(owner, name, num_tokens)
    try:
        yield
    finally:
        for owner, name, value in found:
            setattr(owner, name, value)


def _windows(model: PreTrainedModel) -> Iterator[tuple[Any, str, int]]:
    owners: dict[int, Any] = {id(model.config): model.config}
    for module in model.modules():
        owners[id(module)] = module
        config = getattr(module, "config", None)
        if config is not None:
            owners[id(config)] = config
    for owner in owners.values():
        for name in _WINDOW_ATTRIBUTES:
            value = vars(owner).get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                yield owner, name, value
