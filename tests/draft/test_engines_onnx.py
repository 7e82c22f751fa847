"""Exports of ours and of others against a plain pass of the same weights, and what is refused."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from anydraft.errors import (
    ContextFullError,
    FailedPreconditionError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    UnsupportedModelError,
)
from anydraft.models import export_assistant, resolve_assistant_files, resolve_model
from anydraft.text.tokenizer import TextTokenizer
from draft_node.engines.base import Choices
from draft_node.engines.cache import Pass
from draft_node.engines.onnx import OnnxEngine
from tests import models_zoo
from tests.draft.conftest import CONTEXT_TOKENS
from tests.draft.engine_machine import (
    assert_choices,
    drive,
    log_softmax,
    torch_reference,
)
from tests.draft.onnx_graphs import POSITIONS, VOCABULARY, Graph, graph_reference
from tests.models import tiny

_REAL_TEXT = "Once upon a time there was a small river in the mountains. Every spring, the river"

IDS = [(37 * k + 11) % VOCABULARY for k in range(POSITIONS)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """A tiny model of that architecture as we export it, and the model."""

    @cache
    def export(name: str) -> tuple[Path, Any]:
        dense, out = tmp_path_factory.mktemp(name), tmp_path_factory.mktemp(f"{name}-onnx")
        model = _with_wide_heads(name)
        model.save_pretrained(dense)
        tiny.tokenizer().save_pretrained(dense)
        return export_assistant(resolve_model(str(dense)), out, "fp32"), model

    return export


def _with_wide_heads(name: str) -> Any:
    """GroupQueryAttention takes heads of 16 only."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    config = models_zoo.ALL[name]()
    config.hidden_size, config.head_dim = 64, 16
    config.query_pre_attn_scalar, config.initializer_range = 16, 0.3
    return AutoModelForCausalLM.from_config(config).float().eval()


@pytest.fixture(scope="module")
def tree(exported: Callable[[str], tuple[Path, Any]]) -> OnnxEngine:
    engine = OnnxEngine(exported("llama")[0], threads=1)
    engine.max_paths = 4
    return engine


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
    assert not shared.takes_trees
    assert shared.max_paths == 1
    assert shared.vocab_size == llama.config.vocab_size
    assert shared.context_tokens == CONTEXT_TOKENS
    assert shared.eos_ids == {llama.config.eos_token_id}
    assert "model.onnx, 1 threads" in shared.description


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3"])
def test_trees_are_what_their_paths_are(
    name: str, exported: Callable[[str], tuple[Path, Any]]
) -> None:
    folder, model = exported(name)
    engine = OnnxEngine(folder, threads=1)
    assert engine.takes_trees
    engine.max_paths, engine.chunk_tokens = 4, 5
    drive(engine, torch_reference(model), most_tokens=4 * models_zoo.WINDOW)


def test_chains_of_a_genai_export(shared: OnnxEngine, llama: Any) -> None:
    drive(shared, torch_reference(llama), most_tokens=40)


def test_chains_of_a_cache_that_grows(growing: OnnxEngine) -> None:
    assert not growing.shares_buffers
    assert growing.max_paths == 1
    drive(growing, graph_reference(), most_tokens=POSITIONS)


