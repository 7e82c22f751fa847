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
from verify_node.scheduled_session import BRANCH_SLOTS, ScheduledSession
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
    placed = ScheduledSession(SessionHandle(Inbox(), request), DraftPolicy(COST), ready_at)
    placed.place(cache, 10_000, ready_at)
    return placed


def planner(cost: StepCost, max_step_tokens: int, *, takes_trees: bool = True) -> StepPlanner:
    return StepPlanner(cost, max_step_tokens, takes_trees=takes_trees)


def running(ready_at: float = 0.0) -> ScheduledSession:
    return session(5, cached=5, answer=[1], ready_at=ready_at)


def test_a_prompt_lengthens_the_step_of_a_running_session_by_no_more_than_is_allowed() -> None:
    talking, long = running(), session(6600)
    plan = planner(COST, 512).plan([talking], [long], 1.0)
    assert [row.session for row in plan.rows] == [talking, long]
    assert plan.num_prompt_tokens == 20  # 10 ms
    # Three at once share the same tokens, two at a time.
    three = [session(6600), session(6600), session(6600)]
    plan = planner(COST, 512).plan([talking], three, 1.0)
    assert [row.num_tokens for row in plan.rows] == [1, 10, 10]


def test_with_nobody_running_a_step_takes_as_much_as_it_may() -> None:
    assert planner(COST, 512).plan([], [session(6600)], 1.0).num_prompt_tokens == 512


def test_prompts_are_read_however_slow_the_target_and_however_many_run() -> None:
    steep = StepCost([(1, 10.0), (2, 500.0), (64, 30_000.0)])
    plan = planner(steep, 512).plan([running()], [session(6600)], 1.0)
    assert plan.num_prompt_tokens == 2
    crowd = [running() for _ in range(40)]
    plan = planner(COST, 32).plan(crowd, [session(6600)], 1.0)
    assert plan.num_tokens == 32
    assert plan.num_prompt_tokens == 8


def test_prompts_take_turns_where_there_is_little_for_each() -> None:
    """Each costs a step the reading of all the text before it, however few tokens it adds."""
    slow = StepCost([(1, 10.0), (2, 12.0), (64, 136.0)])  # 2 ms a token: room for 5
    prompts = [session(6600, ready_at=at) for at in (3.0, 1.0, 2.0)]
    plan = planner(slow, 512).plan([running()], prompts, 9.0)
    assert [row.session for row in plan.rows[1:]] == [prompts[1]]
    assert plan.num_prompt_tokens == 5
    prompts[1].ready_at = 9.0  # it had its turn
    plan = planner(slow, 512).plan([running()], prompts, 9.5)
    assert [row.session for row in plan.rows[1:]] == [prompts[2]]


def test_those_that_wait_longest_come_first_when_there_are_too_many() -> None:
    crowd = [running(ready_at=9 - i) for i in range(10)]
    plan = planner(COST, 4).plan(crowd, [], 10.0)
    assert [row.session for row in plan.rows] == crowd[:-5:-1]


def test_what_prompts_cost_is_learned_from_the_steps_that_read_them() -> None:
    """Late in a long text a token costs more; the step stays bounded."""
    learning = planner(COST, 512)
    for _ in range(30):
        plan = learning.plan([running()], [session(6600)], 1.0)
        learning.observe(plan, 10.0 + 2.0 * plan.num_prompt_tokens)
    assert 4 <= plan.num_prompt_tokens <= 5  # 2 ms a token
    for _ in range(60):
        plan = learning.plan([running()], [session(6600)], 1.0)
        learning.observe(plan, 10.0 + 0.25 * plan.num_prompt_tokens)
    assert 36 <= plan.num_prompt_tokens <= 40
    # Steps that read prompts say nothing of what a step without them costs.
    assert COST.ms(1) == 10.0


def test_one_spoiled_session_does_not_spoil_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = drafting(CHAIN), drafting(CHAIN)

    def broken(*_: object) -> list[float]:
        raise ZeroDivisionError

    monkeypatch.setattr(bad.policy, "reaches", broken)
    plan = planner(COST, 64).plan([bad, good], [], 1.0)
    assert [(row.session, row.num_tokens) for row in plan.rows] == [(good, 3)]
    assert [(s, type(e)) for s, e in plan.failed] == [(bad, ZeroDivisionError)]


def drafting(draft: Sequence[DraftToken], *, left: int = 99) -> ScheduledSession:
    """With room for `left` tokens, the last of which is the target's."""
    talking = session(5, cached=104 - left, answer=range(100, 200 - left))
    talking.take(Offer(100 - left, tuple(draft), 3), 600)
    return talking


CHAIN = (DraftToken(7, 0.9, -1), DraftToken(8, 0.8, 0))
TREE = (
    DraftToken(7, 0.6, -1),
    DraftToken(8, 0.5, 0),
    DraftToken(9, 0.3, -1),
    DraftToken(5, 0.25, 1),
    DraftToken(6, 0.25, 2),
)
FREE = StepCost([(1, 1.0), (64, 1.0)])


def test_logits_are_asked_for_where_a_token_is_chosen() -> None:
    rows = planner(FREE, 64).plan([drafting(CHAIN)], [session(9, cached=4), session(300)], 1.0)
    assert [(row.num_tokens, row.row.num_logits) for row in rows.rows] == [(3, 3), (5, 1), (56, 0)]
    assert rows.rows[0].row.token_ids == [100, 7, 8]
    assert rows.rows[1].row.token_ids == [4, 5, 6, 7, 8]


