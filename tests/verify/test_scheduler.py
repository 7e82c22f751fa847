"""The engine against `transformers` generate, with drafts of every kind and sessions at once."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from anydraft.errors import AnydraftError, ResourceExhaustedError, UnavailableError
from tests import models_zoo
from tests.greedy import decided_answer, generate
from tests.sampled import decided_seeds
from verify_node.draft_policy import DraftPolicy
from verify_node.draft_turns import DraftTurns
from verify_node.runners.proof import choose_runner
from verify_node.sampling_settings import SamplingSettings
from verify_node.scheduler import Scheduler, SchedulerLimits
from verify_node.step_cost import StepCost
from verify_node.target import (
    Block,
    Commit,
    DraftToken,
    Offer,
    TargetFacts,
    TargetRequest,
    TargetSession,
)
from verify_node.token_chooser import TokenChooser

NEW_TOKENS = 40
FACTS = TargetFacts("test", "float32", 512, models_zoo.VOCABULARY)
FLAT_COST = StepCost([(1, 1.0), (64, 1.0)])
"""Checking is free: every draft token that is offered is checked."""
GREEDY = SamplingSettings()


def scheduler_of(model: PreTrainedModel, **limits: float) -> Scheduler:
    values: Any = {"kv_tokens": 4096, "max_sessions": 8, "max_step_tokens": 24, **limits}
    return Scheduler(choose_runner(model), FLAT_COST, FACTS, SchedulerLimits(**values))


class Reader:
    """A listener that drafts along a text it knows, or makes up."""

    def __init__(
        self, session: TargetSession, truth: Sequence[int], mode: str, new_tokens: int
    ) -> None:
        self.session, self.truth, self.mode = session, list(truth), mode
        self.new_tokens = new_tokens
        self.ids: list[int] = []
        self.blocks: list[Block] = []
        self.error: AnydraftError | None = None
        self.admitted = threading.Event()
        self.done = threading.Event()
        self.random = random.Random(mode)

    def opened(self, cached_tokens: int) -> None:
        self.cached_tokens = cached_tokens
        self.admitted.set()

    def commit(self, block: Block) -> Commit:
        left = self.new_tokens - len(self.ids)
        kept = block.token_ids[:left]
        self.ids += kept
        self.blocks.append(block)
        if len(kept) == left:
            self.done.set()
            return Commit(left, "length")
        return Commit(len(kept), offer=Offer(len(self.ids), tuple(self._draft()), len(self.ids)))

    def failed(self, error: AnydraftError) -> None:
        self.error = error
        self.admitted.set()
        self.done.set()

    def _draft(self) -> list[DraftToken]:
        right = self.truth[len(self.ids) :][: self.random.randint(1, 7)]
        if self.mode in TREES:
            return _tree(right, self.mode, self.random)
        match self.mode:
            case "none" | "silent":
                ids = []
            case "all":
                ids = self.truth[len(self.ids) :]
            case "right":
                ids = right
            case "random":
                ids = [self.random.randrange(models_zoo.VOCABULARY) for _ in range(5)]
            case "half":
                ids = [*right[: len(right) // 2], 7, 8, 9]
            case "huge":
                ids = right + [5] * 200
            case "foreign":
                ids = [*right[:2], models_zoo.VOCABULARY + 10, -3]
            case _:
                raise ValueError(self.mode)
        return chain(ids)


def chain(ids: Sequence[int], probability: float = 0.9) -> list[DraftToken]:
    return [
        DraftToken(token_id, probability ** (depth + 1), depth - 1)
        for depth, token_id in enumerate(ids)
    ]


def _tree(right: Sequence[int], mode: str, rng: random.Random) -> list[DraftToken]:
    """The right path, with other branches at every place of it; by falling reach."""
    paths = {tuple(right[: depth + 1]) for depth in range(len(right))}
    match mode:
        case "bushy":  # two wrong siblings at each place, and something below one of them
            for depth in range(len(right)):
                for _ in range(2):
                    wrong = (*right[:depth], rng.randrange(models_zoo.VOCABULARY))
                    paths |= {wrong, (*wrong, 9)}
        case "wide":
            paths |= {(token_id,) for token_id in range(1000)}
        case "deep":
            paths |= {tuple([7] * (depth + 1)) for depth in range(60)}
        case "foreign tree":  # right ones below and beside ids that the model does not have
            foreign = models_zoo.VOCABULARY + 1
            paths |= {(foreign,), (-1,), (foreign, *right[:1]), (*right[:1], -2)}
        case "jumbled":  # nothing is right, or only by chance
            paths = {tuple(rng.choices(range(3, 600), k=depth)) for depth in (1, 1, 1, 2, 3, 5)}
            paths |= {path[:depth] for path in paths for depth in range(1, len(path))}
        case _:
            raise ValueError(mode)
    in_order = sorted(paths, key=lambda path: (len(path), rng.random()))
    places = {path: place for place, path in enumerate(in_order)}
    return [DraftToken(path[-1], 0.9 ** len(path), places.get(path[:-1], -1)) for path in in_order]


def reference(model: PreTrainedModel, prompt: Sequence[int]) -> list[int]:
    return generate(model, prompt, max_new_tokens=NEW_TOKENS, eos_token_id=None)


def decided(model: PreTrainedModel, length: int, rng: random.Random) -> tuple[list[int], list[int]]:
    """A random prompt, and the model's answer to it."""
    while True:
        prompt = [rng.randrange(3, models_zoo.VOCABULARY) for _ in range(length)]
        answer = decided_answer(model, prompt, max_new_tokens=NEW_TOKENS, eos_token_id=None)
        if answer is not None:
            return prompt, answer


