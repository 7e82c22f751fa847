"""Figures against values that were worked out by hand."""

from __future__ import annotations

import pytest

from anydraft.bench import measures
from anydraft.bench.arms import ASSISTED, TARGET_ONLY, Answer
from anydraft.bench.measures import Amount
from anydraft.bench.runs import Busy, busy_stretch
from tests.bench.answers import answer, outcome


def test_a_gain_is_all_tokens_over_all_seconds() -> None:
    """10 + 30 tokens in 2 + 4 seconds alone, in 1 + 4 assisted; not the mean of 2x and 1x."""
    outcomes = [
        outcome(answer(10, 2.0), answer(10, 1.0)),
        outcome(answer(30, 4.0), answer(30, 4.0)),
    ]
    assert measures.gain(outcomes) == pytest.approx((40 / 5) / (40 / 6))
    assert measures.smallest_gain(outcomes) == (1.0, "Why?")
    assert measures.whole(measures.of_arm(outcomes, ASSISTED)) == Amount(40, 5.0)


def test_decoding_counts_from_the_first_token_on() -> None:
    """9 tokens in 1.5 s alone, 9 in 0.5 s assisted."""
    outcomes = [outcome(answer(10, 2.0, 0.5), answer(10, 1.0, 0.5))]
    assert measures.decoding_gain(outcomes) == pytest.approx(3.0)
    assert measures.decoding([answer(1, 2.0)]) == Amount(0, 0.0)


def test_what_cannot_be_divided_is_not_known() -> None:
    outcomes = [outcome(answer(1, 2.0), answer(1, 1.0))]
    assert measures.decoding_gain(outcomes) is None
    assert measures.gain([]) is None
    assert measures.smallest_gain([]) is None
    assert measures.spread(outcomes) is None
    assert measures.ratio(1.0, 0.0) is None
    nothing = measures.rounds([])
    assert nothing.tokens_per_step is None
    assert nothing.rest_ms is None
    assert measures.first_token_ms([]) is None


def test_the_spread_is_that_of_prompts() -> None:
    """Equal gains leave none; the same prompts always give the same numbers."""
    same = [outcome(answer(10, 2.0), answer(10, 1.0)) for _ in range(5)]
    spread = measures.spread(same)
    assert spread is not None
    assert (spread.low, spread.high, spread.quartiles) == (2.0, 2.0, (2.0, 2.0, 2.0))
    mixed = [outcome(answer(10, 2.0), answer(10, 2.0 / k)) for k in (1, 2, 3, 4)]
    spread = measures.spread(mixed)
    assert spread == measures.spread(mixed)
    assert spread is not None
    assert 1.0 <= spread.low < (measures.gain(mixed) or 0) < spread.high <= 4.0
    assert spread.quartiles == pytest.approx((1.75, 2.5, 3.25))


def test_what_the_nodes_say_of_their_rounds() -> None:
    """Two answers of 10 tokens, 5 steps each: 8 later steps, in which 3000 ms went by."""
    said = {
        "completion_tokens": 10,
        "rounds": 5,
        "drafted": 20,
        "accepted": 5,
        "verify_ms": 800.0,
        "wait_ms": 80.0,
        "draft_ms": 500.0,
        "sent_bytes": 300,
        "received_bytes": 200,
    }
    found = measures.rounds([answer(10, 2.0, 0.5, **said)] * 2)
    assert found.tokens_per_step == 2.0
    assert found.acceptance == 0.25
    assert found.drafted_per_step == 4.0
    assert found.forward_ms == 200.0
    assert found.waiting_ms == 20.0
    assert found.rest_ms == pytest.approx(1500 / 4 - 220)
    assert found.drafting_ms == 100.0
    assert found.bytes_per_accepted_token == 100.0


def test_the_share_of_the_bound() -> None:
    """2 tokens a step and steps of 125 instead of 100 ms could bring 1.6x; decoding gained 1.2x."""
    alone = answer(13, 2.0, 0.8, completion_tokens=13, rounds=13, verify_ms=1200.0)
    assisted = answer(13, 1.8, 0.8, completion_tokens=14, rounds=7, verify_ms=750.0)
    found = measures.share_of_bound([outcome(alone, assisted)])
    assert found == pytest.approx(1.2 / 1.6)
    assert measures.share_of_bound([outcome()]) is None


def test_the_time_to_the_first_token() -> None:
    assert measures.first_token_ms([answer(first_s=0.5), answer(first_s=0.7)]) == pytest.approx(600)


def test_sessions_count_while_all_are_busy() -> None:
    """The second answer's last nine tokens come when the first session has nothing to do."""
    first = Answer((1, 2, 3), 100.0, ((101.0, 1), (103.0, 2)), None)
    second = answer(10, 5.0, 1.0, began=100.5)
    busy = busy_stretch([first, second], 103.0)
    assert busy == Busy(3.0, 4)
    assert measures.busy_rate([busy, Busy(1.0, 4)]) == 2.0
    assert measures.busy_rate([]) is None


@pytest.mark.parametrize(
    ("ids", "index"), [((1, 2, 9), 2), ((1, 2), 2), ((1, 2, 3, 4), 3), ((), 0)]
)
def test_where_an_answer_first_differs(ids: tuple[int, ...], index: int) -> None:
    assert measures.first_difference(ids, (1, 2, 3)) == index


def test_answers_are_held_against_the_recording_or_else_the_target_alone() -> None:
    wrong = outcome(answer(ids=(1, 2)), answer(ids=(1, 3)), prompt="Wrong")
    ((of, difference),) = measures.differences([outcome(), wrong])
    assert of is wrong
    assert (difference.prompt, difference.arm, difference.index) == ("Wrong", ASSISTED, 1)
    both = outcome(answer(ids=(1, 2)), answer(ids=(1, 2)), expected=(1, 4))
    arms = [difference.arm for _, difference in measures.differences([both])]
    assert arms == [TARGET_ONLY, ASSISTED]


def test_categories_keep_their_order() -> None:
    outcomes = [outcome(category=name) for name in ("qa", "rag", "qa")]
    found = measures.by_category(outcomes)
    assert [(name, len(of)) for name, of in found.items()] == [("qa", 2), ("rag", 1)]
