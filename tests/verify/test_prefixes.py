"""What an earlier answer has computed is not computed again, and changes no id."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from transformers import PreTrainedModel

from tests import models_zoo
from tests.greedy import decided_answer
from tests.verify.test_scheduler import (
    GREEDY,
    NEW_TOKENS,
    Reader,
    decided,
    drawn,
    scheduler_of,
    start,
)
from tests.verify.test_scheduler_faults import eventually
from verify_node.runners.base import Row
from verify_node.sampling_settings import SamplingSettings
from verify_node.scheduler import Scheduler
from verify_node.target import TargetRequest, TargetSession

TURNS = 5


def count_tokens(target: Scheduler) -> list[int]:
    """How many tokens each forward computes from now on."""
    forward, counts = target.runner.forward, []

    def counted(rows: Sequence[Row]) -> Any:
        counts.append(sum(len(row.token_ids) for row in rows))
        return forward(rows)

    target.runner.forward = counted  # type: ignore[method-assign]
    return counts


def ask(target: Scheduler, prompt: Sequence[int], truth: Sequence[int], mode: str) -> Reader:
    reader = start(target, prompt, truth, mode)
    assert reader.done.wait(60)
    assert reader.error is None
    # Its cache is kept after it has heard of the end.
    assert eventually(lambda: target.num_sessions == 0)
    return reader


def chat(model: PreTrainedModel, seed: int) -> list[tuple[list[int], list[int]]]:
    """Turns, each with all that was said before it as its prompt; the last id of an answer is
    never read, so what follows it counts as new, too."""
    rng = random.Random(seed)
    turns: list[tuple[list[int], list[int]]] = [decided(model, 30, rng)]
    while len(turns) < TURNS:
        said = [*turns[-1][0], *turns[-1][1]]
        prompt = [*said, *(rng.randrange(3, models_zoo.VOCABULARY) for _ in range(7))]
        answer = decided_answer(model, prompt, max_new_tokens=NEW_TOKENS, eos_token_id=None)
        if answer is not None:
            turns.append((prompt, answer))
    return turns


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "qwen3_moe"])
@pytest.mark.parametrize("mode", ["none", "bushy"])
def test_a_turn_of_a_chat_reads_what_is_new(name: str, mode: str) -> None:
    model = models_zoo.build(name)
    target = scheduler_of(model, max_step_tokens=64)
    counts = count_tokens(target)
    try:
        before = 0
        for prompt, truth in chat(model, 1):
            counts.clear()
            reader = ask(target, prompt, truth, mode)
            assert reader.ids == truth
            assert reader.cached_tokens == max(before - 1, 0)
            if mode == "none":
                assert sum(counts) == len(prompt) - reader.cached_tokens + NEW_TOKENS - 1
            before = len(prompt) + NEW_TOKENS
    finally:
        target.close()


def begin_alike(
    model: PreTrainedModel, system: Sequence[int], count: int, rng: random.Random
) -> list[tuple[list[int], list[int]]]:
    asked: list[tuple[list[int], list[int]]] = []
    while len(asked) < count:
        prompt = [*system, *(rng.randrange(3, models_zoo.VOCABULARY) for _ in range(9))]
        answer = decided_answer(model, prompt, max_new_tokens=NEW_TOKENS, eos_token_id=None)
        if answer is not None:
            asked.append((prompt, answer))
    return asked


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_many_begin_alike_at_once(name: str) -> None:
    """Each copies the beginning; what one writes behind it is not seen by the others."""
    model, rng = models_zoo.build(name), random.Random(name)
    system, truth = decided(model, 60, rng)
    asked = begin_alike(model, system, 6, rng)
    target = scheduler_of(model)
    try:
        ask(target, system, truth, "right")
        for _ in range(2):
            readers = [start(target, prompt, answer, "bushy") for prompt, answer in asked]
            for reader in readers:
                assert reader.done.wait(60)
                assert reader.ids == reader.truth
                assert reader.cached_tokens >= len(system)
        assert eventually(lambda: target.num_sessions == 0)
    finally:
        target.close()
    target.check()


def test_those_that_come_while_the_first_still_talks() -> None:
    """They copy from a session that goes on, behind the same beginning, in the same buffers."""
    model, rng = models_zoo.build("llama"), random.Random(2)
    system, truth = decided(model, 60, rng)
    asked = begin_alike(model, system, 3, rng)
    target = scheduler_of(model)
    try:
        first = start(target, system, truth, "bushy", new_tokens=300)
        while not first.ids:
            assert not first.done.wait(0.001)
        readers = [start(target, prompt, answer, "bushy") for prompt, answer in asked]
        for reader in readers:
            assert reader.done.wait(60)
            assert reader.ids == reader.truth
            assert reader.cached_tokens >= len(system)
        assert first.done.wait(60)
        assert first.ids[:NEW_TOKENS] == truth
    finally:
        target.close()


def test_sampled_ids_are_the_same() -> None:
    model, prompt = models_zoo.build("llama"), list(range(5, 45))
    settings = SamplingSettings(seed=4, temperature=0.7)
    truth = drawn(model, prompt, settings)
    target = scheduler_of(model)
    try:
        for cached in (0, len(prompt) - 1):
            reader = start(target, prompt, truth, "right", sampling=settings)
            assert reader.done.wait(60)
            assert reader.ids == truth
            assert reader.cached_tokens == cached
            assert eventually(lambda: target.num_sessions == 0)
    finally:
        target.close()


def test_what_was_cancelled_is_kept_as_far_as_it_was_read() -> None:
    model = models_zoo.build("llama")
    target = scheduler_of(model, max_step_tokens=16)
    prompt = [7] * 400
    try:
        left = start(target, prompt, [], "none")
        assert left.admitted.wait(60)
        left.session.close()
        assert eventually(lambda: target.num_sessions == 0)
        reader = start(target, prompt, [], "none", new_tokens=2)
        assert reader.done.wait(60)
        assert reader.cached_tokens < len(prompt)
        again = start(target, prompt, [], "none", new_tokens=2)
        assert again.done.wait(60)
        assert again.ids == reader.ids
    finally:
        target.close()


def test_what_failed_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    target = scheduler_of(models_zoo.build("llama"))
    commit = Reader.commit

    def fails_in_the_middle(self: Reader, block: Any) -> Any:
        if len(self.ids) > 9:
            raise ValueError("injected")
        return commit(self, block)

    prompt = list(range(5, 45))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Reader, "commit", fails_in_the_middle)
            failed = start(target, prompt, [], "none")
            assert failed.done.wait(60)
            assert failed.error is not None
            assert eventually(lambda: target.num_sessions == 0)
        reader = start(target, prompt, [], "none")
        assert reader.done.wait(60)
        assert reader.cached_tokens == 0
    finally:
        target.close()


def test_no_tenant_finds_what_another_has_said() -> None:
    target = scheduler_of(models_zoo.build("llama"))
    found: list[int] = []
    try:
        for tenant in ("a", "b", "", "a"):
            readers: list[Reader] = []

            def listen(session: TargetSession, readers: list[Reader] = readers) -> Reader:
                readers.append(Reader(session, [], "none", NEW_TOKENS))
                return readers[0]

            prompt = tuple(range(5, 45))
            request = TargetRequest(prompt, NEW_TOKENS, GREEDY, (), None, False, tenant=tenant)
            target.open(request, listen)
            assert readers[0].done.wait(60)
            assert eventually(lambda: target.num_sessions == 0)
            found.append(readers[0].cached_tokens)
    finally:
        target.close()
    assert found == [0, 0, 0, len(prompt) - 1]


@pytest.mark.parametrize("name", ["llama", "bloom"])
def test_where_none_are_kept_none_are_found(name: str) -> None:
    """Switched off, and on the per-session runner, which cannot."""
    target = scheduler_of(models_zoo.build(name), keeps_prefixes=name == "bloom")
    try:
        prompt = list(range(5, 45))
        assert [ask(target, prompt, [], "none").cached_tokens for _ in range(3)] == [0, 0, 0]
    finally:
        target.close()
