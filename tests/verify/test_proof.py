"""No architecture is trusted by name: the right runner is found by measuring."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from anydraft.errors import UnsupportedModelError
from tests import models_zoo
from verify_node.runners import proof, ragged, ragged_attention
from verify_node.runners.attention_windows import narrowed
from verify_node.runners.base import Row
from verify_node.runners.per_session import PerSessionRunner
from verify_node.runners.proof import choose_runner
from verify_node.runners.ragged import RaggedRunner
from verify_node.runners.ragged_attention import Branches, RowSpan


@pytest.mark.parametrize("name", models_zoo.EXACT_RAGGED)
def test_exact_architectures_run_ragged(name: str) -> None:
    runner = choose_runner(models_zoo.build(name))
    assert runner.name == "ragged"
    assert runner.takes_trees


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3", "mixtral", "qwen3_moe", "gpt2"])
def test_low_precision_does_not_hide_an_exact_engine(name: str) -> None:
    assert choose_runner(models_zoo.build(name).to(torch.bfloat16)).name == "ragged"


@pytest.mark.parametrize("name", models_zoo.EXACT_PER_SESSION)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_others_are_found_out_and_run_one_by_one(name: str, dtype: torch.dtype) -> None:
    runner = choose_runner(models_zoo.build(name).to(dtype))
    assert runner.name == "per-session"
    assert not runner.takes_trees


def _siblings_are_seen(patch: pytest.MonkeyPatch) -> None:
    right = Branches.of

    def of(parents: Sequence[int] | None) -> Branches | None:
        branches = right(parents)
        if branches is not None:
            branches = replace(branches, sees=torch.ones_like(branches.sees).tril())
        return branches

    patch.setattr(ragged.Branches, "of", of)


def _positions_are_places(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RowSpan, "positions", property(lambda s: range(s.past, s.past + s.num_new)))


def _windows_count_places(patch: pytest.MonkeyPatch) -> None:
    right = ragged_attention._mask

    def by_place(span: RowSpan, window: int | None, *rest: Any) -> torch.Tensor:
        groups, first, _ = rest
        mask = right(span, None, *rest)
        if window is not None:
            places = torch.arange(span.past, span.past + span.num_new).repeat(groups)
            keys = torch.arange(first, span.past + span.num_new)
            mask = mask & (keys.unsqueeze(0) > places.unsqueeze(1) - window)
        return mask

    patch.setattr(ragged_attention, "_mask", by_place)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "fault", [_siblings_are_seen, _positions_are_places, _windows_count_places]
)
def test_what_is_exact_on_chains_only_is_served_without_trees(
    fault: Callable[[pytest.MonkeyPatch], None],
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault(monkeypatch)
    runner = choose_runner(models_zoo.build("mistral").to(dtype))
    assert runner.name == "ragged"
    assert not runner.takes_trees


@pytest.mark.parametrize("name", models_zoo.REFUSED)
def test_recurrent_state_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match="recurrent state") as refused:
        choose_runner(models_zoo.build(name))
    assert refused.value.reason == "MODEL_CANNOT_ROLL_BACK"


def test_an_encoder_decoder_is_refused() -> None:
    config = T5Config(vocab_size=64, d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=4)
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        choose_runner(T5ForConditionalGeneration(config))


def test_a_model_whose_cache_lies_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither way is exact: the error of both is measured, and the model is not served."""
    model = models_zoo.build("llama")
    real = proof._replay
    monkeypatch.setattr(
        proof,
        "_replay",
        lambda runner, texts: [t + torch.randn_like(t) for t in real(runner, texts)],
    )
    with pytest.raises(UnsupportedModelError, match="exactly"):
        choose_runner(model)


