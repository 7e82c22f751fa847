"""Promise 2 as arithmetic: what is believed, how long is waited, when drafting is given up."""

from __future__ import annotations

from random import Random

import pytest

from verify_node.draft_policy import DraftPolicy
from verify_node.draft_trial import DraftTrial
from verify_node.step_cost import StepCost
from verify_node.target import DraftToken

FLAT = StepCost([(1, 30.0), (64, 36.0)])
STEEP = StepCost([(1, 30.0), (64, 150.0)])
"""Sixteen tokens more double a step."""
SLOW = StepCost([(1, 226.0), (16, 282.0)])
CHAIN = [DraftToken(5 + depth, 0.8 ** (depth + 1), depth - 1) for depth in range(4)]
SIBLINGS = [DraftToken(5, 0.5, -1), DraftToken(6, 0.3, -1), DraftToken(7, 0.25, 0)]


def test_a_fresh_record_believes_what_the_drafter_says() -> None:
    assert DraftPolicy(FLAT).reaches(CHAIN) == pytest.approx([t.reach for t in CHAIN])
    assert DraftPolicy(FLAT).reaches(SIBLINGS) == pytest.approx([0.5, 0.3, 0.25])
    assert DraftPolicy(FLAT).reaches([DraftToken(5, 1.0, -1), DraftToken(6, 1.0, 0)])[1] < 1.0
    assert DraftPolicy(FLAT).reaches([DraftToken(5, 0.0, -1), DraftToken(6, 0.0, 0)]) == [0, 0]


def test_drafts_that_never_hold_are_soon_not_believed() -> None:
    policy = DraftPolicy(FLAT)
    for _ in range(12):
        policy.checked(CHAIN, [], was_awaited=True)
    assert max(policy.reaches(CHAIN)) < 0.1
    for _ in range(60):
        policy.checked(CHAIN, [0, 1, 2, 3], was_awaited=True)
    assert policy.reaches(CHAIN)[0] > 0.8


def test_a_drafter_that_is_better_than_it_says_is_believed_more() -> None:
    """It gives the right token 0.5, and is right all the time."""
    policy = DraftPolicy(FLAT)
    for _ in range(40):
        policy.checked(SIBLINGS, [0, 2], was_awaited=True)
    assert policy.reaches(SIBLINGS)[0] > 0.6


def test_siblings_are_judged_together() -> None:
    """One of them held, as often as they said: 0.5 and 0.3 of 1."""
    random, policy = Random(3), DraftPolicy(FLAT)
    for _ in range(400):
        draw = random.random()
        policy.checked(
            SIBLINGS[:2], [0] if draw < 0.5 else [1] if draw < 0.8 else [], was_awaited=True
        )
    assert policy.reaches(SIBLINGS)[0] == pytest.approx(0.5, abs=0.12)


def test_what_is_not_believed_is_still_checked_now_and_then() -> None:
    """Where a token more is nearly free always, and ever more rarely where it costs."""
    gaps = []
    for cost, num_sessions in ((FLAT, 1), (STEEP, 1), (STEEP, 16)):
        policy = DraftPolicy(cost)
        policy.checked(CHAIN, [], was_awaited=True)
        rounds = 0
        while not policy.probe_is_due(num_sessions):
            policy.checked([], [], was_awaited=True)
            rounds += 1
        gaps.append(rounds)
        added = cost.ms(num_sessions + 1) / cost.ms(num_sessions) - 1
        assert added * num_sessions / max(rounds, 1) < 0.011
    assert gaps[0] <= 1 < gaps[1] < gaps[2]


def settled(cost: StepCost, *, arrival_ms: float, tokens: int = 2) -> DraftPolicy:
    """A session that takes steps without waiting, two thirds of which accept something."""
    policy = DraftPolicy(cost)
    for index in range(60):
        policy.arrived(arrival_ms)
        policy.checked(CHAIN, [0] if index % 3 else [], was_awaited=True)
        policy.committed(tokens, cost.ms(5))
    return policy


def test_nobody_waits_at_first() -> None:
    """A short answer is over before a wait in vain could be made up for."""
    assert DraftPolicy(SLOW).max_wait_ms() == 0.0
    policy = DraftPolicy(SLOW)
    policy.arrived(5_000.0)  # the time that the drafter took to read the prompt
    assert policy.max_wait_ms() == 0.0


def test_turns_are_worth_what_drafts_brought_that_were_waited_for() -> None:
    policy = DraftPolicy(SLOW)
    policy.turns.begin()
    policy.turns.done(5_000.0)
    at_first = policy.turns.next_ms(1e6, 100)
    for _ in range(10):
        policy.checked(CHAIN, [0, 1], was_awaited=False)
    assert policy.turns.next_ms(1e6, 100) == at_first, "nobody waited for these"
    for _ in range(10):
        policy.checked(CHAIN, [0, 1], was_awaited=True)
    assert policy.turns.next_ms(1e6, 100) > at_first > 0


def test_a_turn_whose_draft_is_not_even_checked_has_brought_nothing() -> None:
    policy = DraftPolicy(SLOW)
    policy.turns.begin()
    policy.turns.done(5_000.0)
    before = policy.turns.next_ms(1e6, 100)
    policy.checked([], [], was_awaited=True)
    assert policy.turns.next_ms(1e6, 100) < before


