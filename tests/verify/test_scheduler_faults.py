"""Faults at every place of a step: other sessions go on, nobody waits for ever, nothing leaks."""

from __future__ import annotations

import gc
import random
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from anydraft.errors import InternalError, ResourceExhaustedError
from tests import models_zoo
from tests.verify.test_scheduler import (
    FACTS,
    FLAT_COST,
    NEW_TOKENS,
    Reader,
    decided,
    reference,
    scheduler_of,
    start,
)
from verify_node.runners import ragged_cache
from verify_node.runners.base import Row
from verify_node.runners.per_session import PerSessionRunner
from verify_node.runners.ragged_cache import RaggedCache
from verify_node.scheduled_session import ScheduledSession
from verify_node.scheduler import Scheduler, SchedulerLimits
from verify_node.step_planner import StepPlanner

PROMPTS = ([5, 6, 7], [300, 6, 7], [9, 10, 11])
"""The session with 300 in its prompt is the one that faults are injected for."""


class PanicError(BaseException):
    """As a panic of Rust code is: no Exception."""


def is_poisoned(session: ScheduledSession) -> bool:
    return 300 in session.request.prompt_ids


def in_planning(patch: pytest.MonkeyPatch, error: BaseException) -> None:
    begin = ScheduledSession.begin_step

    def broken(self: ScheduledSession, now: float, **rest: bool) -> float:
        if is_poisoned(self) and len(self.answer_ids) > 3:
            raise error
        return begin(self, now, **rest)

    patch.setattr(ScheduledSession, "begin_step", broken)


def in_choosing_drafts(patch: pytest.MonkeyPatch, error: BaseException) -> None:
    init = ScheduledSession.__init__

    def poison(self: ScheduledSession, *args: Any) -> None:
        init(self, *args)
        if is_poisoned(self):

            def broken(*_: object) -> None:
                raise error

            self.policy.reaches = broken  # type: ignore[method-assign]

    patch.setattr(ScheduledSession, "__init__", poison)


def in_hearing(patch: pytest.MonkeyPatch, error: BaseException) -> None:
    hear = ScheduledSession.hear

    def broken(self: ScheduledSession, *args: Any) -> None:
        if is_poisoned(self):
            raise error
        hear(self, *args)

    patch.setattr(ScheduledSession, "hear", broken)


def in_policy(patch: pytest.MonkeyPatch, error: BaseException) -> None:
    init = ScheduledSession.__init__

    def poison(self: ScheduledSession, *args: Any) -> None:
        init(self, *args)
        if is_poisoned(self):

            def broken(*_: object, **__: object) -> None:
                raise error

            self.policy.checked = broken  # type: ignore[method-assign]

    patch.setattr(ScheduledSession, "__init__", poison)


def in_listener(patch: pytest.MonkeyPatch, error: BaseException) -> None:
    commit = Reader.commit

    def broken(self: Reader, block: Any) -> Any:
        if self.truth[:1] == [-1]:
            raise error
        return commit(self, block)

    patch.setattr(Reader, "commit", broken)


def in_opened(patch: pytest.MonkeyPatch, error: BaseException) -> None:
    def broken(self: Reader, _: int) -> None:
        if self.truth[:1] == [-1]:
            raise error

    patch.setattr(Reader, "opened", broken)


PLACES: tuple[Callable[[pytest.MonkeyPatch, BaseException], None], ...] = (
    in_planning,
    in_choosing_drafts,
    in_hearing,
    in_policy,
    in_listener,
    in_opened,
)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", [ValueError("injected"), PanicError()], ids=["error", "panic"])
def test_a_fault_ends_the_session_that_it_touches(
    place: Callable[[pytest.MonkeyPatch, BaseException], None],
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = models_zoo.build("llama")
    truths = [reference(model, PROMPTS[0]), [-1], reference(model, PROMPTS[2])]
    place(monkeypatch, error)
    target = scheduler_of(model)
    try:
        readers = [start(target, p, t, "half") for p, t in zip(PROMPTS, truths, strict=True)]
        if place is in_hearing:
            readers[1].session.decline(0)
        assert all(reader.done.wait(60) for reader in readers)
        assert readers[0].ids == truths[0]
        assert readers[2].ids == truths[2]
        assert isinstance(readers[1].error, InternalError)
        assert readers[1].error.reason == "TARGET_FAILED"
        assert type(error).__name__ in str(readers[1].error)
        # Nothing holds on to the step in which it happened.
        assert readers[1].error.__traceback__ is None
        assert eventually(lambda: target.num_sessions == target.kv_tokens == 0)
        assert not target.stopped.done()
        assert start(target, PROMPTS[0], truths[0], "none").done.wait(60)
    finally:
        target.close()


def test_a_fault_in_waiting_ends_the_session_that_is_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: ScheduledSession) -> float:
        raise PanicError

    model = models_zoo.build("llama")
    target = scheduler_of(model)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(ScheduledSession, "wait_ms", broken)
            reader = start(target, PROMPTS[1], [], "silent")
            assert reader.done.wait(60)
            assert isinstance(reader.error, InternalError)
        assert eventually(lambda: target.num_sessions == target.kv_tokens == 0)
        good = start(target, PROMPTS[0], reference(model, PROMPTS[0]), "right")
        assert good.done.wait(60)
        assert good.ids == good.truth
    finally:
        target.close()