def test_a_tree_hangs_below_the_last_committed_token() -> None:
    (row,) = planner(FREE, 64).plan([drafting(TREE)], [], 1.0).rows
    assert row.row.token_ids == [100, 7, 8, 9, 5, 6]
    assert row.row.parents == [-1, 0, 1, 0, 2, 3]
    assert row.draft == TREE
    assert row.row.num_logits == 6


def test_a_runner_of_chains_gets_the_path_that_most_is_expected_of() -> None:
    (row,) = planner(FREE, 64, takes_trees=False).plan([drafting(TREE)], [], 1.0).rows
    assert row.row.token_ids == [100, 7, 8, 5]
    assert row.row.parents is None
    assert [token.parent for token in row.draft] == [-1, 0, 1]


def test_no_path_reaches_the_last_token_of_the_answer() -> None:
    (row,) = planner(FREE, 64).plan([drafting(TREE, left=3)], [], 1.0).rows
    assert row.row.token_ids[1:] == [7, 8, 9, 6]
    (row,) = planner(FREE, 64).plan([drafting(TREE, left=1)], [], 1.0).rows
    assert row.row.token_ids[1:] == []


def test_a_wide_tree_near_the_end_fits_the_cache() -> None:
    wide = [DraftToken(token_id, 0.9, -1) for token_id in range(100)]
    (row,) = planner(FREE, 512).plan([drafting(wide, left=2)], [], 1.0).rows
    held = row.session.cache.length + row.num_tokens
    assert held == row.session.request.kv_tokens + BRANCH_SLOTS


@st.composite
def trees(draw: st.DrawFn) -> list[DraftToken]:
    tokens: list[DraftToken] = []
    for index in range(draw(st.integers(0, 9))):
        parent = draw(st.integers(-1, index - 1))
        most = tokens[parent].reach if parent >= 0 else 1.0
        tokens.append(DraftToken(index, most * draw(st.floats(0, 0.97)), parent))
    order = sorted(range(len(tokens)), key=lambda i: -tokens[i].reach)
    place = {index: at for at, index in enumerate(order)}
    return [
        DraftToken(tokens[i].token_id, tokens[i].reach, place.get(tokens[i].parent, -1))
        for i in order
    ]


@given(st.lists(trees(), min_size=1, max_size=3), st.integers(3, 20))
def test_what_is_checked_is_the_best_by_expected_rate(
    drafts: list[list[DraftToken]], max_tokens: int
) -> None:
    """Against all ways to cut the trees of all sessions at a least reach."""
    sessions = [drafting(draft) for draft in drafts]
    plan = planner(COST, max_tokens).plan(sessions, [], 1.0)

    def rate(reaches: Sequence[float]) -> float:
        num_rows = len(sessions)
        return (num_rows + sum(reaches)) / COST.ms(num_rows + len(reaches))

    every = sorted((t.reach for draft in drafts for t in draft), reverse=True)
    best = max(rate(every[:n]) for n in range(min(len(every), max_tokens - len(drafts)) + 1))
    checked = [token.reach for row in plan.rows for token in row.draft]
    assert rate(checked) == pytest.approx(best)
    assert plan.num_tokens <= max_tokens
    for row in plan.rows:
        assert all(token.parent < at for at, token in enumerate(row.draft))


def test_sessions_share_a_step_by_what_each_token_is_worth() -> None:
    sure, unsure = drafting(CHAIN), drafting([DraftToken(7, 0.3, -1), DraftToken(8, 0.2, 0)])
    for limit, tokens in ((2, [1, 1]), (3, [2, 1]), (4, [3, 1]), (5, [3, 2])):
        plan = planner(FREE, limit).plan([sure, unsure], [], 1.0)
        assert [row.num_tokens for row in plan.rows] == tokens
    steep = StepCost([(2, 10.0), (3, 13.0), (64, 200.0)])
    unsure.policy.bore(1, 0.0)  # its drafts have gained it something: it bears those of others
    plan = planner(steep, 64).plan([sure, unsure], [], 1.0)
    assert [row.num_tokens for row in plan.rows] == [3, 1]


def lengthened(sessions: Sequence[ScheduledSession], cost: StepCost) -> float:
    rows = planner(cost, 64).plan(sessions, [], 1.0).rows
    growth = cost.ms(sum(row.num_tokens for row in rows)) / cost.ms(len(rows)) - 1
    assert all(row.growth == pytest.approx(growth) for row in rows)
    return growth


def test_nobody_pays_for_the_drafts_of_others_for_long() -> None:
    """Over an answer, a session without drafts loses a few percent, however good those of others
    are; and a good one goes on where nobody is held up."""
    gaining, lacking = drafting(CHAIN), running()
    lost = 0.0
    for _ in range(100):
        growth = lengthened([gaining, lacking], COST)
        gaining.policy.bore(2, growth)
        lacking.policy.bore(0, growth)
        lost += growth
    assert 0 < lost / 100 <= 0.03
    assert lengthened([gaining], COST) > 0.05
    assert lengthened([gaining, drafting(CHAIN)], COST) > 0.1


def test_whoever_gains_bears_the_drafts_of_others() -> None:
    gaining, lacking = drafting(CHAIN), running()
    for _ in range(100):
        lacking.policy.bore(1, lengthened([gaining, lacking], COST))
        assert lengthened([gaining, lacking], COST) > 0.05


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
