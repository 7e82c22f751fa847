"""Both kinds of cache against a plain pass of the same weights, and what is refused."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anydraft.errors import (
    ContextFullError,
    FailedPreconditionError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    UnsupportedModelError,
)
from draft_node.engines import onnx as onnx_engine
from draft_node.engines.onnx import OnnxEngine
from tests.draft.conftest import CONTEXT_TOKENS
from tests.draft.onnx_graphs import POSITIONS, VOCABULARY, Graph

IDS = [(37 * k + 11) % VOCABULARY for k in range(POSITIONS)]


@pytest.fixture(scope="module")
def shared(genai_folder: Path) -> OnnxEngine:
    return OnnxEngine(genai_folder, threads=1)


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> OnnxEngine:
    folder = tmp_path_factory.mktemp("growing")
    Graph().save(folder / "onnx" / "model_q4.onnx")
    return OnnxEngine(folder, threads=1)


def test_facts_of_a_genai_export(shared: OnnxEngine, llama: Any) -> None:
    assert shared.shares_buffers
    assert shared.vocab_size == llama.config.vocab_size
    assert shared.context_tokens == CONTEXT_TOKENS
    assert shared.eos_ids == {llama.config.eos_token_id}
    assert "model.onnx, 1 threads" in shared.description


def test_logits_are_those_of_torch(shared: OnnxEngine, llama: Any) -> None:
    import torch

    with torch.inference_mode():
        expected = llama(torch.tensor([IDS])).logits[0].numpy()
    state = shared.open()
    fed = 0
    for size in (1, 7, 1, 20, 2, 1):
        found = state.feed(IDS[fed : fed + size])
        fed += size
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected[fed - 1], atol=2e-4)
    assert state.length == fed


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("kind", ["shared", "growing"])
def test_a_closed_state_holds_no_memory(kind: str, request: pytest.FixtureRequest) -> None:
    engine: OnnxEngine = request.getfixturevalue(kind)
    state = engine.open()
    state.feed(IDS[:5])
    cache: Any = state._cache
    held = cache._buffers if kind == "shared" else list(cache._past.values())
    buffers = [weakref.ref(buffer) for buffer in held]
    assert all(buffer() is not None for buffer in buffers)
    del held
    # A reference cycle keeps the state itself alive, as a session's may.
    cycle: list[Any] = [state, cache]
    cycle.append(cycle)
    state.close()
    state.close()
    assert [buffer() for buffer in buffers] == [None] * len(buffers)
    assert state.length == 0
    for use in (lambda: state.feed(IDS[:1]), lambda: state.truncate(0)):
        with pytest.raises(InternalError, match="after its session ended"):
            use()


@pytest.mark.parametrize("kind", ["shared", "growing"])
def test_after_a_cut_nothing_is_left_of_what_was_cut(
    kind: str, request: pytest.FixtureRequest
) -> None:
    engine: OnnxEngine = request.getfixturevalue(kind)
    state = engine.open()
    rng = np.random.default_rng(1)
    held: list[int] = []
    for _ in range(40):
        new = rng.integers(0, VOCABULARY, size=int(rng.integers(1, 9))).tolist()
        if len(held) + len(new) > POSITIONS:
            held = held[: int(rng.integers(0, POSITIONS - 8))]
            state.truncate(len(held))
        found = state.feed(new)
        held += new
        np.testing.assert_allclose(found, engine.open().feed(held), atol=2e-4)
        if rng.random() < 0.5:
            held = held[: int(rng.integers(0, len(held) + 1))]
            state.truncate(len(held))
        assert state.length == len(held)


def test_sessions_do_not_see_each_other(shared: OnnxEngine) -> None:
    states = [shared.open() for _ in range(3)]
    sequences = [IDS[k : k + 12] for k in range(3)]
    for at in range(12):
        found = [s.feed([ids[at]]) for s, ids in zip(states, sequences, strict=True)]
    for logits, ids in zip(found, sequences, strict=True):
        np.testing.assert_allclose(logits, shared.open().feed(ids), atol=2e-4)


def test_a_buffer_that_grows_keeps_what_it_holds(
    shared: OnnxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draft_node.engines.onnx_cache._FIRST_CAPACITY", 4)
    state = shared.open()
    for token_id in IDS[:40]:
        found = state.feed([token_id])
    np.testing.assert_allclose(found, shared.open().feed(IDS[:40]), atol=2e-4)


def test_long_feeds_are_cut_into_chunks(
    growing: OnnxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = growing.open().feed(IDS)
    monkeypatch.setattr(onnx_engine, "_MAX_LOGITS", 5 * VOCABULARY)
    np.testing.assert_allclose(growing.open().feed(IDS), whole, atol=2e-4)


@pytest.mark.parametrize(
    "graph", [Graph(keep_logits=True), Graph(cache_branch=True), Graph(half=True)]
)
def test_habits_of_exporters(graph: Graph, growing: OnnxEngine, tmp_path: Path) -> None:
    graph.save(tmp_path / "model.onnx")
    found = OnnxEngine(tmp_path, threads=1).open().feed(IDS[:20])
    assert found.dtype == np.float32
    np.testing.assert_allclose(
        found, growing.open().feed(IDS[:20]), atol=0.5 if graph.half else 1e-4
    )


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (Graph(extra_input="past_conv"), "recurrent state"),
        (Graph(extra_input="past_ssm_states"), "recurrent state"),
        (Graph(extra_input="encoder_hidden"), "needs encoder_hidden"),
        (Graph(past_length="32"), "fixed length of 32"),
        (Graph(window=4), "slides"),
    ],
)
def test_models_that_cannot_draft_are_refused(graph: Graph, why: str, tmp_path: Path) -> None:
    graph.save(tmp_path / "model.onnx")
    with pytest.raises(UnsupportedModelError, match=why):
        OnnxEngine(tmp_path, threads=1)


def test_a_window_that_shows_late_is_refused_then(tmp_path: Path) -> None:
    Graph(window=20).save(tmp_path / "model.onnx")
    state = OnnxEngine(tmp_path, threads=1).open()
    state.feed(IDS[:20])
    with pytest.raises(UnsupportedModelError, match="slides"):
        state.feed(IDS[20:21])


def test_what_cannot_be_fed_leaves_the_cache_as_it_was(shared: OnnxEngine) -> None:
    state = shared.open()
    state.feed(IDS[:3])
    with pytest.raises(ContextFullError):
        state.feed([1] * (CONTEXT_TOKENS - 2))
    for ids in ([], [-1], [0, shared.vocab_size]):
        with pytest.raises(InternalError):
            state.feed(ids)
    for length in (-1, 4):
        with pytest.raises(InternalError):
            state.truncate(length)
    found = state.feed(IDS[3:6])
    np.testing.assert_allclose(found, shared.open().feed(IDS[:6]), atol=2e-4)


def test_the_file_follows_the_precision(tmp_path: Path) -> None:
    for name in ("model.onnx", "model_q4.onnx", "model_int8.onnx"):
        Graph().save(tmp_path / "onnx" / name)
    found = {p: OnnxEngine(tmp_path, precision=p, threads=1).description for p in ("int4", "int8")}
    assert "model_q4.onnx" in found["int4"]
    assert "model_int8.onnx" in found["int8"]


def test_a_named_file_is_the_one_that_runs(tmp_path: Path) -> None:
    for name in ("model_q4.onnx", "model_int8.onnx"):
        Graph().save(tmp_path / "onnx" / name)
    engine = OnnxEngine(tmp_path, decoder="onnx/model_int8.onnx", precision="int4", threads=1)
    assert "model_int8.onnx" in engine.description


def test_what_lies_beside_the_decoder_is_read_before_what_lies_above(tmp_path: Path) -> None:
    Graph().save(tmp_path / "cpu" / "int4" / "model.onnx")
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 5, "eos_token_id": 5}')
    beside = {"model": {"context_length": 48, "eos_token_id": [7], "decoder": {}}}
    (tmp_path / "cpu" / "int4" / "genai_config.json").write_text(json.dumps(beside))
    engine = OnnxEngine(tmp_path, decoder="cpu/int4/model.onnx", threads=1)
    assert engine.context_tokens == 48
    assert engine.eos_ids == {5, 7}


def test_tensors_may_have_names_of_their_own(growing: OnnxEngine, tmp_path: Path) -> None:
    names = {
        "input_ids": "tokens",
        "attention_mask": "mask_of",
        "position_ids": "places_of",
        "logits": "scores_of",
        "past_key_values.0.key": "past_k_0",
        "past_key_values.0.value": "past_v_0",
        "present.0.key": "now_k_0",
        "present.0.value": "now_v_0",
    }
    Graph(names=names).save(tmp_path / "model.onnx")
    with pytest.raises(UnsupportedModelError, match="needs "):
        OnnxEngine(tmp_path, threads=1)
    decoder = {
        "inputs": {
            "input_ids": "tokens",
            "attention_mask": "mask_of",
            "position_ids": "places_of",
            "past_key_names": "past_k_%d",
            "past_value_names": "past_v_%d",
        },
        "outputs": {
            "logits": "scores_of",
            "present_key_names": "now_k_%d",
            "present_value_names": "now_v_%d",
        },
    }
    (tmp_path / "genai_config.json").write_text(json.dumps({"model": {"decoder": decoder}}))
    state = OnnxEngine(tmp_path, threads=1).open()
    state.feed(IDS[:9])
    state.truncate(5)
    found = state.feed(IDS[5:20])
    np.testing.assert_allclose(found, growing.open().feed(IDS[:20]), atol=1e-4)


def test_folders_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no ONNX decoder"):
        OnnxEngine(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(FailedPreconditionError, match="cannot load"):
        OnnxEngine(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FailedPreconditionError, match="not JSON"):
        OnnxEngine(tmp_path)


def test_threads_must_be_positive(genai_folder: Path) -> None:
    with pytest.raises(InvalidRequestError, match="at least 1"):
        OnnxEngine(genai_folder, threads=0)
