"""The torch engine against a plain pass of the same model."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from anydraft.errors import ContextFullError, InternalError, UnsupportedModelError
from draft_node.engines.torch import TorchEngine
from tests import models_zoo
from tests.draft.conftest import CONTEXT_TOKENS
from tests.draft.engine_machine import drive, torch_reference

WINDOWED = ["mistral", "gemma3", "gpt_oss"]


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2", *WINDOWED])
def test_trees_are_what_their_paths_are(name: str) -> None:
    model = models_zoo.build(name)
    engine = TorchEngine(model)
    assert engine.takes_trees
    engine.max_paths, engine.chunk_tokens = 4, 5
    drive(engine, torch_reference(model), most_tokens=4 * models_zoo.WINDOW)


@pytest.mark.parametrize("name", ["llama4", "bloom"])
def test_models_that_make_masks_of_their_own_draft_chains(name: str) -> None:
    model = models_zoo.build(name)
    engine = TorchEngine(model)
    assert not engine.takes_trees
    assert engine.max_paths == 1
    drive(engine, torch_reference(model), most_tokens=4 * models_zoo.WINDOW)


@pytest.mark.parametrize("name", WINDOWED)
def test_chains_are_exact_behind_a_window(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draft_node.engines.torch.trees_hold", lambda *_: False)
    model = models_zoo.build(name)
    engine = TorchEngine(model)
    assert engine.max_paths == 1
    drive(engine, torch_reference(model), most_tokens=4 * models_zoo.WINDOW)


def test_the_window_is_what_it_was_after_the_proof() -> None:
    model = models_zoo.build("mistral")
    TorchEngine(model)
    assert model.config.sliding_window == models_zoo.WINDOW


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("name", ["llama", "bloom", *WINDOWED])
def test_a_closed_state_holds_no_memory(name: str) -> None:
    state: Any = TorchEngine(models_zoo.build(name)).open()
    state.read([1, 2, 3], wanted=False)
    state.expand([(4, 5)])
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
    for use in (
        lambda: state.read([1], wanted=True),
        lambda: state.expand([(1,)]),
        lambda: state.advance((4,)),
        lambda: state.truncate(0),
    ):
        with pytest.raises(InternalError, match="after its session ended"):
            use()


def test_facts(llama: Any) -> None:
    engine = TorchEngine(llama, id_limit=5)
    assert engine.context_tokens == CONTEXT_TOKENS
    assert engine.vocab_size == llama.config.vocab_size
    assert engine.eos_ids == {llama.config.eos_token_id}
    assert "float32, cpu" in engine.description
    with pytest.raises(ContextFullError):
        engine.open().read([0] * (CONTEXT_TOKENS + 1), wanted=True)
    choices = engine.open().read([7, 8], wanted=True)
    assert choices is not None
    assert sorted(choices.token_ids) == [0, 1, 2, 3, 4]


def test_recurrent_state_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="recurrent state"):
        TorchEngine(models_zoo.build("jamba"))