def start(
    target: Scheduler,
    prompt: Sequence[int],
    truth: Sequence[int],
    mode: str,
    new_tokens: int = NEW_TOKENS,
    committed: Sequence[int] = (),
    sampling: SamplingSettings = GREEDY,
    in_turn: bool = False,
) -> Reader:
    request = TargetRequest(
        prompt_ids=tuple(prompt),
        max_new_tokens=new_tokens,
        sampling=sampling,
        eos_ids=(),
        num_logprobs=None,
        expects_drafts=mode != "none" or in_turn,
        drafts_in_turn=in_turn,
        committed_ids=tuple(committed),
    )
    readers: list[Reader] = []

    def listen(session: TargetSession) -> Reader:
        readers.append(Reader(session, truth, mode, new_tokens))
        readers[0].ids += committed
        return readers[0]

    target.open(request, listen)
    return readers[0]


MODES = ("none", "right", "random", "half", "huge", "foreign")
TREES = ("bushy", "wide", "deep", "foreign tree", "jumbled")


@pytest.mark.parametrize("name", [*models_zoo.EXACT_RAGGED, *models_zoo.EXACT_PER_SESSION])
def test_ids_are_those_of_generate(name: str) -> None:
    """Six sessions at once, each with another kind of drafter, prompts longer than a chunk."""
    model = models_zoo.build(name)
    rng = random.Random(name)
    asked = [decided(model, length, rng) for length in (1, 3, 17, 40, 9, 25)]
    truths = [truth for _, truth in asked]
    target = scheduler_of(model)
    try:
        readers = [
            start(target, prompt, truth, mode)
            for (prompt, truth), mode in zip(asked, MODES, strict=True)
        ]
        for reader, truth in zip(readers, truths, strict=True):
            assert reader.done.wait(60)
            assert reader.error is None
            assert reader.ids == truth
    finally:
        target.close()
    by_mode = dict(zip(MODES, readers, strict=True))
    assert sum(c.num_accepted for c in by_mode["right"].blocks) > NEW_TOKENS / 2
    assert len(by_mode["none"].blocks) == NEW_TOKENS
    assert len({tuple(t) for t in truths}) > 1, "the targets answer every prompt alike"


