"""What one choice depends on: keyed draws, settings, extremes, and logits that are not finite."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anydraft.errors import InternalError, InvalidRequestError
from verify_node import token_chooser
from verify_node.accept import accept
from verify_node.exact_prefix import ScoreOffsets
from verify_node.generation_defaults import ModelRules
from verify_node.logits_processors import penalties, warpers
from verify_node.sampling_settings import SamplingSettings
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
    got = accept(rows, draft, chain(draft), chooser, [4])
    assert got.token_ids == alone[1 : 1 + len(got.token_ids)]
    assert got.path == list(range(len(got.token_ids) - 1))
    assert got.token_ids[:-1] == draft[: len(got.path)]


def chain(draft: list[int]) -> range:
    return range(-1, len(draft) - 1)


def test_the_walk_goes_down_the_branch_that_the_target_takes() -> None:
    """Siblings, a branch below the wrong one, and the position of each choice."""
    chooser = TokenChooser(SamplingSettings(), [1, 2], [])
    says = torch.eye(6)
    draft, parents = [3, 4, 5, 5, 2], [-1, -1, 0, 1, 3]
    rows = says[torch.tensor([4, 1, 5, 0, 2, 0])]
    got = accept(rows, draft, parents, chooser, [0])
    assert got.token_ids == [4, 5, 2, 0]
    assert got.path == [1, 3, 4]
    assert got.positions == [0, 2, 4, 5]
    # What is not reached may be anything; what is reached may not.
    rows[3] = math.nan
    assert accept(rows, draft, parents, chooser, [0]).path == [1, 3, 4]
    rows[4] = math.nan
    with pytest.raises(InternalError):
        accept(rows, draft, parents, chooser, [0])


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = torch.tensor([2.0, 0.5, -1.0])
    scored = score_token(logits, 1, 2)
    want = torch.log_softmax(logits.double(), -1)
    assert scored.logprob == pytest.approx(want[1].item())
    assert [token_id for token_id, _ in scored.top] == [0, 1]
    assert score_token(torch.tensor([0.0, -math.inf]), 1, 0).logprob == -math.inf
    repaired = score_token(torch.tensor([0.0, math.nan]), 0, 2)
    assert [repaired.logprob, *(logprob for _, logprob in repaired.top)] == [-math.inf] * 3


GREEDY = {"temperature": 0.0}
EVERY_WAY = [
    GREEDY,
    {"temperature": 0.0, "repetition_penalty": 1.2},
    {"temperature": 0.0, "logit_bias": {2: 1.0}, "presence_penalty": 0.5},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.7, "top_k": 3, "top_p": 0.9, "min_p": 0.05},
]
NOT_FINITE = [
    [0.0, math.nan, 1.0, 2.0],
    [math.nan] * 4,
    [0.0, math.inf, 1.0, 2.0],
    [math.inf, math.nan, 1.0, 2.0],
    [math.inf, -math.inf, 1.0, 2.0],
    [-math.inf] * 4,
]


@pytest.mark.parametrize("bad", NOT_FINITE, ids=str)
@pytest.mark.parametrize("values", EVERY_WAY, ids=str)
def test_logits_that_are_not_finite_end_the_answer(values: dict, bad: list[float]) -> None:
    """At the first position and behind accepted drafts; what is not reached does not matter."""
    sound = [0.0, -30.0, 60.0, -30.0]
    for rows, draft in (([bad], []), ([sound, bad, sound], [2, 2])):
        chooser = TokenChooser(SamplingSettings(**values), [1, 2], [])
        with pytest.raises(InternalError, match="--dtype") as caught:
            accept(torch.tensor(rows), draft, chain(draft), chooser, [0])
        assert caught.value.reason == "LOGITS_NOT_FINITE"
    chooser = TokenChooser(SamplingSettings(**values), [1, 2], [])
    assert accept(torch.tensor([sound, bad]), [3], [-1], chooser, [0]).token_ids == [2]


@pytest.mark.parametrize("values", EVERY_WAY, ids=str)
def test_masked_ids_are_never_chosen(values: dict) -> None:
    """Minus infinity is how a model says that an id is none of its own."""
    rows = torch.full((1, 64), -math.inf)
    rows[0, 17] = -5.0
    chooser = TokenChooser(SamplingSettings(**values), [1, 2], [])
    assert accept(rows, [], [], chooser, [0]).token_ids == [17]


@pytest.mark.parametrize(
    "values",
    [
        {"repetition_penalty": 1e-38},
        {"repetition_penalty": 1e-38, "temperature": 1.0},
        {"rules": ModelRules(suppress_tokens=(0, 1, 2, 3))},
        {"rules": ModelRules(suppress_tokens=(0, 1, 2, 3)), "temperature": 1.0, "top_k": 2},
        {"rules": ModelRules(exponential_decay_length_penalty=(0, 1e30))},
        {"rules": ModelRules(exponential_decay_length_penalty=(0, 1e300))},
    ],
    ids=str,
)
def test_settings_that_leave_nothing_to_choose_end_the_answer(values: dict) -> None:
    chooser = TokenChooser(SamplingSettings(**values), [1, 2], [3])
    with pytest.raises(InvalidRequestError, match="finite score") as caught:
        accept(torch.tensor([[1.0, 5.0, 2.0, 9.0]]), [], [], chooser, [0, 0])
    assert caught.value.reason == "SCORES_NOT_FINITE"


@pytest.mark.parametrize("temperature", [1e-45, 1e-39, 2.0**-127, 2.0**-126, 1e-37, 1e-30])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 40.0, 1e30])
@pytest.mark.parametrize("shift", [0.0, -5.0])
def test_the_smallest_temperatures_are_greedy(
    temperature: float, scale: float, shift: float
) -> None:
    logits = (torch.tensor([0.5, 0.9, -1.0, 1.0, 0.2]) + shift) * scale
    settings = {"top_k": 3, "top_p": 0.9, "min_p": 0.1}
    for seed in range(20):
        for extra in ({}, settings):
            values = SamplingSettings(temperature=temperature, seed=seed, **extra)
            assert TokenChooser(values, [1], []).choose(logits, []) == 3


def test_where_scores_overflow_the_lowest_of_the_best_is_chosen() -> None:
    logits = torch.tensor([1.0, 40.0, 40.0])
    for temperature in (1e-45, 1e-37):
        drawn = {
            TokenChooser(SamplingSettings(temperature=temperature, seed=seed), [1], []).choose(
                logits, []
            )
            for seed in range(20)
        }
        assert drawn == {1}


@pytest.mark.parametrize(
    "values",
    [
        {"top_p": 1e-9},
        {"min_p": 1.0},
        {"top_k": 1},
        {"logit_bias": {1: 100.0, 2: -100.0}},
        {"temperature": 1e-6},
        {"repetition_penalty": 1e38},
    ],
    ids=str,
)
def test_extremes_leave_the_one_id_that_they_mean(values: dict) -> None:
    """The prompt has said id 2, the best."""
    logits = torch.tensor([0.5, 0.8, 1.0, -1.0])
    want = 1 if {"logit_bias", "repetition_penalty"} & set(values) else 2
    for seed in (0, 1, 2**63, 2**64 - 1):
        settings = SamplingSettings(**{"temperature": 0.01, "seed": seed, **values})
        assert TokenChooser(settings, [2], []).choose(logits, []) == want


def test_more_ids_than_there_are_may_be_kept() -> None:
    logits = torch.tensor([0.5, 0.8, 1.0, -1.0])
    for seed in (0, 1, 2**64 - 1):
        plain = TokenChooser(SamplingSettings(temperature=1.0, seed=seed), [2], [])
        wide = TokenChooser(SamplingSettings(temperature=1.0, seed=seed, top_k=2**32 - 1), [2], [])
        assert wide.choose(logits, [0]) == plain.choose(logits, [0])


def test_the_largest_draw_is_an_id_that_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must stay below the total, which no cumulative probability exceeds."""
    monkeypatch.setattr(token_chooser, "keyed_uniform", lambda seed, index: 1 - 2.0**-53)
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        logits = torch.randn(50, generator=generator)
        logits[40:] = -math.inf
        chooser = TokenChooser(SamplingSettings(temperature=1.0), [1], [])
        assert chooser.choose(logits, []) == 39


