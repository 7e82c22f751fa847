"""Offers that come while the answer grows: against paths, followed by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from verify_node.draft_policy import DraftPolicy
from verify_node.inbox import Inbox, SessionHandle
from verify_node.sampling_settings import SamplingSettings
from verify_node.scheduled_session import ScheduledSession
from verify_node.step_cost import StepCost
from verify_node.target import DraftToken, Offer, TargetRequest

COST = StepCost([(1, 10.0), (64, 11.0)])


def session() -> ScheduledSession:
    request = TargetRequest((1, 2), 100, SamplingSettings(), (), None, expects_drafts=True)
    cache: Any = SimpleNamespace(length=2, keep=lambda length, slots: None)
    placed = ScheduledSession(SessionHandle(Inbox(), request), DraftPolicy(COST), 0.0)
    placed.place(cache, 200, 0.0)
    return placed


def tree(paths: set[tuple[int, ...]]) -> tuple[DraftToken, ...]:
    heads = sorted({path[:n] for path in paths for n in range(1, len(path) + 1)}, key=len)
    places = {head: place for place, head in enumerate(heads)}
    return tuple(DraftToken(h[-1], 0.9 ** len(h), places.get(h[:-1], -1)) for h in heads)


def heads_of(draft: tuple[DraftToken, ...]) -> set[tuple[int, ...]]:
    said: list[tuple[int, ...]] = []
    for token in draft:
        said.append((*(said[token.parent] if token.parent >= 0 else ()), token.token_id))
    return set(said)


PATHS = st.sets(st.lists(st.integers(3, 5), min_size=1, max_size=4).map(tuple), max_size=5)


@given(PATHS, st.lists(st.integers(3, 5), max_size=4), st.data())
def test_what_is_left_of_an_offer_is_held_whenever_it_comes(
    paths: set[tuple[int, ...]], answer: list[int], data: st.DataObject
) -> None:
    """Before the steps that the answer grew in, or behind any of them."""
    talking, comes_after = session(), data.draw(st.integers(0, len(answer)))
    for number, token_id in enumerate([*answer, None]):
        if number == comes_after:
            talking.take(Offer(0, tree(paths), 7), 600)
        if token_id is not None:
            talking.commit([token_id], 2 + number, [], 0.0)
    left = {path[len(answer) :] for path in paths if path[: len(answer)] == tuple(answer)}
    wanted = {path[:n] for path in left for n in range(1, len(path) + 1)}
    assert heads_of(talking.draft) == wanted


def test_an_offer_for_a_shorter_answer_replaces_none_for_a_longer_one() -> None:
    talking = session()
    talking.commit([3], 2, [], 0.0)
    talking.take(Offer(1, tree({(4,)}), 9), 600)
    talking.take(Offer(0, tree({(3, 5)}), 8), 600)
    assert heads_of(talking.draft) == {(4,)}
    assert talking.newest_piece == 9
    talking.take(Offer(2, tree({(5,)}), 10), 600)  # of an answer that nobody has
    assert heads_of(talking.draft) == {(4,)}


def test_no_draft_follows_logits_that_one_has_spoilt() -> None:
    talking = session()
    talking.commit([3], 2, [], 0.0)
    talking.cache.truncate = lambda length: None  # type: ignore[method-assign]
    talking.go_on_without_draft(2, 0.0)
    talking.take(Offer(0, tree({(3, 5)}), 8), 600)
    assert talking.draft == ()