@pytest.mark.parametrize("name", [*models_zoo.EXACT_RAGGED, *models_zoo.EXACT_PER_SESSION])
@pytest.mark.parametrize("max_step_tokens", [24, 200])
def test_ids_are_those_of_generate_with_trees(name: str, max_step_tokens: int) -> None:
    """Trees of every kind at once, in steps that hold few of their tokens, and most of them."""
    model = models_zoo.build(name)
    rng = random.Random(name)
    asked = [decided(model, length, rng) for length in (1, 3, 17, 40, 9)]
    target = scheduler_of(model, max_step_tokens=max_step_tokens)
    try:
        readers = [
            start(target, prompt, truth, mode)
            for (prompt, truth), mode in zip(asked, TREES, strict=True)
        ]
        for reader, (_, truth) in zip(readers, asked, strict=True):
            assert reader.done.wait(60)
            assert reader.error is None
            assert reader.ids == truth
    finally:
        target.close()
    bushy, wide = readers[0].blocks, readers[1].blocks
    assert sum(block.num_accepted for block in bushy) > 0
    if target.runner.takes_trees:
        assert sum(block.num_accepted for block in bushy) > NEW_TOKENS / 2
        assert max(block.num_drafted - block.num_accepted for block in bushy) > 3
    assert max(block.num_drafted for block in wide) <= max_step_tokens


def drawn(model: PreTrainedModel, prompt: Sequence[int], settings: SamplingSettings) -> list[int]:
    """The sampled answer, from plain passes."""
    chooser, answer = TokenChooser(settings, prompt, ()), []
    for _ in range(NEW_TOKENS):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([[*prompt, *answer]])).logits[0, -1]
        answer.append(chooser.choose(logits.float(), answer))
    return answer


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "bloom"])
@pytest.mark.parametrize("mode", ["right", "bushy", "jumbled"])
def test_sampled_ids_do_not_depend_on_drafts(name: str, mode: str) -> None:
    model, prompt = models_zoo.build(name), [5, 6, 7, 8, 9]
    for seed in itertools.islice(decided_seeds(model, prompt, NEW_TOKENS, temperature=0.7), 2):
        settings = SamplingSettings(seed=seed, temperature=0.7)
        truth = drawn(model, prompt, settings)
        target = scheduler_of(model)
        try:
            reader = start(target, prompt, truth, mode, sampling=settings)
            assert reader.done.wait(60)
            assert reader.ids == truth
        finally:
            target.close()
        if mode == "right":
            assert sum(block.num_accepted for block in reader.blocks) > NEW_TOKENS / 3


def refusal(reader: Reader) -> ResourceExhaustedError:
    assert reader.done.wait(60)
    assert isinstance(reader.error, ResourceExhaustedError)
    assert reader.blocks == []
    return reader.error


def test_a_full_node_says_so_and_recovers() -> None:
    target = scheduler_of(
        models_zoo.build("llama"), kv_tokens=2 * (NEW_TOKENS + 4), max_sessions=2, max_waiting=0
    )
    try:
        first = start(target, [5, 6, 7, 8], [], "none")
        second = start(target, [5, 6, 7, 9], [], "none")
        refused = refusal(start(target, [5, 6, 7, 10], [], "none"))
        assert refused.reason == "NODE_FULL"
        assert refused.retry_after_s
        assert first.done.wait(60)
        assert second.done.wait(60)
        assert start(target, [5, 6, 7, 10], [], "none").done.wait(60)
        assert refusal(start(target, [5] * 200, [], "none")).reason == "KV_TOO_SMALL"
    finally:
        target.close()


def test_a_failing_session_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models_zoo.build("llama")
    prompts = [[5, 6, 7], [300, 6, 7], [9, 10, 11]]
    truths = [reference(model, prompt) for prompt in prompts]
    target = scheduler_of(model)
    forward = target.runner.forward

    def poisoned(rows):
        if any(300 in row.token_ids and row.cache.length == 0 for row in rows):
            raise RuntimeError("out of memory, say")
        return forward(rows)

    monkeypatch.setattr(target.runner, "forward", poisoned)
    try:
        readers = [start(target, p, t, "right") for p, t in zip(prompts, truths, strict=True)]
        assert all(reader.done.wait(60) for reader in readers)
        assert readers[0].ids == truths[0]
        assert readers[2].ids == truths[2]
        assert readers[1].error is not None
        assert "RuntimeError" in str(readers[1].error)
    finally:
        target.close()