def test_a_listener_that_fails_to_hear_of_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf(self: Reader, error: Exception) -> None:
        self.done.set()
        raise PanicError

    monkeypatch.setattr(Reader, "failed", deaf)
    in_listener(monkeypatch, ValueError("injected"))
    model = models_zoo.build("llama")
    target = scheduler_of(model)
    try:
        assert start(target, PROMPTS[1], [-1], "none").done.wait(60)
        truth = reference(model, PROMPTS[0])
        good = start(target, PROMPTS[0], truth, "right")
        assert good.done.wait(60)
        assert good.ids == truth
    finally:
        target.close()


def test_a_fault_in_recovery_ends_one_session_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward fails, and then the cache of the session at fault cannot even be cut."""
    model = models_zoo.build("llama")
    truths = [reference(model, prompt) for prompt in PROMPTS]
    target = scheduler_of(model)
    forward, truncate = target.runner.forward, RaggedCache.truncate
    poisoned: list[int] = []

    def fail(rows: list[Row]) -> list[torch.Tensor]:
        for row in rows:
            if list(row.token_ids[:2]) == [300, 6]:
                poisoned.append(id(row.cache))
                raise RuntimeError("out of memory, say")
        return forward(rows)

    def cut(self: RaggedCache, length: int) -> None:
        if id(self) in poisoned:
            raise RuntimeError("and now this")
        truncate(self, length)

    monkeypatch.setattr(target.runner, "forward", fail)
    monkeypatch.setattr(RaggedCache, "truncate", cut)
    try:
        readers = [start(target, p, t, "right") for p, t in zip(PROMPTS, truths, strict=True)]
        assert all(reader.done.wait(60) for reader in readers)
        assert [reader.ids for reader in readers] == [truths[0], [], truths[2]]
        assert isinstance(readers[1].error, InternalError)
        assert eventually(lambda: target.num_sessions == 0)
    finally:
        target.close()


@contextmanager
def a_step_thread_that_ends(patch: pytest.MonkeyPatch, how: str) -> Iterator[Scheduler]:
    """After a few steps."""
    model = models_zoo.build("llama")
    target = scheduler_of(model)
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1
        if steps > 8:
            raise RuntimeError("injected")

    if how == "planning":
        plan = StepPlanner.plan

        def broken_plan(self: StepPlanner, *args: Any, **kwargs: Any) -> Any:
            count()
            return plan(self, *args, **kwargs)

        patch.setattr(StepPlanner, "plan", broken_plan)
    else:
        forward = target.runner.forward

        def broken_forward(rows: Any) -> Any:
            count()
            return forward(rows)

        patch.setattr(target.runner, "forward", broken_forward)
    try:
        yield target
    finally:
        target.close()


@pytest.mark.parametrize("how", ["planning", "model"])
def test_when_the_thread_cannot_go_on_everybody_hears_of_it(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that is no session's own, or a model that does not run any more."""
    with a_step_thread_that_ends(monkeypatch, how) as target:
        readers = [start(target, prompt, [], "none") for prompt in PROMPTS]
        assert all(reader.done.wait(60) for reader in readers)
        assert all(isinstance(reader.error, InternalError) for reader in readers)
        failure = target.stopped.exception(60)
        assert isinstance(failure, InternalError)
        assert failure.reason == "TARGET_STOPPED"
        assert "RuntimeError" in str(failure)
        late = start(target, PROMPTS[0], [], "none")
        assert late.done.wait(60)
        assert late.error is not None
        assert eventually(lambda: target.num_sessions == target.kv_tokens == 0)


def test_a_target_that_is_closed_has_stopped_without_a_fault() -> None:
    target = scheduler_of(models_zoo.build("llama"))
    target.close()
    assert target.stopped.result(60) is None


