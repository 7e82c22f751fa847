"""What is read of a generation_config, and that the documentation is right about every setting."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from anydraft.errors import UnsupportedModelError
from anydraft.v1.prompt_pb2 import SamplingParams
from verify_node.check_defaults import check_defaults
from verify_node.generation_defaults import GenerationDefaults, not_obeyed
from verify_node.sampling_settings import SamplingSettings

PAGE = Path(__file__).parents[2] / "docs" / "generation_config.md"
FATES = {"obeyed", "warned", "no effect"}
METADATA = {"transformers_version"}

EXAMPLES: dict[str, Any] = {
    "do_sample": True,
    "max_length": 100,
    "max_new_tokens": 9,
    "min_length": 7,
    "min_new_tokens": 3,
    "stop_strings": ["###"],
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.5,
    "min_p": 0.5,
    "top_h": 0.5,
    "typical_p": 0.5,
    "epsilon_cutoff": 0.1,
    "eta_cutoff": 0.1,
    "repetition_penalty": 1.5,
    "encoder_repetition_penalty": 1.5,
    "no_repeat_ngram_size": 3,
    "encoder_no_repeat_ngram_size": 3,
    "bad_words_ids": [[1, 2]],
    "sequence_bias": [[[1, 2], -1.0]],
    "renormalize_logits": True,
    "remove_invalid_values": True,
    "forced_bos_token_id": 1,
    "forced_eos_token_id": 1,
    "exponential_decay_length_penalty": [3, 1.1],
    "suppress_tokens": [1],
    "begin_suppress_tokens": [1],
    "eos_token_id": [1, 2],
    "num_beams": 4,
    "constraints": ["x"],
    "force_words_ids": [[1]],
    "penalty_alpha": 0.6,
    "dola_layers": "high",
    "guidance_scale": 1.5,
    "watermarking_config": {"bias": 2.0},
    "token_healing": True,
    "max_time": 3.0,
    "cache_implementation": "quantized",
}
"""A value of each setting that changes what `generate` says."""


def _table() -> dict[str, str]:
    rows = re.findall(r"^\| (`[^|]*`) \| ([a-z ]+) \|", PAGE.read_text(), flags=re.MULTILINE)
    return {name: fate for names, fate in rows for name in re.findall(r"`(\w+)`", names)}


def test_the_documentation_knows_every_setting() -> None:
    """A release of transformers with another setting must not add one that nobody looked at."""
    settings = {name for name in vars(GenerationConfig()) if not name.startswith("_")} - METADATA
    table = _table()
    assert set(table) == settings
    assert set(table.values()) == FATES


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_the_documentation_says_of_a_setting_is_so(name: str) -> None:
    config = GenerationConfig()
    if name == "temperature":
        config.do_sample = True
    before = GenerationDefaults.read(config)
    setattr(config, name, EXAMPLES[name])
    match _table()[name]:
        case "obeyed":
            assert GenerationDefaults.read(config) != before
            assert not_obeyed(config) == []
        case "warned":
            assert not_obeyed(config) == [name]
        case fate:
            raise AssertionError(f"{name} has no effect? {fate}")


def test_every_setting_that_matters_has_an_example() -> None:
    assert set(EXAMPLES) == {name for name, fate in _table().items() if fate != "no effect"}


def test_neutral_values_are_not_warned_of() -> None:
    assert not_obeyed(GenerationConfig()) == []
    neutral = GenerationConfig(num_beams=1, guidance_scale=1.0, cache_implementation="static")
    assert not_obeyed(neutral) == []


def test_what_a_request_leaves_unset_comes_from_the_model() -> None:
    defaults = GenerationDefaults.read(
        GenerationConfig(
            do_sample=True, temperature=0.6, top_k=20, top_p=0.8, repetition_penalty=1.1
        )
    )
    silent = SamplingSettings.resolve(SamplingParams(seed=1), defaults, 5)
    assert (silent.temperature, silent.top_k, silent.top_p) == (0.6, 20, 0.8)
    assert silent.repetition_penalty == 1.1
    asked = SamplingSettings.resolve(
        SamplingParams(temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0), defaults, 5
    )
    assert (asked.temperature, asked.top_k, asked.top_p) == (0.0, 0, 1.0)
    assert asked.repetition_penalty == 1.0
    assert silent.seed == 1
    assert (
        SamplingSettings.resolve(SamplingParams(), defaults, 5).seed
        != SamplingSettings.resolve(SamplingParams(), defaults, 5).seed
    )


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_every_seed_is_taken_as_it_is(seed: int) -> None:
    asked = SamplingParams(seed=seed)
    assert SamplingSettings.resolve(asked, GenerationDefaults(), 5).seed == seed


@pytest.mark.parametrize(
    ("values", "temperature"),
    [
        ({}, 0.0),
        ({"temperature": 0.6}, 0.0),
        ({"do_sample": True}, 1.0),
        ({"do_sample": True, "temperature": 0.6}, 0.6),
        ({"do_sample": True, "temperature": 0.0}, 0.0),
        ({"do_sample": True, "temperature": 1}, 1.0),
    ],
    ids=str,
)
def test_a_model_samples_only_if_it_says_so(values: dict, temperature: float) -> None:
    config = GenerationConfig()
    for name, value in values.items():
        setattr(config, name, value)
    assert GenerationDefaults.read(config).temperature == temperature


@pytest.mark.parametrize(
    ("values", "longest", "shortest"),
    [
        ({}, None, 0),
        ({"max_length": 30}, 20, 0),
        ({"max_length": 30, "max_new_tokens": 50}, 50, 0),
        ({"max_length": 8}, -2, 0),
        ({"min_length": 30}, None, 20),
        ({"min_length": 8}, None, 0),
        ({"min_length": 30, "min_new_tokens": 2}, None, 2),
        ({"min_length": 30, "min_new_tokens": 0}, None, 0),
    ],
    ids=str,
)
def test_lengths_of_new_tokens_go_before_lengths_of_all(
    values: dict, longest: int | None, shortest: int
) -> None:
    defaults = GenerationDefaults.read(GenerationConfig(**values))
    assert defaults.max_new_tokens_after(10) == longest
    assert defaults.min_new_tokens_after(10) == shortest


@pytest.mark.parametrize(
    ("said", "ids"), [(None, ()), (3, (3,)), ([3, 4], (3, 4)), ([], ()), (-1, ()), ([-1, 5], (5,))]
)
def test_ends_are_ids_one_several_or_none(said: object, ids: tuple[int, ...]) -> None:
    config = GenerationConfig()
    config.eos_token_id = said
    assert GenerationDefaults.read(config).eos_ids == ids


def test_one_stop_string_may_stand_without_a_list() -> None:
    defaults = GenerationDefaults.read(GenerationConfig(stop_strings="###"))
    assert defaults.stop_strings == ("###",)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"suppress_tokens": [10, 99_999]},
        {"begin_suppress_tokens": [2], "eos_token_id": 2, "forced_eos_token_id": 2},
        {"forced_bos_token_id": 4, "begin_suppress_tokens": [4]},
        {"bad_words_ids": [[2]], "eos_token_id": 2},
        {"bad_words_ids": []},
        {"repetition_penalty": 2, "temperature": 1, "do_sample": True, "top_k": 100},
        {"exponential_decay_length_penalty": [200, 1.01], "eos_token_id": 2},
        {"min_new_tokens": 5, "eos_token_id": [2, 99]},
    ],
    ids=str,
)
def test_a_config_that_can_be_obeyed_passes(values: dict) -> None:
    check_defaults(_config(values), 10)


@pytest.mark.parametrize(
    "values",
    [
        {"repetition_penalty": 0.0},
        {"repetition_penalty": "much"},
        {"top_k": "all"},
        {"min_p": 2.0, "do_sample": True},
        {"do_sample": True, "temperature": float("nan")},
        {"typical_p": 0.0, "do_sample": True},
        {"sequence_bias": [[[10], 1.0]]},
        {"sequence_bias": [[[], 1.0]]},
        {"bad_words_ids": [[3, 10]]},
        {"bad_words_ids": [3]},
        {"forced_bos_token_id": 10},
        {"forced_eos_token_id": 10},
        {"exponential_decay_length_penalty": [7, 1.1], "eos_token_id": 10},
        {"exponential_decay_length_penalty": [7], "eos_token_id": 2},
        {"suppress_tokens": list(range(10))},
        {"stop_strings": [""]},
        {"stop_strings": [3]},
        {"max_length": "long"},
    ],
    ids=str,
)
def test_a_config_that_cannot_be_obeyed_is_refused(values: dict) -> None:
    with pytest.raises(UnsupportedModelError, match=r"generation_config\.json\.$") as caught:
        check_defaults(_config(values), 10)
    assert caught.value.reason == "GENERATION_CONFIG_INVALID"


def _config(values: dict) -> GenerationConfig:
    """As it is after reading a file: transformers checks only part of it."""
    config = GenerationConfig()
    for name, value in values.items():
        setattr(config, name, value)
    return config
