"""An answer that was begun elsewhere goes on as it would have: the ids of the undisturbed one."""

from __future__ import annotations

import random

import pytest

from tests import models_zoo
from tests.sampled import drawn_answer
from tests.verify.test_scheduler import NEW_TOKENS, decided, scheduler_of, start
from verify_node.draft_policy import DraftPolicy
from verify_node.draft_turns import DraftTurns
from verify_node.sampling_settings import SamplingSettings

BEGUN = (1, 7, NEW_TOKENS - 1)
DRAFTERS = ("none", "right", "jumbled")
WITH_PENALTIES = {
    "temperature": 0.8,
    "top_p": 0.95,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.2,
}
"""All that looks at the prefix, besides the draw's index."""


@pytest.mark.parametrize("name", ["qwen2", "gemma3", "bloom"])
def test_greedy(name: str) -> None:
    """All of them at once, in steps that are shorter than prompt and beginning."""
    model = models_zoo.build(name)
    prompt, truth = decided(model, 19, random.Random(name))
    target = scheduler_of(model, max_sessions=9)
    try:
        readers = [
            start(target, prompt, truth, mode, committed=truth[:at])
            for mode in DRAFTERS
            for at in BEGUN
        ]
        for reader in readers:
            assert reader.done.wait(60)
            assert reader.ids == truth
    finally:
        target.close()


@pytest.mark.parametrize("name", ["llama", "bloom"])
def test_sampled(name: str) -> None:
    model, prompt = models_zoo.build(name), [5, 6, 7, 8, 9]
    found = (
        (seed, drawn_answer(model, prompt, NEW_TOKENS, seed=seed, **WITH_PENALTIES))
        for seed in range(1, 100)
    )
    seed, truth = next((seed, answer) for seed, answer in found if answer is not None)
    settings = SamplingSettings(seed=seed, **WITH_PENALTIES)
    target = scheduler_of(model, max_sessions=9)
    try:
        readers = [
            start(target, prompt, truth, mode, committed=truth[:at], sampling=settings)
            for mode in DRAFTERS
            for at in BEGUN
        ]
        for reader in readers:
            assert reader.done.wait(60)
            assert reader.ids == truth
    finally:
        target.close()


def test_reading_the_beginning_is_no_round_of_drafting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time says nothing of what drafts are worth."""
    rounds: list[int] = []
    monkeypatch.setattr(DraftPolicy, "committed", lambda _, tokens, __: rounds.append(tokens))
    target = scheduler_of(models_zoo.build("llama"))
    try:
        reader = start(target, [5, 6, 7], [], "none", committed=[8, 9, 10])
        assert reader.done.wait(60)
    finally:
        target.close()
    assert len(rounds) == len(reader.blocks) - 1 == NEW_TOKENS - 4


def test_turns_begin_with_the_first_block_behind_the_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[int] = []
    begin = DraftTurns.begin

    def note(turns: DraftTurns) -> None:
        begun.append(1)
        begin(turns)

    monkeypatch.setattr(DraftTurns, "begin", note)
    target = scheduler_of(models_zoo.build("llama"))
    try:
        reader = start(target, [5, 6, 7], [], "none", committed=[8, 9, 10], in_turn=True)
        assert reader.done.wait(60)
        assert len(reader.blocks) > 3
    finally:
        target.close()
    assert begun == [1]
