"""What a step runs: nobody starves, whatever prompts are read. Steps and tokens, never times."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify_node.draft_policy import DraftPolicy
from verify_node.inbox import Inbox, SessionHandle
from verify_node.sampling_settings import SamplingSettings
from verify_node.scheduled_session import ScheduledSession
from verify_node.step_cost import StepCost
from verify_node.step_planner import StepPlanner, shares
from verify_node.target import DraftToken, Offer, TargetRequest

COST = StepCost([(1, 10.0), (2, 10.5), (64, 41.5)])
"""A step is 10 ms, each further token half a millisecond."""


def session(
    prompt_tokens: int, *, cached: int = 0, answer: Sequence[int] = (), ready_at: float = 0.0
) -> ScheduledSession:
    request = TargetRequest(
        prompt_ids=tuple(range(prompt_tokens)),
        max_new_tokens=100,
        sampling=SamplingSettings(),
        eos_ids=(),
        num_logprobs=None,
        expects_drafts=False,
        committed_ids=tuple(answer),
    )
    cache: Any = SimpleNamespace(length=cached)
    handle = SessionHandle(Inbox(), request)
    return ScheduledSession(handle, cache, DraftPolicy(COST), ready_at)


def running(ready_at: float = 0.0) -> ScheduledSession:
    return session(5, cached=5, answer=[1], ready_at=ready_at)


def test_a_prompt_lengthens_the_step_of_a_running_session_by_no_more_than_is_allowed() -> None:
    talking, long = running(), session(6600)
    plan = StepPlanner(COST, 512).plan([talking], [long], 1.0, others_run=False)
    assert [row.session for row in plan.rows] == [talking, long]
    assert plan.num_prompt_tokens == 20  # 10 ms
    # Three at once share the same tokens, two at a time.
    three = [session(6600), session(6600), session(6600)]
    plan = StepPlanner(COST, 512).plan([talking], three, 1.0, others_run=False)
    assert [row.num_tokens for row in plan.rows] == [1, 10, 10]


def test_a_session_that_waits_for_a_draft_is_running_too() -> None:
    long = session(6600)
    plan = StepPlanner(COST, 512).plan([], [long], 1.0, others_run=True)
    assert plan.num_prompt_tokens == 20
    alone = StepPlanner(COST, 512).plan([], [long], 1.0, others_run=False)
    assert alone.num_prompt_tokens == 512


def test_prompts_are_read_however_slow_the_target_and_however_many_run() -> None:
    steep = StepCost([(1, 10.0), (2, 500.0), (64, 30_000.0)])
    plan = StepPlanner(steep, 512).plan([running()], [session(6600)], 1.0, others_run=False)
    assert plan.num_prompt_tokens == 2
    crowd = [running() for _ in range(40)]
    plan = StepPlanner(COST, 32).plan(crowd, [session(6600)], 1.0, others_run=False)
    assert plan.num_tokens == 32
    assert plan.num_prompt_tokens == 8


def test_prompts_take_turns_where_there_is_little_for_each() -> None:
    """Each costs a step the reading of all the text before it, however few tokens it adds."""
    slow = StepCost([(1, 10.0), (2, 12.0), (64, 136.0)])  # 2 ms a token: room for 5
    prompts = [session(6600, ready_at=at) for at in (3.0, 1.0, 2.0)]
    plan = StepPlanner(slow, 512).plan([running()], prompts, 9.0, others_run=False)
    assert [row.session for row in plan.rows[1:]] == [prompts[1]]
    assert plan.num_prompt_tokens == 5
    prompts[1].ready_at = 9.0  # it had its turn
    plan = StepPlanner(slow, 512).plan([running()], prompts, 9.5, others_run=False)
    assert [row.session for row in plan.rows[1:]] == [prompts[2]]


def test_those_that_wait_longest_come_first_when_there_are_too_many() -> None:
    crowd = [running(ready_at=9 - i) for i in range(10)]
    plan = StepPlanner(COST, 4).plan(crowd, [], 10.0, others_run=False)
    assert [row.session for row in plan.rows] == crowd[:-5:-1]


def test_what_prompts_cost_is_learned_from_the_steps_that_read_them() -> None:
    """Late in a long text a token costs more; the step stays bounded."""
    planner = StepPlanner(COST, 512)
    for _ in range(30):
        plan = planner.plan([running()], [session(6600)], 1.0, others_run=False)
        planner.observe(plan, 10.0 + 2.0 * plan.num_prompt_tokens)
    assert 4 <= plan.num_prompt_tokens <= 5  # 2 ms a token
    for _ in range(60):
        plan = planner.plan([running()], [session(6600)], 1.0, others_run=False)
        planner.observe(plan, 10.0 + 0.25 * plan.num_prompt_tokens)
    assert 36 <= plan.num_prompt_tokens <= 40
    # Steps that read prompts say nothing of what a step without them costs.
    assert COST.ms(1) == 10.0


def test_one_spoiled_session_does_not_spoil_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = running(), running()

    def broken(*_: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(bad.policy, "num_to_check", broken)
    plan = StepPlanner(COST, 64).plan([bad, good], [], 1.0, others_run=False)
    assert [row.session for row in plan.rows] == [good]
    assert [(s, type(e)) for s, e in plan.failed] == [(bad, ZeroDivisionError)]


def test_logits_are_asked_for_where_a_token_is_chosen() -> None:
    talking = running()
    talking.take(Offer(1, (DraftToken(7, 0.9), DraftToken(8, 0.9)), 3), 600)
    rows = StepPlanner(StepCost([(1, 1.0), (64, 1.0)]), 64).plan(
        [talking], [session(9, cached=4), session(300)], 1.0, others_run=False
    )
    assert [(row.num_tokens, row.row.num_logits) for row in rows.rows] == [(3, 3), (5, 1), (56, 0)]
    assert rows.rows[0].row.token_ids == [1, 7, 8]
    assert rows.rows[1].row.token_ids == [4, 5, 6, 7, 8]


@given(st.lists(st.integers(1, 500), max_size=12), st.integers(0, 600))
def test_shares(wanted: list[int], tokens: int) -> None:
    given_ = shares(wanted, tokens)
    assert sum(given_) == min(sum(wanted), tokens)
    assert all(0 <= g <= w for g, w in zip(given_, wanted, strict=True))
    if tokens >= len(wanted):
        assert all(given_)
    # Whoever gets less than it wants gets no less than the others, but for what a division leaves.
    unmet = [g for g, w in zip(given_, wanted, strict=True) if 0 < g < w]
    if unmet:
        assert min(unmet) >= max(given_) - 1