def test_windows_are_put_back() -> None:
    model = models_zoo.build("gemma3")
    modules = [m for m in model.modules() if getattr(m, "sliding_window", None)]
    assert modules
    with narrowed(model, 3):
        assert model.config.sliding_window == 3
        assert {m.sliding_window for m in modules} == {3}
    assert model.config.sliding_window == models_zoo.WINDOW
    assert {m.sliding_window for m in modules} == {models_zoo.WINDOW}


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3", "gpt_oss", "mistral"])
def test_ragged_logits_are_the_models_own(name: str) -> None:
    """Error in fp32, past the real windows: one text in chunks beside another, with rollback."""
    model = models_zoo.build(name)
    texts = [torch.randint(3, models_zoo.VOCABULARY, (n,)).tolist() for n in (50, 31)]
    with torch.inference_mode():
        plain = [model(input_ids=torch.tensor([t]), use_cache=False).logits[0] for t in texts]
    runner = RaggedRunner(model)
    caches = [runner.new_cache(len(text) + 8) for text in texts]
    runner.forward([Row(caches[0], texts[0][:20], 0), Row(caches[1], texts[1][:1], 0)])
    runner.forward([Row(caches[0], [9] * 15, 1)])
    caches[0].truncate(20)
    first, second = runner.forward(
        [Row(caches[0], texts[0][20:], 30), Row(caches[1], texts[1][1:], 5)]
    )
    assert torch.allclose(first, plain[0][20:], atol=1e-4)
    assert torch.allclose(second, plain[1][-5:], atol=1e-4)


def _paths(parents: Sequence[int], ids: Sequence[int]) -> list[list[int]]:
    """The ids from the root to each token of a tree."""
    paths: list[list[int]] = []
    for parent, token_id in zip(parents, ids, strict=True):
        paths.append([*(paths[parent] if parent >= 0 else []), token_id])
    return paths


@pytest.mark.parametrize("name", models_zoo.EXACT_RAGGED)
def test_each_token_of_a_tree_has_the_logits_of_its_own_path(name: str) -> None:
    """Random trees beside a chain and another tree, past the real windows; then a random path is
    kept and the next tree hangs below it."""
    model, rng = models_zoo.build(name), random.Random(name)
    runner = RaggedRunner(model)
    texts = [[rng.randrange(3, models_zoo.VOCABULARY) for _ in range(n)] for n in (17, 4, 9)]
    caches = [runner.new_cache(200) for _ in texts]
    runner.forward([Row(cache, text, 0) for cache, text in zip(caches, texts, strict=True)])
    for _ in range(3):
        rows = []
        for index, cache in enumerate(caches):
            ids = [rng.randrange(3, models_zoo.VOCABULARY) for _ in range(rng.randint(1, 14))]
            parents = [rng.randrange(-1, at) for at in range(len(ids))]
            if index == 1:
                parents = [at - 1 for at in range(len(ids))]
            rows.append(Row(cache, ids, len(ids), parents if index != 1 else None))
        outs = runner.forward(rows)
        for index, (row, out) in enumerate(zip(rows, outs, strict=True)):
            parents = row.parents or [at - 1 for at in range(len(row.token_ids))]
            paths = _paths(parents, row.token_ids)
            for path, logits in zip(paths, out, strict=True):
                with torch.inference_mode():
                    whole = torch.tensor([texts[index] + path])
                    want = model(input_ids=whole, use_cache=False).logits[0, -1]
                assert torch.allclose(logits, want, atol=2e-4 * float(want.std()))
            slots = []
            at = rng.randrange(len(paths))
            while at >= 0:
                slots.insert(0, at)
                at = parents[at]
            row.cache.keep(len(texts[index]), slots)
            texts[index] += paths[slots[-1]]
            assert row.cache.length == len(texts[index])


def test_what_is_no_tree_is_refused() -> None:
    runner = RaggedRunner(models_zoo.build("llama"))
    cache = runner.new_cache(20)
    for parents in ([0, 0], [-1, 2, 0], [-2, -1]):
        with pytest.raises(ValueError, match="cannot follow"):
            runner.forward([Row(cache, [5, 6, 7][: len(parents)], 1, parents)])
    runner.forward([Row(cache, [5, 6, 7, 8], 0)])
    for length, slots in ((2, [1, 0]), (2, [0, 0]), (2, [-1]), (2, [2]), (5, [])):
        with pytest.raises(ValueError, match=r"slots|has no"):
            cache.keep(length, slots)
    assert cache.length == 4


def test_one_cache_a_session_holds_chains_only() -> None:
    runner = PerSessionRunner(models_zoo.build("bloom"))
    cache = runner.new_cache(20)
    with pytest.raises(ValueError, match="chains only"):
        runner.forward([Row(cache, [5, 6], 1, [-1, -1])])
    runner.forward([Row(cache, [5, 6, 7, 8], 0)])
    with pytest.raises(ValueError, match="chains only"):
        cache.keep(1, [1])
    cache.keep(1, [0, 1])
    assert cache.length == 3