def test_waiting_pays_on_a_slow_target_and_not_on_a_fast_one() -> None:
    """A piece in 10 ms of a step of 226, and in 8 to 10 of a step of 30."""
    wait = settled(SLOW, arrival_ms=12.0).max_wait_ms()
    assert 12.0 < wait < 226.0
    assert settled(FLAT, arrival_ms=12.0).max_wait_ms() == 0.0
    assert settled(SLOW, arrival_ms=200.0).max_wait_ms() == 0.0


def test_a_drafter_that_never_answers_is_not_waited_for_again_and_again() -> None:
    policy = settled(SLOW, arrival_ms=12.0)
    waits = 0
    for _ in range(100):
        if wait := policy.max_wait_ms():
            waits += 1
            policy.waited_in_vain(wait)
    assert waits <= 10
    for _ in range(40):
        policy.arrived(12.0)
    assert policy.max_wait_ms() > 0.0


def test_a_session_whose_drafts_never_hold_does_not_wait() -> None:
    policy = settled(SLOW, arrival_ms=12.0)
    for _ in range(30):
        policy.checked(CHAIN, [], was_awaited=True)
        policy.committed(1, 226.0)
    assert policy.max_wait_ms() == 0.0


def rounds(
    trial: DraftTrial, count: int, *, accepted: int, steps_with: float, steps_alone: float = 1.0
) -> list[bool]:
    """Whether drafts were wanted in each round."""
    wanted = []
    for _ in range(count):
        wanted.append(trial.drafts_wanted)
        if trial.drafts_wanted:
            trial.observe(accepted, was_checked=True, steps=steps_with)
        else:
            trial.observe(0, was_checked=False, steps=steps_alone)
    return wanted


def test_drafting_that_helps_is_never_paused() -> None:
    for accepted, steps in ((2, 1.5), (1, 1.8), (1, 1.05)):
        assert all(rounds(DraftTrial(), 200, accepted=accepted, steps_with=steps))


def test_drafts_that_do_not_arrive_are_no_reason_to_pause() -> None:
    """The drafter may still be reading the prompt."""
    trial = DraftTrial()
    for _ in range(200):
        trial.observe(0, was_checked=False, steps=1.0)
        assert trial.drafts_wanted


def test_a_useless_drafter_is_given_up_and_tried_again_ever_more_rarely() -> None:
    wanted = rounds(DraftTrial(), 2000, accepted=0, steps_with=1.2)
    assert wanted[:9] == [True] * 9
    assert sum(wanted[:64]) <= 16
    assert wanted.count(True) < 0.05 * len(wanted)
    assert any(wanted[1000:])


def test_drafting_that_costs_more_than_it_brings_is_given_up() -> None:
    wanted = rounds(DraftTrial(), 2000, accepted=1, steps_with=2.5)
    assert wanted.count(True) < 0.05 * len(wanted)


def test_a_run_of_bad_luck_is_no_reason_to_give_up() -> None:
    """Half of the drafts fail, in no order; on average a token takes 0.83 steps."""
    random, trial = Random(3), DraftTrial()
    paused = 0
    for _ in range(2000):
        if trial.drafts_wanted:
            tokens = random.choice([1, 1, 1, 2, 4, 6])
            trial.observe(tokens - 1, was_checked=True, steps=1.33 + 0.3 * tokens)
        else:
            paused += 1
            trial.observe(0, was_checked=False, steps=1.0)
    assert paused < 200


def test_drafting_that_becomes_good_is_taken_up_again() -> None:
    trial = DraftTrial()
    rounds(trial, 200, accepted=0, steps_with=1.4)
    assert all(rounds(trial, 1000, accepted=2, steps_with=1.5)[-200:])


def test_what_was_measured_under_load_is_forgotten() -> None:
    """While the node is busy, drafting gains; when it is idle again, drafting loses."""
    trial = DraftTrial()
    rounds(trial, 60, accepted=1, steps_with=7.0, steps_alone=4.0)
    wanted = rounds(trial, 1000, accepted=1, steps_with=3.0)
    assert wanted[-500:].count(True) < 50


def test_a_target_that_is_slower_than_at_start_up_does_not_lose_drafts() -> None:
    """A pause shows what it really does; it does not last."""
    wanted = rounds(DraftTrial(), 400, accepted=2, steps_with=7.5, steps_alone=5.0)
    assert wanted.count(False) < 60


def test_cost_is_interpolated_and_follows_the_machine() -> None:
    cost = StepCost([(1, 10.0), (2, 90.0), (4, 16.0), (8, 20.0)])
    assert cost.ms(1) == 10.0
    assert cost.ms(2) == 16.0, "four tokens took 16 ms, so two cannot cost 90: that was noise"
    assert cost.ms(6) == pytest.approx(18.0)
    assert cost.ms(100) >= 20.0
    for _ in range(100):
        cost.observe(4, 32.0)
    assert cost.ms(1) == pytest.approx(20.0, rel=0.01)
    assert cost.calibrated_ms(1) == 10.0