@pytest.mark.real
def test_a_real_tree() -> None:
    files = resolve_assistant_files("smollm2-135m-instruct")
    engine = OnnxEngine(files.folder, decoder=files.onnx_file, threads=1)
    assert engine.takes_trees
    engine.max_paths = 4
    ids = TextTokenizer.from_folder(files.folder).encode(_REAL_TEXT)
    state = engine.open()
    first = state.read(ids, wanted=True)
    assert first is not None
    paths = [(token_id,) for token_id in first.token_ids[:4]]
    for depth in range(6):
        found = state.expand(paths)
        for path, choices in zip(paths, found, strict=True):
            # Integer kernels round one row otherwise than several: by less than this in real text.
            assert_choices(choices, _in_one_read(engine, [*ids, *path]), 0.4)
        # The second of the four becomes the trunk now and then, and so changes its place.
        if depth % 2:
            ids += paths[1][:1]
            assert state.advance(paths[1][:1]) == 1
            found = [c for p, c in zip(paths, found, strict=True) if p[0] == paths[1][0]]
            paths = [path[1:] for path in paths if path[0] == paths[1][0]]
        children = [
            (*path, token_id)
            for path, choices in zip(paths, found, strict=True)
            for token_id in choices.token_ids[:4]
        ]
        paths = children[:: max(1, len(children) // 4)][:4]


def _in_one_read(engine: OnnxEngine, ids: list[int]) -> Any:
    """Log-probabilities of what follows, without a tree."""
    with closing(engine._new_cache()) as cache:
        return log_softmax(cache.run(Pass(ids, [len(ids) - 1]))[0])


def test_what_stays_of_a_tree_needs_no_pass(
    tree: OnnxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    state: Any = tree.open()
    state.read(IDS[:6], wanted=False)
    state.expand([(3,), (4,)])
    first = state.expand([(4, 5), (4, 6), (3, 5)])
    assert state.advance((4, 7)) == 1
    assert state._cache.length == 6 + 1 + 2
    monkeypatch.setattr(state._cache, "run", None)
    assert state.expand([(6,), (5,)]) == [first[1], first[0]]
    with pytest.raises(TypeError):
        state.expand([(3,)])


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("kind", ["tree", "shared", "growing"])
def test_a_closed_state_holds_no_memory(kind: str, request: pytest.FixtureRequest) -> None:
    engine: OnnxEngine = request.getfixturevalue(kind)
    state = engine.open()
    state.read(IDS[:5], wanted=False)
    state.expand([(1, 2)])
    cache: Any = state._cache  # type: ignore[attr-defined]
    held = list(cache._past.values()) if kind == "growing" else cache._buffers
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
    for use in (
        lambda: state.read(IDS[:1], wanted=True),
        lambda: state.expand([(1,)]),
        lambda: state.advance((1,)),
        lambda: state.truncate(0),
    ):
        with pytest.raises(InternalError, match="after its session ended"):
            use()


def test_sessions_do_not_see_each_other(tree: OnnxEngine, exported: Any) -> None:
    after = torch_reference(exported("llama")[1])
    states = [tree.open() for _ in range(3)]
    sequences = [IDS[k : k + 12] for k in range(3)]
    for state, ids in zip(states, sequences, strict=True):
        state.read(ids[:4], wanted=False)
    for at in range(4, 12):
        for state, ids in zip(states, sequences, strict=True):
            (found,) = state.expand([tuple(ids[4 : at + 1])])
            assert_choices(found, after(tuple(ids[: at + 1])), 1e-3)


def test_a_buffer_that_grows_keeps_what_it_holds(
    tree: OnnxEngine, exported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draft_node.engines.onnx_cache._FIRST_CAPACITY", 4)
    after = torch_reference(exported("llama")[1])
    state = tree.open()
    state.read(IDS[:2], wanted=False)
    for end in range(3, 40):
        one, other = state.expand([tuple(IDS[2:end]), (*IDS[2 : end - 1], 3)])
        assert_choices(one, after(tuple(IDS[:end])), 1e-3)
        assert_choices(other, after((*IDS[: end - 1], 3)), 1e-3)


def test_long_texts_are_read_in_chunks(
    growing: OnnxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing, "chunk_tokens", 5)
    state: Any = growing.open()
    sizes = []
    run = state._cache.run
    monkeypatch.setattr(state._cache, "run", lambda work: sizes.append(len(work.ids)) or run(work))
    found = state.read(IDS[:33], wanted=True)
    assert sizes == [5] * 6 + [3]
    assert_choices(found, graph_reference()(tuple(IDS[:33])), 1e-3)


@pytest.mark.parametrize(
    "graph", [Graph(keep_logits=True), Graph(cache_branch=True), Graph(half=True)]
)
def test_habits_of_exporters(graph: Graph, tmp_path: Path) -> None:
    graph.save(tmp_path / "model.onnx")
    engine = OnnxEngine(tmp_path, threads=1)
    found = engine.open().read(IDS[:20], wanted=True)
    expected = graph_reference()(tuple(IDS[:20]))
    assert_choices(found, expected, 0.05 if graph.half else 1e-3)
    drive(
        engine,
        graph_reference(),
        most_tokens=POSITIONS,
        examples=4,
        atol=0.05 if graph.half else 1e-3,
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
    state.read(IDS[:20], wanted=True)
    with pytest.raises(UnsupportedModelError, match="slides"):
        state.expand([(IDS[20],)])


def test_an_export_whose_trees_are_wrong_drafts_chains(
    exported: Callable[[str], tuple[Path, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = exported("qwen2")
    # Every branch sees every other.
    monkeypatch.setattr("draft_node.engines.onnx_tensors.MASKED", 0.0)
    engine = OnnxEngine(folder, threads=1)
    assert not engine.takes_trees
    assert engine.max_paths == 1
    drive(engine, torch_reference(model), most_tokens=40, examples=3)


@pytest.mark.parametrize("kind", ["tree", "shared"])
def test_what_cannot_be_read_leaves_the_state_as_it_was(
    kind: str, request: pytest.FixtureRequest
) -> None:
    engine: OnnxEngine = request.getfixturevalue(kind)
    state = engine.open()
    with pytest.raises(InternalError):
        state.expand([(1,)])
    state.read(IDS[:3], wanted=False)
    (before,) = state.expand([(5, 6)])
    with pytest.raises(ContextFullError):
        state.read([1] * (engine.context_tokens - 2), wanted=True)
    with pytest.raises(ContextFullError):
        state.expand([(1,) * (engine.context_tokens - 2)])
    for ids in ([], [-1], [0, engine.vocab_size]):
        with pytest.raises(InternalError):
            state.read(ids, wanted=True)
        with pytest.raises(InternalError):
            state.expand([tuple(ids)])
    for paths in ([], [(k,) for k in range(engine.max_paths + 1)]):
        with pytest.raises(InternalError):
            state.expand(paths)
    for length in (-1, 4):
        with pytest.raises(InternalError):
            state.truncate(length)
    assert state.length == 3
    assert state.advance((5, 6)) == 2
    found = state.read(IDS[3:6], wanted=True)
    assert found == engine.open().read([*IDS[:3], 5, 6, *IDS[3:6]], wanted=True)
    assert isinstance(before, Choices)


def test_ids_that_the_tokenizer_lacks_are_never_proposed(
    exported: Callable[[str], tuple[Path, Any]],
) -> None:
    folder, model = exported("llama")
    choices = OnnxEngine(folder, threads=1, id_limit=20).open().read(IDS[:9], wanted=True)
    assert choices is not None
    assert max(choices.token_ids) < 20
    expected = log_softmax(torch_reference(model)(tuple(IDS[:9]))[:20])
    assert_choices(choices, expected, 1e-3)


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


def test_tensors_may_have_names_of_their_own(tmp_path: Path) -> None:
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
    state.read(IDS[:9], wanted=False)
    state.truncate(5)
    found = state.read(IDS[5:20], wanted=True)
    assert_choices(found, graph_reference()(tuple(IDS[:20])), 1e-3)


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
