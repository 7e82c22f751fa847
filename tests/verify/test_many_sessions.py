"""More sessions than there is memory for: all of them wait, are parked and go on, and say what each
would have said alone. Memory is checked after every step, and within it, when drafts are held."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest

from anydraft.errors import ResourceExhaustedError
from tests import models_zoo
from tests.sampled import drawn_answer
from tests.verify.test_scheduler import (
    GREEDY,
    NEW_TOKENS,
    Reader,
    decided,
    reference,
    scheduler_of,
    start,
)
from tests.verify.test_scheduler_faults import eventually
from verify_node import kv_memory
from verify_node.draft_policy import DraftPolicy
from verify_node.kv_memory import KvMemory
from verify_node.runners.base import Row
from verify_node.sampling_settings import SamplingSettings
from verify_node.scheduled_session import SessionState
from verify_node.scheduler import Scheduler

MANY, ROOM_FOR = 64, 16
DRAFTERS = ("none", "right", "half", "bushy")
WARM = {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1}


@cache
def asked(name: str) -> list[tuple[list[int], list[int], SamplingSettings]]:
    """Prompts, what the model answers to each alone, and how it is chosen: a quarter is drawn.
    Half of them begin alike."""
    model, rng = models_zoo.build(name), random.Random(name)
    found: list[tuple[list[int], list[int], SamplingSettings]] = []
    while len(found) < MANY:
        prompt, truth = decided(model, rng.randrange(3, 30), rng)
        sampling = GREEDY
        if len(found) % 4 == 3:
            prompt = [*found[0][0], *found[1][0], *prompt]
            seed, drawn = len(found), None
            while drawn is None:
                seed += MANY
                drawn = drawn_answer(model, prompt, NEW_TOKENS, seed=seed, **WARM)
            truth, sampling = drawn, SamplingSettings(seed=seed, **WARM)
        found.append((prompt, truth, sampling))
    return found


def tokens_of(prompt: Sequence[int]) -> int:
    return len(prompt) + NEW_TOKENS


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Checks memory after each step, and the caches as they are within it; counts what went on."""
    counts: Counter[str] = Counter()
    settle, release = Scheduler._step, KvMemory.release

    def checked_step(self: Scheduler, plan: Any) -> None:
        self.check()
        settle(self, plan)
        self.check()
        counts["steps"] += 1
        counts["most"] = max(counts["most"], len(plan.rows))

    def counted_release(self: KvMemory, session: Any, *, keep: bool) -> None:
        release(self, session, keep=keep)
        counts["parked"] += session.state is SessionState.PARKED

    # Answers are short here: with the room that is left for growth, nobody would be parked.
    monkeypatch.setattr(kv_memory, "_GROWTH_TOKENS", 0)
    monkeypatch.setattr(Scheduler, "_step", checked_step)
    monkeypatch.setattr(KvMemory, "release", counted_release)
    return counts


def check_within_steps(target: Scheduler) -> None:
    """With drafts in them, before those are dropped: that is when caches hold most."""
    forward = target.runner.forward

    def checked(rows: Sequence[Row]) -> Any:
        logits = forward(rows)
        target.check()
        return logits

    target.runner.forward = checked  # type: ignore[method-assign]


def start_all(target: Scheduler, name: str) -> list[Reader]:
    return [
        start(target, prompt, truth, DRAFTERS[index % 4], sampling=sampling)
        for index, (prompt, truth, sampling) in enumerate(asked(name))
    ]


def test_the_check_sees_a_cache_that_has_outgrown_its_blocks(seen: Counter[str]) -> None:
    """Else the tests below would prove nothing."""
    target = scheduler_of(models_zoo.build("llama"))
    forward = target.runner.forward

    def greedy(rows: Sequence[Row]) -> Any:
        for row in rows:
            target._memory._pool.give_back(next(s for s in target._placed if s.cache is row.cache))
        return forward(rows)

    target.runner.forward = greedy  # type: ignore[method-assign]
    start(target, [5, 6, 7], [], "none")
    try:
        failure = target.stopped.exception(60)
    finally:
        target.close()
    assert "cannot go on (RuntimeError)" in str(failure)


@pytest.mark.parametrize("name", ["llama", "gemma3", "bloom"])
@pytest.mark.parametrize("keeps_prefixes", [True, False])
def test_each_says_what_it_would_have_said_alone(
    name: str, keeps_prefixes: bool, seen: Counter[str]
) -> None:
    room = sum(sorted(tokens_of(prompt) for prompt, _, _ in asked(name))[:ROOM_FOR])
    target = scheduler_of(
        models_zoo.build(name),
        kv_tokens=room,
        max_sessions=MANY,
        max_step_tokens=64,
        keeps_prefixes=keeps_prefixes,
    )
    check_within_steps(target)
    try:
        readers = start_all(target, name)
        for reader in readers:
            assert reader.done.wait(120)
            assert reader.error is None
            assert reader.ids == reader.truth
        assert eventually(lambda: target.num_sessions == target.num_waiting == 0)
        assert eventually(lambda: target.kv_tokens == 0)
    finally:
        target.close()
    target.check()
    assert target.stopped.exception(1) is None
    assert seen["parked"] > 5
    assert seen["most"] > ROOM_FOR / 2
    # Prefixes are what goes first here, so there may be none even where they are kept.
    assert keeps_prefixes or not any(reader.cached_tokens for reader in readers)


