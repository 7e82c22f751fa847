"""Whether a step waits for a drafter that takes turns with it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify_node.draft_turns import TURN_PATIENCE, DraftTurns
from verify_node.step_cost import StepCost
from verify_node.turn_record import TurnRecord

COST = StepCost([(1, 226.0), (16, 282.0)])


def new(record: TurnRecord | None = None) -> DraftTurns:
    turns = DraftTurns(COST, record or TurnRecord(COST))
    turns.begin()
    return turns


def begun(record: TurnRecord | None = None) -> DraftTurns:
    """The prompt was read, which took its time."""
    turns = new(record)
    turns.done(5_000.0)
    return turns


def next_ms(turns: DraftTurns) -> float:
    return turns.next_ms(1e6, 1_000)


def test_the_first_turn_is_worth_a_part_of_the_time_so_far_and_of_what_is_left() -> None:
    assert new().next_ms(2_000.0, tokens_left=63) == pytest.approx(800.0)
    assert new().next_ms(2_000.0, tokens_left=1) == pytest.approx(0.2 * 226.0)
    assert new().next_ms(2_000.0, tokens_left=0) == 0.0


def test_a_text_that_needs_longer_is_read_once_that_is_worth_it() -> None:
    turns = new()
    assert turns.next_ms(2_000.0, tokens_left=1_000) == pytest.approx(800.0)
    turns.done(0.0, needs_ms=1_200.0)
    assert turns.next_ms(2_100.0, tokens_left=999) == 0.0
    assert turns.next_ms(3_800.0, tokens_left=990) == pytest.approx(1_500.0)
    assert turns.next_ms(3_800.0, tokens_left=30) == 0.0, "too little is left"
    turns.done(1_200.0)
    assert 0.0 < turns.next_ms(5_000.0, tokens_left=989) < 226.0, "a turn as any other"


def test_whoever_takes_too_long_to_read_is_not_waited_for_at_once_again() -> None:
    turns = new()
    turns.waited_in_vain(turns.next_ms(2_000.0, tokens_left=1_000))
    turns.done(None)
    turns = new()
    turns.waited_in_vain(turns.next_ms(2_000.0, tokens_left=1_000))
    assert turns.next_ms(2_000.0, tokens_left=1_000) == 0.0
    assert turns.next_ms(5_000.0, tokens_left=1_000) == pytest.approx(1.25 * 2 * 800.0)


def test_a_turn_is_granted_while_it_brings_more_than_it_takes() -> None:
    """In the notation of `next_ms`."""
    turns = begun()
    for _ in range(40):
        turns.done(40.0)
        turns.brought(2)
    # Two tokens more than the step gives, less what checking four takes.
    worth = 3 * COST.ms(1) - COST.ms(5)
    assert next_ms(turns) == pytest.approx(worth / TURN_PATIENCE, rel=0.01)
    for _ in range(40):
        turns.done(40.0)
        turns.brought(0)
    assert next_ms(turns) == 0.0


@given(
    takes_ms=st.floats(0, 2_000),
    brings=st.lists(st.integers(0, 8), min_size=1, max_size=30),
)
def test_no_turn_is_granted_that_takes_longer_than_it_is_worth(
    takes_ms: float, brings: list[int]
) -> None:
    turns = begun()
    for num_accepted in brings:
        turns.done(takes_ms)
        turns.brought(num_accepted)
    wait_ms = next_ms(turns) * TURN_PATIENCE
    assert wait_ms == 0.0 or wait_ms > takes_ms * 0.999 or len(brings) < 4
    assert wait_ms <= max([*brings, 1]) * COST.ms(1)


def test_turns_of_no_use_are_tried_ever_more_rarely() -> None:
    turns = begun()
    tries = []
    for index in range(600):
        if next_ms(turns):
            tries.append(index)
            turns.done(60.0)
            turns.brought(0)
    at_first = list(itertools.takewhile(lambda index: index < 20, tries))
    assert 1 <= len(at_first) <= 14
    gaps = [after - before for before, after in itertools.pairwise(tries[len(at_first) - 1 :])]
    assert len(gaps) >= 3
    assert all(after >= 2 * before - 2 for before, after in itertools.pairwise(gaps))


def test_a_try_that_brings_something_has_turns_granted_again() -> None:
    turns = begun()
    while next_ms(turns):
        turns.done(60.0)
        turns.brought(0)
    while not next_ms(turns):
        pass
    turns.done(60.0)
    turns.brought(2)
    assert next_ms(turns) > 60.0


def test_a_drafter_that_is_never_done_is_waited_for_ever_more_rarely() -> None:
    turns = begun()
    tries = [index for index in range(600) if _waits_in_vain(turns)]
    assert len(tries) > 3
    gaps = [after - before for before, after in itertools.pairwise(tries)]
    assert all(after >= 2 * before - 2 for before, after in itertools.pairwise(gaps))


def _waits_in_vain(turns: DraftTurns) -> bool:
    wait = next_ms(turns)
    if wait:
        turns.waited_in_vain(wait)
    turns.done(None)
    return wait > 0


def test_sessions_are_passed_over_where_turns_brought_nothing_and_some_try_again() -> None:
    record = TurnRecord(COST)
    granted = []
    for _ in range(200):
        turns = new(record)
        granted.append(0.0)
        for token in range(64):
            waited = turns.next_ms(400.0 + 226.0 * token, 64 - token)
            if waited:
                turns.done(min(100.0, waited))
                turns.brought(0)
                granted[-1] += min(100.0, waited)
    costs = [ms / (64 * 226.0) for ms in granted]
    assert costs[0] > 0.0
    assert max(costs) < 0.1
    assert sum(costs[:20]) / 20 < 0.02
    assert 0 < sum(ms > 0 for ms in granted[20:]) < 20, "the assistant may be another by then"


def test_an_assistant_that_has_become_useful_is_used_again() -> None:
    record = TurnRecord(COST)
    for _ in range(60):
        record.took(60.0)
        record.brought(0)
    assert record.next_session() is None
    sessions = 0
    while record.next_session() is None:
        sessions += 1
    assert sessions <= 64
    for _ in range(20):
        record.took(60.0)
        record.brought(2)
    assert record.next_session() == pytest.approx(2.0, abs=0.3)


def test_the_less_drafts_save_the_less_may_be_read_for_them() -> None:
    record = TurnRecord(COST)
    assert record.saves == 0.2
    for brings, least, most in ((2, 0.2, 0.2), (0, 0.05, 0.05)):
        for _ in range(60):
            record.took(60.0)
            record.brought(brings)
        assert least <= record.saves <= most
