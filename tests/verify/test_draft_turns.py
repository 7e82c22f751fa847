"""Whether a step waits for a drafter that takes turns with it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify_node.draft_turns import DraftTurns
from verify_node.step_cost import StepCost

COST = StepCost([(1, 226.0), (16, 282.0)])


def begun() -> DraftTurns:
    """The prompt was read, which took its time."""
    turns = DraftTurns(COST)
    turns.done(5_000.0)
    return turns


def test_nobody_waits_before_the_target_has_read_the_prompt() -> None:
    assert DraftTurns(COST).max_wait_ms() == 0.0
    assert begun().max_wait_ms() > 0.0


def test_the_first_turn_is_worth_a_part_of_what_the_prompt_took_and_of_what_is_left() -> None:
    turns = DraftTurns(COST)
    turns.prompt_read(2_000.0, tokens_left=63)
    assert turns.max_wait_ms() == pytest.approx(800.0)
    turns.prompt_read(2_000.0, tokens_left=1)
    assert turns.max_wait_ms() == pytest.approx(0.2 * 226.0)
    turns.prompt_read(2_000.0, tokens_left=0)
    assert turns.max_wait_ms() == 0.0


def test_a_first_turn_that_takes_too_long_says_nothing_of_the_others() -> None:
    turns = DraftTurns(COST)
    turns.prompt_read(2_000.0, tokens_left=63)
    turns.waited_in_vain(800.0)
    assert turns.max_wait_ms() == 0.0
    turns.done(None)
    assert turns.max_wait_ms() == begun().max_wait_ms() > 0.0


def test_a_turn_is_waited_for_while_it_brings_more_than_it_takes() -> None:
    """In the notation of `max_wait_ms`."""
    turns = begun()
    for _ in range(40):
        turns.done(40.0)
        turns.brought(2)
    # Two tokens more than the step gives, less what checking four takes.
    worth = 3 * COST.ms(1) - COST.ms(5)
    assert turns.max_wait_ms() == pytest.approx(worth, rel=0.01)
    for _ in range(40):
        turns.done(40.0)
        turns.brought(0)
    assert turns.max_wait_ms() == 0.0


@given(
    takes_ms=st.floats(0, 2_000),
    brings=st.lists(st.integers(0, 8), min_size=1, max_size=30),
)
def test_nobody_waits_for_turns_that_take_longer_than_they_are_worth(
    takes_ms: float, brings: list[int]
) -> None:
    turns = begun()
    for num_accepted in brings:
        turns.done(takes_ms)
        turns.brought(num_accepted)
    wait_ms = turns.max_wait_ms()
    assert wait_ms == 0.0 or wait_ms > takes_ms * 0.999
    assert wait_ms <= max([*brings, 1]) * COST.ms(1)


def test_a_drafter_that_is_never_done_is_waited_for_ever_more_rarely() -> None:
    turns = begun()
    tries = []
    for index in range(600):
        if wait := turns.max_wait_ms():
            tries.append(index)
            turns.waited_in_vain(wait)
        turns.done(None)
    assert len(tries) > 3
    gaps = [after - before for before, after in itertools.pairwise(tries)]
    assert all(after >= 2 * before - 2 for before, after in itertools.pairwise(gaps))


def test_a_turn_that_was_in_time_counts_anew_those_that_were_missed() -> None:
    """Of eight turns that are missed in a row, waiting is tried again; of seven, not."""
    turns = begun()
    turns.done(5_000.0)
    for _ in range(7):
        turns.done(None)
    turns.done(5_000.0)
    turns.done(None)
    assert turns.max_wait_ms() == 0.0
    for _ in range(7):
        turns.done(None)
    assert turns.max_wait_ms() > 0.0
