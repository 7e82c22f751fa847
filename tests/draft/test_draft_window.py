from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anydraft.text import DraftBuffer
from draft_node.draft_window import DraftWindow
from draft_node.drafters.base import Piece


def filled(*texts: str) -> DraftWindow:
    window = DraftWindow()
    for text in texts:
        window.push(Piece(text, math.log(0.5)))
    return window


def test_takes_what_was_not_sent_with_its_place() -> None:
    window = filled("ab", "ç", "d")
    first = window.take(2)
    assert first is not None
    assert (first.seq, first.base_bytes, [p.text for p in first.pieces]) == (1, 0, ["ab", "ç"])
    assert window.take(2) is None
    second = window.take(9)
    assert second is not None
    assert (second.seq, second.base_bytes, [p.text for p in second.pieces]) == (2, 4, ["d"])
    assert not window.unsent


def test_agreeing_text_leaves_the_rest() -> None:
    window = filled("Hello", " wor", "ld")
    window.take(2)
    assert window.commit("Hello w")
    assert (window.committed_bytes, window.num_pieces, window.num_sent) == (7, 2, 1)
    rest = window.take(9)
    assert rest is not None
    assert (rest.base_bytes, [p.text for p in rest.pieces]) == (9, ["ld"])


@pytest.mark.parametrize("committed", ["Help", "Hello world!", "x"])
def test_contradicted_and_overtaken_text_drops_all(committed: str) -> None:
    window = filled("Hello", " world")
    window.push(Piece("", 0.0, ends=True))
    assert not window.commit(committed)
    assert (window.num_pieces, window.num_sent, window.ends) == (0, 0, False)
    assert window.committed_bytes == len(committed)
    assert window.reach == 1.0


def test_no_text_changes_nothing() -> None:
    window = filled("Hello")
    assert window.commit("")
    assert window.num_pieces == 1


def test_the_end_goes_with_the_last_piece() -> None:
    window = filled("a", "b")
    window.push(Piece("", 0.0, ends=True))
    first, second = window.take(1), window.take(2)
    assert first is not None
    assert second is not None
    assert (first.ends, second.ends) == (False, True)
    assert not window.unsent


def test_the_end_alone_is_sent_too() -> None:
    window = filled("a")
    window.take(9)
    window.push(Piece("", 0.0, ends=True))
    draft = window.take(9)
    assert draft is not None
    assert (draft.base_bytes, len(draft.pieces), draft.ends) == (1, 0, True)
    assert window.take(9) is None


def test_lost_text_is_sent_again_from_the_piece_that_holds_its_start() -> None:
    window = filled("ab", "cd", "ef")
    window.take(9)
    window.resend_beyond(3)
    draft = window.take(9)
    assert draft is not None
    assert (draft.base_bytes, [p.text for p in draft.pieces]) == (2, ["cd", "ef"])
    window.resend_beyond(6)
    assert not window.unsent


def test_no_credit_sends_nothing() -> None:
    assert filled("a").take(0) is None


def test_reach_and_expectation() -> None:
    window = filled("a", "b")
    assert window.reach == pytest.approx(0.25)
    assert window.expected == pytest.approx(0.75)


@given(
    st.lists(st.text("ab ç🙂", max_size=3), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=12),
)
def test_the_verifier_holds_what_was_sent(texts: list[str], moves: list[tuple[int, int]]) -> None:
    """Against the verifier's own buffer: sent in any portions, committed at any characters."""
    window, buffer = filled(*texts), DraftBuffer()
    whole = "".join(texts)
    for portion, step in moves:
        draft = window.take(window.num_sent + portion)
        if draft is not None:
            pieces = [(piece.text, piece.logprob) for piece in draft.pieces]
            assert buffer.offer(draft.seq, draft.base_bytes, pieces, draft.ends)
        text = whole[:step]
        held = buffer.text
        buffer.commit(text)
        assert window.commit(text) == whole.startswith(text)
        if held.startswith(text):
            whole = whole[step:]
            assert whole.startswith(buffer.text)
            assert buffer.piece_count == window.num_sent
        else:
            return
