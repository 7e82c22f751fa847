"""Promise 2 as arithmetic: what is checked, how long is waited, when drafting is given up."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify_node.draft_policy import DraftPolicy
from verify_node.draft_trial import DraftTrial
from verify_node.step_cost import StepCost

FLAT = StepCost([(1, 10.0), (64, 10.0)])
LINEAR = StepCost([(1, 10.0), (64, 640.0)])
HALF = StepCost([(1, 10.0), (2, 12.5), (64, 167.5)])
"""Each token costs a quarter of the first."""


def test_what_is_free_is_checked_and_what_costs_a_step_is_not() -> None:
    assert DraftPolicy(FLAT).num_to_check([0.9] * 20, 0) == 20
    assert DraftPolicy(LINEAR).num_to_check([0.9] * 20, 0) == 0
    assert DraftPolicy(FLAT).num_to_check([], 0) == 0


@given(st.lists(st.floats(0, 1), max_size=24), st.integers(0, 100))
def test_the_choice_is_the_best_by_expected_rate(
    probabilities: list[float], other_tokens: int
) -> None:
    def rate(count: int) -> float:
        reach, tokens = 1.0, 1.0 + other_tokens
        for probability in probabilities[:count]:
            reach *= min(probability, 0.98)
            tokens += reach
        return tokens / HALF.ms(1 + other_tokens + count)

    chosen = DraftPolicy(HALF).num_to_check(probabilities, other_tokens)
    best = max(rate(count) for count in range(len(probabilities) + 1))
    assert rate(chosen) == pytest.approx(best)


def test_drafts_that_never_hold_are_no_longer_believed() -> None:
    pacing = DraftPolicy(HALF)
    assert pacing.num_to_check([0.9] * 8, 0) > 0
    for _ in range(12):
        pacing.committed([0.9] * 4, 0, 20.0)
    assert pacing.num_to_check([0.9] * 8, 0) == 0
    # Yet one is checked now and then, and a drafter that has become good is believed again.
    checked = []
    for _ in range(400):
        count = pacing.num_to_check([0.9] * 8, 0)
        checked.append(count)
        pacing.committed([0.9] * count, count, 20.0)
    assert checked[:30].count(1) >= 1
    assert checked[-1] > 1


def test_waiting_pays_only_for_what_it_brings() -> None:
    flat, linear = DraftPolicy(FLAT), DraftPolicy(LINEAR)
    assert flat.max_wait_ms() == pytest.approx(2.5 * 10 - 10)
    assert linear.max_wait_ms() == 0.0
    for _ in range(30):
        flat.arrived(1_000.0)
    assert flat.max_wait_ms() == 0.0, "a drafter across the world is not waited for"
    for _ in range(60):
        flat.arrived(3.0)
    assert flat.max_wait_ms() > 0.0


def test_how_long_a_drafter_reads_the_prompt_says_nothing_about_its_drafts() -> None:
    pacing = DraftPolicy(FLAT)
    before = pacing.max_wait_ms()
    pacing.waited_in_vain(before)
    pacing.arrived(5_000.0)
    assert pacing.max_wait_ms() == before
    pacing.arrived(5_000.0)
    assert pacing.max_wait_ms() == 0.0


def test_a_drafter_that_never_answers_is_not_waited_for_again_and_again() -> None:
    pacing = DraftPolicy(FLAT)
    waits = []
    for _ in range(20):
        if wait := pacing.max_wait_ms():
            waits.append(wait)
            pacing.waited_in_vain(wait)
    assert len(waits) <= 3


def rounds(trial: DraftTrial, count: int, *, tokens_with: int, ms_with: float) -> list[bool]:
    """Rounds of `tokens_with` tokens with drafts, 1 without; the latter take 10 ms each."""
    wanted = []
    for _ in range(count):
        wanted.append(trial.drafts_wanted)
        if trial.drafts_wanted:
            trial.observe(tokens_with, ms_with)
        else:
            trial.observe(1, 10.0)
    return wanted


def test_drafting_that_helps_is_never_paused() -> None:
    assert all(rounds(DraftTrial(10.0), 200, tokens_with=3, ms_with=15.0))


def test_drafting_that_gains_little_is_compared_and_kept() -> None:
    wanted = rounds(DraftTrial(10.0), 200, tokens_with=2, ms_with=18.0)
    assert 0 < wanted.count(False) < 70


def test_drafting_that_slows_down_is_given_up() -> None:
    """And tried again, ever more rarely: a few percent of the rounds in the long run."""
    wanted = rounds(DraftTrial(10.0), 3000, tokens_with=1, ms_with=14.0)
    assert wanted[:9] == [True] * 9
    assert wanted.count(True) < 0.1 * len(wanted)
    assert any(wanted[300:])


def test_a_run_of_bad_luck_is_no_reason_to_give_up() -> None:
    """Half of the drafts fail, in no order; on average a token takes 8.3 ms, 10 without drafts."""
    random, trial = Random(3), DraftTrial(10.0)
    paused = 0
    for _ in range(2000):
        if trial.drafts_wanted:
            tokens = random.choice([1, 1, 1, 2, 4, 6])
            trial.observe(tokens, 13.3 + 3.0 * tokens)
        else:
            paused += 1
            trial.observe(1, 10.0)
    assert paused < 200


def test_drafting_that_becomes_good_is_taken_up_again() -> None:
    trial = DraftTrial(10.0)
    rounds(trial, 200, tokens_with=1, ms_with=14.0)
    assert all(rounds(trial, 1000, tokens_with=3, ms_with=15.0)[-200:])


def test_what_was_measured_under_load_is_forgotten() -> None:
    """While the node is busy, drafting gains; when it is idle again, drafting loses."""
    trial = DraftTrial(10.0)
    for _ in range(40):
        trial.observe(*((2, 70.0) if trial.drafts_wanted else (1, 40.0)))
    wanted = []
    for _ in range(1000):
        wanted.append(trial.drafts_wanted)
        trial.observe(*((2, 30.0) if trial.drafts_wanted else (1, 10.0)))
    assert wanted[-500:].count(True) < 100


def test_a_node_that_was_measured_too_fast_does_not_lose_drafts() -> None:
    """The expected rate is only a hint: under load a pause shows what the target really does."""
    wanted = rounds(DraftTrial(2.0), 400, tokens_with=3, ms_with=15.0)
    assert wanted.count(False) < 40


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
