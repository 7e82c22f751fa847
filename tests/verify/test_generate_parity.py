"""What a generation_config asks for, against transformers' own `generate`: greedy and drawn.

For drawn answers `generate` is given this node's draws in place of its generator's, so that the
ids must be the same, and with them every score that they were drawn by.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import count

import pytest
import torch
from transformers import PreTrainedModel

from anydraft.v1.prompt_pb2 import SamplingParams
from tests import models_zoo
from verify_node.generation_defaults import GenerationDefaults
from verify_node.sampling_settings import SamplingSettings
from verify_node.token_chooser import TokenChooser, keyed_uniform

PROMPT = [5, 6, 7, 8, 5, 6]
NEW_TOKENS = 20
SEED = 5


@cache
def _built() -> PreTrainedModel:
    return models_zoo.build("llama")


@pytest.fixture
def model() -> Iterator[PreTrainedModel]:
    """With a generation_config of the test's own."""
    built = _built()
    kept = copy.deepcopy(built.generation_config)
    yield built
    built.generation_config = kept


@cache
def _plain_answer() -> list[int]:
    """What the model says with no settings at all; the cases are made of it."""
    return _generate(_built(), PROMPT)


GREEDY: dict[str, Callable[[list[int]], dict]] = {
    "repetition": lambda _: {"repetition_penalty": 1.7},
    "huge repetition": lambda _: {"repetition_penalty": 1e38},
    "ngrams": lambda _: {"no_repeat_ngram_size": 2},
    "suppressed": lambda said: {"suppress_tokens": [said[0], said[4], 100_000]},
    "suppressed at the beginning": lambda said: {"begin_suppress_tokens": [said[0], 100_000]},
    "least new tokens": lambda said: {"min_new_tokens": 12, "eos_token_id": said[3:5]},
    "least length": lambda said: {"min_length": 14, "eos_token_id": said[3]},
    "new tokens before length": lambda said: {
        "min_new_tokens": 2,
        "min_length": 20,
        "eos_token_id": said[3],
    },
    "no end": lambda said: {"min_length": 14, "eos_token_id": []},
    "several": lambda said: {
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 3,
        "min_length": 20,
        "eos_token_id": said[2],
    },
    "bad words": lambda said: {
        "bad_words_ids": [[said[0]], said[1:3], said[4:7], [said[9]]],
        "eos_token_id": said[9],
    },
    "an end as a bad word": lambda said: {
        "bad_words_ids": [[said[9]], [said[2]]],
        "eos_token_id": said[9],
    },
    "sequence bias": lambda said: {
        "sequence_bias": [[[said[0]], -50.0], [said[2:4], -50.0], [[17], 2.5]]
    },
    "biased sequences as a dict": lambda said: {"sequence_bias": {(said[1],): -50.0, (3, 4): 9.0}},
    "forced end": lambda _: {"forced_eos_token_id": 9},
    "forced ends": lambda _: {"forced_eos_token_id": [9, 8], "eos_token_id": [8, 9]},
    "decay": lambda _: {"exponential_decay_length_penalty": (3, 1.5), "eos_token_id": 9},
    "decay, suppressed": lambda _: {
        "exponential_decay_length_penalty": [3, 1.5],
        "eos_token_id": [9, 11],
        "suppress_tokens": [9],
    },
    "words of the prompt": lambda _: {"encoder_repetition_penalty": 3.0},
    "ngrams of the prompt": lambda said: {"encoder_no_repeat_ngram_size": 1},
    "renormalized": lambda _: {"renormalize_logits": True, "repetition_penalty": 1.7},
    "repaired": lambda said: {"remove_invalid_values": True, "suppress_tokens": [said[0]]},
}
UNCHANGED = {"no end"}
"""Here the setting must do nothing, as in generate."""


@pytest.mark.parametrize("case", GREEDY)
def test_greedy_answers_are_those_of_generate(case: str, model: PreTrainedModel) -> None:
    plain = _plain_answer()
    settings = GREEDY[case](plain)
    want = _generate(model, PROMPT, **settings)
    if case not in UNCHANGED:
        assert want != plain[: len(want)], "the setting decides nothing here"
    assert _answer(model, PROMPT, SamplingParams()) == want


@pytest.mark.parametrize(
    "settings",
    [
        {"forced_bos_token_id": 9},
        {"forced_bos_token_id": 9, "begin_suppress_tokens": [9, 421]},
        {"begin_suppress_tokens": [9, 421]},
    ],
    ids=str,
)
def test_a_prompt_of_one_token_is_begun_as_generate_begins_it(
    settings: dict, model: PreTrainedModel
) -> None:
    want = _generate(model, [3], **settings)
    assert _answer(model, [3], SamplingParams()) == want
    assert (want[0] == 9) == ("forced_bos_token_id" in settings)


SAMPLED = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.8, "top_k": 20},
    {"temperature": 1e-37},
    {"top_p": 0.7},
    {"top_p": 1e-9},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"typical_p": 0.4},
    {"epsilon_cutoff": 0.01},
    {"eta_cutoff": 0.05},
    {"top_h": 0.5},
    {"renormalize_logits": True, "top_k": 5},
    {"repetition_penalty": 1.4, "temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    {"bad_words_ids": [[9], [5, 6]], "sequence_bias": [[[7], 3.0]], "typical_p": 0.9},
    {"remove_invalid_values": True, "suppress_tokens": [5, 9], "temperature": 0.5, "top_p": 0.8},
    {"exponential_decay_length_penalty": (2, 1.4), "eos_token_id": 4, "eta_cutoff": 0.001},
]


@pytest.mark.parametrize("settings", SAMPLED, ids=str)
def test_drawn_answers_are_those_of_generate(
    settings: dict, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    indices = count()

    def draw(probabilities: torch.Tensor, num_samples: int) -> torch.Tensor:
        cumulative = probabilities[0].double().cumsum(-1)
        u = keyed_uniform(SEED, next(indices)) * cumulative[-1]
        return torch.searchsorted(cumulative, u.reshape(1), right=True).reshape(1, num_samples)

    with monkeypatch.context() as patched:
        patched.setattr(torch, "multinomial", draw)
        want = _generate(model, PROMPT, do_sample=True, **{"top_k": 0, **settings})
    assert next(indices) == len(want)
    assert _answer(model, PROMPT, SamplingParams(seed=SEED)) == want


def _generate(model: PreTrainedModel, prompt: Sequence[int], **settings: object) -> list[int]:
    """With the settings in the model's generation_config, where they stay."""
    model.generation_config.eos_token_id = None
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    ids = torch.tensor([list(prompt)])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS)
    return out[0, len(prompt) :].tolist()


def _answer(model: PreTrainedModel, prompt: Sequence[int], asked: SamplingParams) -> list[int]:
    """This node's choices, one by one, of what the model's generation_config asks for."""
    defaults = GenerationDefaults.read(model.generation_config)
    settings = SamplingSettings.resolve(asked, defaults, len(prompt), NEW_TOKENS)
    chooser = TokenChooser(settings, prompt, defaults.eos_ids)
    answer: list[int] = []
    while len(answer) < NEW_TOKENS and not (answer and answer[-1] in defaults.eos_ids):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([[*prompt, *answer]])).logits[0, -1]
        answer.append(chooser.choose(logits.float(), answer))
    return answer