def test_closing_ends_sessions_with_an_error() -> None:
    target = scheduler_of(models_zoo.build("llama"))
    reader = start(target, [5, 6, 7], [], "none")
    target.close()
    assert reader.done.wait(10)
    if len(reader.ids) < NEW_TOKENS:
        assert isinstance(reader.error, UnavailableError)
    assert isinstance(start(target, [5, 6, 7], [], "none").error, UnavailableError)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait would take a minute: waiting is said to have been paying."""
    monkeypatch.setattr(DraftPolicy, "max_wait_ms", lambda _: 60_000.0)


@pytest.mark.usefixtures("patient")
def test_no_draft_is_waited_for_before_the_last_token() -> None:
    """It is the target's own."""
    target = scheduler_of(models_zoo.build("llama"))
    try:
        assert start(target, [5, 6, 7], [], "silent", new_tokens=2).done.wait(30)
        waiting = start(target, [5, 6, 7], [], "silent", new_tokens=3)
        assert not waiting.done.wait(0.3)
    finally:
        target.close()


@pytest.mark.usefixtures("patient")
def test_no_draft_is_waited_for_beside_other_sessions() -> None:
    target = scheduler_of(models_zoo.build("llama"))
    try:
        waiting = start(target, [5, 6, 7], [], "silent", new_tokens=300)
        while not waiting.ids:
            assert not waiting.done.wait(0.01)
        assert start(target, [5, 6, 9], [], "none", new_tokens=60).done.wait(30)
        num_beside = len(waiting.ids)
        assert 50 <= num_beside < 300
        # Alone again, it waits; whoever says that no draft will come is not waited for.
        assert not waiting.done.wait(0.3)
        waiting.session.expect_drafts(False)
        assert waiting.done.wait(30)
    finally:
        target.close()


def test_a_turn_is_waited_for_with_a_draft_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter on the target's cores; what it says last is that it is done."""
    monkeypatch.setattr(DraftTurns, "next_ms", lambda *_: 60_000.0)
    model = models_zoo.build("llama")
    truth = reference(model, [5, 6, 7])
    target = scheduler_of(model)
    readers: list[Reader] = []

    def listen(session: TargetSession) -> Reader:
        readers.append(Reader(session, truth, "right", NEW_TOKENS))
        return readers[0]

    try:
        request = TargetRequest((5, 6, 7), NEW_TOKENS, GREEDY, (), None, True, drafts_in_turn=True)
        session = target.open(request, listen)
        reader = readers[0]
        before = -1
        while not reader.done.is_set():
            assert not reader.done.wait(0.05)
            if len(reader.ids) == before or not reader.ids:
                continue
            before = len(reader.ids)
            assert not reader.done.wait(0.2)
            assert len(reader.ids) == before
            session.decline(before)
            while len(reader.ids) == before:
                if reader.done.wait(0.01):
                    break
        assert reader.ids == truth
    finally:
        target.close()


def test_a_draft_that_holds_is_used_on_when_no_new_one_comes() -> None:
    """One offer for the whole answer: what is left of it after a step is checked in the next."""
    model = models_zoo.build("llama")
    truth = reference(model, [5, 6, 7])
    target = scheduler_of(model, max_step_tokens=8)

    class Once(Reader):
        def commit(self, block: Block) -> Commit:
            kept = super().commit(block)
            first = len(self.blocks) == 1
            return kept if first else replace(kept, offer=None)

    try:
        request = TargetRequest((5, 6, 7), NEW_TOKENS, GREEDY, (), None, True)
        readers: list[Reader] = []

        def listen(session: TargetSession) -> Reader:
            readers.append(Once(session, truth, "all", NEW_TOKENS))
            return readers[0]

        target.open(request, listen)
        assert readers[0].done.wait(30)
    finally:
        target.close()
    assert readers[0].ids == truth
    assert [len(block.token_ids) for block in readers[0].blocks] == [1, 8, 8, 8, 8, 7]
    assert {block.newest_piece for block in readers[0].blocks[1:]} == {1}