@pytest.mark.parametrize("name", ["llama", "bloom"])
def test_whoever_is_cancelled_leaves_the_others_alone(name: str, seen: Counter[str]) -> None:
    """Waiting, parked, reading or running; and those in the line for too long are refused."""
    target = scheduler_of(
        models_zoo.build(name), kv_tokens=600, max_sessions=20, max_step_tokens=64, max_wait_s=0.5
    )
    check_within_steps(target)
    rng = random.Random(name)
    try:
        readers = start_all(target, name)
        cancelled = rng.sample(readers, MANY // 3)
        for reader in cancelled:
            reader.done.wait(rng.random() / 50)
            reader.session.close()
        staying = [reader for reader in readers if reader not in cancelled]
        for reader in staying:
            assert reader.done.wait(120)
            assert reader.ids == reader.truth[: len(reader.ids)]
            if reader.error is None:
                assert reader.ids == reader.truth
            else:
                assert isinstance(reader.error, ResourceExhaustedError)
                assert reader.error.reason == "NODE_FULL"
                assert reader.error.retry_after_s
                assert not reader.ids
        assert eventually(lambda: target.num_sessions == target.num_waiting == 0)
        assert eventually(lambda: target.kv_tokens == 0)
    finally:
        target.close()
    assert target.stopped.exception(1) is None
    assert seen["steps"] > NEW_TOKENS
    assert sum(reader.error is None for reader in staying) > 10


def test_the_first_come_is_never_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a part in every step, however the others are parked for it and for each other."""
    model = models_zoo.build("llama")
    target = scheduler_of(model, kv_tokens=400, max_step_tokens=64)
    forward, steps = target.runner.forward, []

    def watch(rows: Sequence[Row]) -> Any:
        steps.append({id(row.cache) for row in rows})
        return forward(rows)

    monkeypatch.setattr(target.runner, "forward", watch)
    try:
        first = start(target, [5, 6, 7], reference(model, [5, 6, 7]), "none", new_tokens=300)
        readers = [start(target, [5, 6, n], [], "none", new_tokens=200) for n in range(8, 13)]
        assert first.done.wait(120)
        assert all(reader.done.wait(120) for reader in readers)
    finally:
        target.close()
    oldest = next(iter(steps[0]))
    assert [oldest in step for step in steps[:300]] == [True] * 300
    assert all(len(reader.ids) == 200 for reader in readers)


def refused(reader: Reader) -> ResourceExhaustedError:
    assert reader.done.wait(60)
    assert isinstance(reader.error, ResourceExhaustedError)
    return reader.error


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scheduler]:
    """A target whose only place is taken by a session that waits for a draft, for a minute."""
    monkeypatch.setattr(DraftPolicy, "max_wait_ms", lambda _: 60_000.0)

    def build(**limits: float) -> Scheduler:
        target = scheduler_of(models_zoo.build("llama"), max_sessions=1, **limits)
        holder = start(target, [5, 6, 7], [], "silent")
        assert eventually(lambda: len(holder.ids) == 1)
        target.holder = holder  # type: ignore[attr-defined]
        return target

    return build


def test_whoever_waits_too_long_hears_of_it_though_nothing_else_happens(
    busy: Callable[..., Scheduler],
) -> None:
    target = busy(max_wait_s=0.2)
    try:
        error = refused(start(target, [5, 6, 7], [], "none"))
        assert error.reason == "NODE_FULL"
        assert error.retry_after_s
        assert eventually(lambda: target.num_waiting == 0)
    finally:
        target.close()


def test_the_line_has_an_end_and_is_left_in_order(busy: Callable[..., Scheduler]) -> None:
    target = busy(max_waiting=3)
    order: list[int] = []
    try:
        line = [start(target, [5, 6, 7], [], "none", new_tokens=3) for _ in range(3)]
        assert eventually(lambda: target.num_waiting == 3)
        assert refused(start(target, [5, 6, 7], [], "none")).reason == "NODE_FULL"
        assert refused(start(target, [5] * 5000, [], "none")).reason == "KV_TOO_SMALL"
        assert not any(reader.admitted.is_set() for reader in line)
        line[1].session.close()
        assert eventually(lambda: target.num_waiting == 2)
        late = start(target, [5, 6, 7], [], "none", new_tokens=3)
        for number, reader in enumerate((line[0], line[2], late)):
            opened = reader.opened

            def note(cached: int, number: int = number, opened: Any = opened) -> None:
                order.append(number)
                opened(cached)

            reader.opened = note  # type: ignore[method-assign]
        target.holder.session.close()  # type: ignore[attr-defined]
        assert all(reader.done.wait(60) for reader in (line[0], line[2], late))
        assert order == [0, 1, 2]
        assert not line[1].admitted.is_set()
        assert eventually(lambda: target.num_sessions == 0)
    finally:
        target.close()


def test_a_session_that_was_parked_draws_what_it_would_have(seen: Counter[str]) -> None:
    """A pool for one and a half: the second is parked within its answer, again and again."""
    model, prompt = models_zoo.build("llama"), [5, 6, 7, 8, 9]
    answers = ((s, drawn_answer(model, prompt, NEW_TOKENS, seed=s, **WARM)) for s in range(1, 99))
    seed, truth = next((s, answer) for s, answer in answers if answer is not None)
    target = scheduler_of(model, kv_tokens=64)
    try:
        settings = SamplingSettings(seed=seed, **WARM)
        readers = [start(target, prompt, truth, mode, sampling=settings) for mode in DRAFTERS]
        for reader in readers:
            assert reader.done.wait(60)
            assert reader.ids == truth
    finally:
        target.close()
    assert seen["parked"] > 2
