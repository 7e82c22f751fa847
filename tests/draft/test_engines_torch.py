"""The torch engine against a plain pass of the same model."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch

from anydraft.errors import ContextFullError, InternalError, UnsupportedModelError
from draft_node.engines.torch import TorchEngine
from tests import models_zoo
from tests.draft.conftest import CONTEXT_TOKENS

WINDOWED = ["mistral", "gemma3"]


def plain(model: Any, ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return model(torch.tensor([ids]), use_cache=False).logits[0, -1].numpy()


@pytest.mark.parametrize("name", ["llama", "gpt2", *WINDOWED])
def test_cuts_are_exact_also_behind_a_window(name: str) -> None:
    model = models_zoo.build(name)
    engine = TorchEngine(model)
    state = engine.open()
    rng = np.random.default_rng(2)
    held: list[int] = []
    for _ in range(30):
        new = rng.integers(0, models_zoo.VOCABULARY, size=int(rng.integers(1, 6))).tolist()
        held += new
        np.testing.assert_allclose(state.feed(new), plain(model, held), atol=2e-3)
        # Two cuts without a pass between them, as a re-segmented word behind a dead draft makes.
        for _ in range(int(rng.integers(0, 3))):
            held = held[: max(len(held) - int(rng.integers(0, 5)), 0)]
            state.truncate(len(held))
        assert state.length == len(held)
    assert len(held) > 2 * models_zoo.WINDOW


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("name", ["llama", *WINDOWED])
def test_a_closed_state_holds_no_memory(name: str) -> None:
    state = TorchEngine(models_zoo.build(name)).open()
    state.feed([1, 2, 3])
    cache = state._cache
    tensors = [
        weakref.ref(tensor) for layer in cache.layers for tensor in (layer.keys, layer.values)
    ]
    assert all(tensor() is not None for tensor in tensors)
    # A reference cycle keeps the state itself alive, as a session's may.
    cycle: list[Any] = [state, cache]
    cycle.append(cycle)
    state.close()
    state.close()
    assert [tensor() for tensor in tensors] == [None] * len(tensors)
    assert state.length == 0
    for use in (lambda: state.feed([1]), lambda: state.truncate(0)):
        with pytest.raises(InternalError, match="after its session ended"):
            use()


def test_facts(llama: Any) -> None:
    engine = TorchEngine(llama)
    assert engine.context_tokens == CONTEXT_TOKENS
    assert engine.vocab_size == llama.config.vocab_size
    assert engine.eos_ids == {llama.config.eos_token_id}
    assert "float32, cpu" in engine.description
    with pytest.raises(ContextFullError):
        engine.open().feed([0] * (CONTEXT_TOKENS + 1))


def test_recurrent_state_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="recurrent state"):
        TorchEngine(models_zoo.build("jamba"))