def test_a_per_session_forward_that_breaks_in_the_middle_leaves_the_others_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first layers of one session are written, the rest is not, and others had their turn."""
    model = models_zoo.build("bloom")
    asked = [decided(model, length, random.Random(length)) for length in (7, 12, 3)]
    runner = PerSessionRunner(model)
    target = Scheduler(runner, FLAT_COST, FACTS, SchedulerLimits(4096, 8, 24))
    last = model.transformer.h[-1]
    before, calls = last.forward, 0

    def fails_now_and_then(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 5 == 0:
            raise RuntimeError("in the middle of a forward")
        return before(*args, **kwargs)

    monkeypatch.setattr(last, "forward", fails_now_and_then)
    try:
        readers = [start(target, prompt, truth, "half") for prompt, truth in asked]
        assert all(reader.done.wait(60) for reader in readers)
        assert calls > 10
        for reader, (_, truth) in zip(readers, asked, strict=True):
            # Those that a fault did end got nothing wrong before.
            assert reader.ids == truth[: len(reader.ids)]
            assert reader.error is not None or len(reader.ids) == NEW_TOKENS
        assert any(reader.error is None for reader in readers)
    finally:
        target.close()


def eventually(holds: Callable[[], bool]) -> bool:
    """A listener hears of the end from within the step that then frees what is left."""
    deadline = time.monotonic() + 30
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.002)
    return holds()


@contextmanager
def collector_off() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("runner", ["ragged", "per-session"])
def test_keys_and_values_are_freed_by_an_explicit_act(
    runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's collector never runs, errors and handles are held on to: no tensor outlives its
    session, and one that is open keeps its own."""
    kept: list[weakref.ref[torch.Tensor]] = []
    if runner == "ragged":
        stored = ragged_cache._stored

        def remember(*args: Any) -> torch.Tensor:
            buffer = stored(*args)
            kept.append(weakref.ref(buffer))
            return buffer

        monkeypatch.setattr(ragged_cache, "_stored", remember)
        target = scheduler_of(models_zoo.build("llama"), keeps_prefixes=False)
    else:
        per_session = PerSessionRunner(models_zoo.build("llama"))
        target = Scheduler(per_session, FLAT_COST, FACTS, SchedulerLimits(4096, 8, 24))
        forward = per_session.forward

        def remember_layers(rows: Any) -> Any:
            logits = forward(rows)
            kept.extend(weakref.ref(layer.keys) for row in rows for layer in row.cache.inner.layers)
            return logits

        monkeypatch.setattr(per_session, "forward", remember_layers)
    in_listener(monkeypatch, ValueError("injected"))
    try:
        with collector_off():
            readers = []
            for index in range(16):
                truth = [-1] if index % 4 == 3 else []
                readers.append(start(target, [5, 6, 7 + index], truth, "none"))
                assert readers[-1].done.wait(60)
            opened = [start(target, [5, 6, 7], [], "none", new_tokens=400) for _ in range(2)]
            assert all(reader.admitted.wait(60) for reader in opened)
            for reader in opened:
                reader.session.close()
            assert start(target, [5, 6, 7], [], "none").done.wait(60)
            assert eventually(lambda: target.num_sessions == 0)
            assert len(kept) > 100
            assert eventually(lambda: all(ref() is None for ref in kept))
            assert len(readers) == 16
    finally:
        target.close()


def test_what_is_closed_while_it_opens_leaves_nothing() -> None:
    target = scheduler_of(models_zoo.build("llama"), max_sessions=4)
    try:
        busy = start(target, [5, 6, 7], [], "none", new_tokens=300)
        for index in range(200):
            start(target, [5] * (1 + index % 40), [], "none").session.close()
        after = start(target, [5, 6, 7], [], "none")
        assert after.done.wait(60)
        assert not isinstance(after.error, ResourceExhaustedError)
        busy.session.close()
        assert start(target, [5, 6, 7], [], "none").done.wait(60)
        assert eventually(lambda: target.num_sessions == target.kv_tokens == 0)
    finally:
        target.close()


def test_the_verdict_names_the_draft_that_was_checked() -> None:
    """Offers come in while steps run; each block names one that was made for its own place."""
    model = models_zoo.build("llama")
    truth = reference(model, PROMPTS[0])
    target = scheduler_of(model)
    try:
        reader = start(target, PROMPTS[0], truth, "right")
        assert reader.done.wait(60)
        checked = [block for block in reader.blocks if block.num_drafted]
        assert checked
        committed = 0
        for block in reader.blocks:
            # The reader numbers its offers by the length of the answer that they follow.
            assert block.newest_piece == (committed if block.num_drafted else 0)
            committed += len(block.token_ids)
    finally:
        target.close()


def test_a_running_session_has_a_part_in_every_step_beside_long_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = models_zoo.build("llama")
    target = scheduler_of(model, max_step_tokens=16)
    forward, steps = target.runner.forward, []

    def watch(rows: Any) -> Any:
        steps.append({id(row.cache): len(row.token_ids) for row in rows})
        return forward(rows)

    monkeypatch.setattr(target.runner, "forward", watch)
    try:
        runner = start(target, [5, 6, 7], [], "none", new_tokens=120)
        while not runner.ids:
            assert not runner.done.wait(0.001)
        longs = [start(target, [5, 6] * 150, [], "none", new_tokens=2) for _ in range(3)]
        assert runner.done.wait(60)
        assert all(reader.done.wait(60) for reader in longs)
    finally:
        target.close()
    first = next(iter(steps[0]))
    part = [index for index, step in enumerate(steps) if first in step]
    assert part == list(range(120)), "a step went by without the running session"
    assert max(sum(step.values()) for step in steps) <= 16
    beside = [step for step in steps[1:120] if len(step) > 1]
    assert len(beside) > 20, "the prompts were not read meanwhile"
