"""Choices against transformers' own processors, and the distribution of keyed draws."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig

from anydraft.v1.prompt_pb2 import SamplingParams
from tests import models_zoo
from verify_node.accept import accept
from verify_node.sampling_settings import SamplingSettings, unsupported_defaults
from verify_node.token_chooser import TokenChooser, keyed_uniform, score_token


def chi_square_limit(freedom: int) -> float:
    """About the 99.99 % quantile (Wilson and Hilferty)."""
    return freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3


def test_draws_follow_the_targets_distribution() -> None:
    logits = torch.tensor([2.0, 0.5, -1.0, 1.0, 0.0, -3.0])
    temperature = 0.7
    draws = 20_000
    counts = torch.zeros(6)
    for seed in range(draws):
        chooser = TokenChooser(SamplingSettings(temperature=temperature, seed=seed), [1], [])
        counts[chooser.choose(logits, [])] += 1
    expected = torch.softmax(logits / temperature, -1) * draws
    statistic = ((counts - expected) ** 2 / expected).sum().item()
    assert statistic < chi_square_limit(5)


def test_draws_along_one_answer_are_independent() -> None:
    """One seed, many indices: pairs of neighbours are as even as they should be."""
    chooser = TokenChooser(SamplingSettings(temperature=1.0, seed=11), [1], [])
    logits = torch.zeros(4)
    draws = [chooser.choose(logits, [0] * index) for index in range(8_000)]
    pairs = torch.zeros(16)
    for left, right in itertools.pairwise(draws):
        pairs[4 * left + right] += 1
    expected = (len(draws) - 1) / 16
    assert ((pairs - expected) ** 2 / expected).sum().item() < chi_square_limit(15)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_uniforms_are_in_range_and_repeatable(seed: int, index: int) -> None:
    value = keyed_uniform(seed, index)
    assert 0 <= value < 1
    assert value == keyed_uniform(seed, index)


def test_the_key_is_part_of_the_contract() -> None:
    """Another replica, another release: the same draws. A change here breaks resumed sessions."""
    assert keyed_uniform(42, 7) == pytest.approx(KNOWN_DRAW, abs=0)


KNOWN_DRAW = 0.8614033402518924


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.7},
        {"no_repeat_ngram_size": 2},
        {"suppress_tokens": [3, 5, 9]},
        {"min_new_tokens": 12, "eos_token_id": [4, 8]},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "min_length": 20},
    ],
)
def test_greedy_with_processors_equals_generate(settings: dict) -> None:
    model = models_zoo.build("llama")
    model.generation_config.eos_token_id = settings.pop("eos_token_id", None)
    prompt = [5, 6, 7, 8, 5, 6]
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    ids = torch.tensor([prompt])
    want = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24)
    resolved = SamplingSettings.resolve(SamplingParams(), model.generation_config, len(prompt))
    eos = model.generation_config.eos_token_id or []
    chooser = TokenChooser(resolved, prompt, eos)
    answer: list[int] = []
    while len(answer) < 24 and not (answer and answer[-1] in eos):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([prompt + answer])).logits[0, -1]
        answer.append(chooser.choose(logits.float(), answer))
    assert answer == want[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_k": 2}, {0, 3}),
        ({"top_p": 0.5}, {0}),
        ({"min_p": 0.3}, {0, 3}),
        ({"logit_bias": {5: 100.0}}, {5}),
        ({"presence_penalty": 2.0, "temperature": 0.01}, {3}),
        ({"frequency_penalty": 0.7, "temperature": 0.01}, {3}),
    ],
)
def test_each_setting_narrows_as_it_says(settings: dict, kept: set[int]) -> None:
    """The answer so far is 0, 0: penalties for what was said push the best id down."""
    logits = torch.tensor([2.0, 0.5, -1.0, 1.0, 0.0, -3.0])
    values = {"temperature": 1.0, **settings}
    drawn = {
        TokenChooser(SamplingSettings(seed=seed, **values), [1], []).choose(logits, [0, 0])
        for seed in range(300)
    }
    assert drawn == kept


def test_what_a_request_leaves_unset_comes_from_the_model() -> None:
    defaults = GenerationConfig(
        do_sample=True, temperature=0.6, top_k=20, top_p=0.8, repetition_penalty=1.1
    )
    silent = SamplingSettings.resolve(SamplingParams(seed=1), defaults, 5)
    assert (silent.temperature, silent.top_k, silent.top_p) == (0.6, 20, 0.8)
    assert silent.repetition_penalty == 1.1
    asked = SamplingSettings.resolve(
        SamplingParams(temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0), defaults, 5
    )
    assert (asked.temperature, asked.top_k, asked.top_p) == (0.0, 0, 1.0)
    assert asked.repetition_penalty == 1.0
    greedy = SamplingSettings.resolve(SamplingParams(), GenerationConfig(temperature=0.6), 5)
    assert greedy.temperature == 0.0, "a generation_config without do_sample is greedy"
    assert silent.seed == 1
    assert greedy.seed != SamplingSettings.resolve(SamplingParams(), defaults, 5).seed


def test_ignored_defaults_are_named() -> None:
    assert unsupported_defaults(GenerationConfig()) == []
    assert unsupported_defaults(GenerationConfig(num_beams=4, typical_p=0.9)) == [
        "num_beams",
        "typical_p",
    ]


@given(
    draft=st.lists(st.integers(0, 5), max_size=6),
    seed=st.integers(0, 1000),
    temperature=st.sampled_from([0.0, 1.0]),
    penalty=st.sampled_from([1.0, 1.5]),
)
def test_what_is_drafted_never_changes_what_is_chosen(
    draft: list[int], seed: int, temperature: float, penalty: float
) -> None:
    """Accepting a draft gives the first tokens of the answer that single steps give."""
    table = torch.randn(7, 6, generator=torch.Generator().manual_seed(seed))

    def logits_after(answer: list[int]) -> torch.Tensor:
        return table[(sum(answer) + len(answer)) % 7]

    settings = SamplingSettings(temperature=temperature, repetition_penalty=penalty, seed=seed)
    chooser = TokenChooser(settings, [1, 2], [])
    alone: list[int] = [4]
    while len(alone) < 8:
        alone.append(chooser.choose(logits_after(alone), alone))
    rows = torch.stack([logits_after([4, *draft[:n]]) for n in range(len(draft) + 1)])
    got = accept(rows, draft, chooser, [4])
    assert got.token_ids == alone[1 : 1 + len(got.token_ids)]
    assert got.num_accepted == len(got.token_ids) - 1
    assert got.token_ids[:-1] == draft[: got.num_accepted]


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = torch.tensor([2.0, 0.5, -1.0])
    scored = score_token(logits, 1, 2)
    want = torch.log_softmax(logits.double(), -1)
    assert scored.logprob == pytest.approx(want[1].item())
    assert [token_id for token_id, _ in scored.top] == [0, 1]
    assert score_token(torch.tensor([0.0, -math.inf]), 1, 0).logprob == -math.inf