ANSWERS = st.lists(st.integers(0, 5), max_size=9)
COUNTING = SamplingSettings(
    temperature=1.0,
    repetition_penalty=1.3,
    presence_penalty=0.4,
    frequency_penalty=-0.3,
    logit_bias={2: 0.5, 4: -1.5},
    seed=7,
    rules=ModelRules(no_repeat_ngram_size=3, sequence_bias=(((1, 2), 2.0),)),
)


@given(calls=st.lists(st.tuples(st.integers(0, 9), ANSWERS), min_size=1, max_size=6))
def test_what_was_asked_before_does_not_matter(calls: list[tuple[int, list[int]]]) -> None:
    """Each answer keeps some of the one before it, as along a draft, or after a step back."""
    table = torch.randn(20, 6, generator=torch.Generator().manual_seed(1))
    kept, answer = TokenChooser(COUNTING, [1, 2, 3], []), []
    for num_kept, more in calls:
        answer = answer[:num_kept] + more
        logits = table[len(answer) % 20]
        assert kept.choose(logits, answer) == (
            TokenChooser(COUNTING, [1, 2, 3], []).choose(logits, answer)
        )


def test_biases_and_counts_are_what_they_say() -> None:
    offsets = ScoreOffsets({2: 0.5, 4: -1.5}, 0.25, 0.125)
    logits = torch.zeros(6)
    for answer in ([], [2], [2, 4, 2, 5], [5], [5, 5]):
        want = [{2: 0.5, 4: -1.5}.get(i, 0.0) for i in range(6)]
        for token_id in set(answer):
            want[token_id] -= 0.25 + 0.125 * answer.count(token_id)
        assert offsets.at(answer, logits).tolist() == want


class _CountedBias(dict[int, float]):
    looked_at = 0

    def items(self) -> Any:
        self.looked_at += len(self)
        return super().items()

    def __iter__(self) -> Iterator[int]:
        self.looked_at += len(self)
        return super().__iter__()

    def get(self, *key: Any) -> Any:
        self.looked_at += 1
        return super().get(*key)


def test_work_per_token_does_not_grow_with_the_biases() -> None:
    biases = _CountedBias(dict.fromkeys(range(500), -1.0))
    settings = SamplingSettings(logit_bias=biases, presence_penalty=0.5)
    chooser = TokenChooser(settings, [1], [])
    biases.looked_at, answer = 0, [0]
    for _ in range(20):
        answer.append(chooser.choose(torch.zeros(600), answer))
    assert biases.looked_at <= 21
    assert answer[1:] == list(range(500, 520))


def test_a_model_may_ask_that_its_logits_are_repaired() -> None:
    """Not where a draft may have spoilt them."""
    settings = SamplingSettings(rules=ModelRules(remove_invalid_values=True))
    chooser = TokenChooser(settings, [1, 2], [])
    assert accept(torch.tensor([[math.nan, -1.0, -2.0]]), [], [], chooser, []).token_ids == [0]
    assert accept(torch.tensor([[5.0, math.inf, -2.0]]), [], [], chooser, []).token_ids == [1]
    with pytest.raises(InternalError):
        accept(torch.tensor([[math.nan, -1.0, -2.0], [1.0, 2.0, 3.0]]), [0], [-1], chooser, [])


def test_processors_are_made_for_the_device_of_the_logits() -> None:
    """Some keep ids in a tensor, which must be where the scores are."""
    rules = ModelRules(encoder_repetition_penalty=2.0, eta_cutoff=0.1, suppress_tokens=(1,))
    settings = SamplingSettings(temperature=1.0, min_new_tokens=3, rules=rules)
    device = torch.device("meta")
    made = penalties(settings, [1, 2], [3], device) + warpers(settings, device)
    kept = [value for one in made for value in vars(one).values() if torch.is_tensor(value)]
    assert len(kept) == len(made) == 4
    assert {value.device for value in kept} == {device}
