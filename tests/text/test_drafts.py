import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from anydraft.text import DraftBuffer
from anydraft.text.drafts import MEMORY_BYTES

# Few letters, so that drafts and committed text often agree; some of more than one byte.
text = st.text("ab é🙂", max_size=6)
pieces_of = st.lists(
    st.tuples(st.text("ab é🙂", max_size=3), st.sampled_from([-0.5, -1.0, 0.0])), max_size=5
)


class Model:
    """The wire contract's rule, said as plainly as it goes: all text is kept as a whole."""

    def __init__(self):
        self.committed = b""
        self.held = b""
        self.ends = False
        self.last_seq = 0
        self.stale = 0

    def offer(self, seq, base, draft, ends):
        whole = self.committed + self.held
        boundaries = {len(whole.decode()[:n].encode()) for n in range(len(whole.decode()) + 1)}
        agrees = draft.startswith(self.committed[base:])
        if seq <= self.last_seq or base not in boundaries or not agrees:
            self.stale += 1
            return False
        self.held = (whole[:base] + draft)[len(self.committed) :]
        self.ends, self.last_seq = ends, seq
        return True

    def commit(self, data):
        self.committed += data
        if data and not self.held.startswith(data):
            self.held, self.ends = b"", False
        else:
            self.held = self.held[len(data) :]


class DraftRules(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.buffer, self.model, self.seq = DraftBuffer(), Model(), 0

    @rule(data=st.data(), pieces=pieces_of, ends=st.booleans(), newer=st.integers(0, 2))
    def offer(self, data, pieces, ends, newer):
        end = len(self.model.committed) + len(self.model.held)
        base = data.draw(st.integers(max(0, len(self.model.committed) - 8), end + 1))
        self.seq += newer
        draft = "".join(text for text, _ in pieces).encode()
        taken = self.model.offer(self.seq, base, draft, ends)
        assert self.buffer.offer(self.seq, base, pieces, ends) is taken

    @rule(data=st.data(), pieces=pieces_of, ends=st.booleans())
    def offer_what_agrees(self, data, pieces, ends):
        whole = (self.model.committed + self.model.held).decode()
        start = data.draw(st.integers(max(0, len(whole) - 9), len(whole)))
        self.seq += 1
        pieces = [(char, -0.1) for char in whole[start:]] + pieces
        draft = "".join(text for text, _ in pieces).encode()
        base = len(whole[:start].encode())
        assert self.model.offer(self.seq, base, draft, ends)
        assert self.buffer.offer(self.seq, base, pieces, ends)

    @rule(text=text)
    def commit(self, text):
        self.model.commit(text.encode())
        self.buffer.commit(text)

    @precondition(lambda self: self.model.held)
    @rule(data=st.data(), extra=text)
    def commit_what_was_drafted(self, data, extra):
        held = self.model.held.decode()
        size = data.draw(st.integers(1, len(held)))
        self.commit(held[:size] + (extra if size == len(held) else ""))

    @invariant()
    def agrees_with_the_model(self):
        buffer, model = self.buffer, self.model
        assert buffer.text == "".join(text for text, _ in buffer.pieces) == model.held.decode()
        assert buffer.held_bytes == len(model.held)
        assert buffer.piece_count == len(buffer.pieces)
        assert buffer.committed_bytes == len(model.committed)
        assert (buffer.ends, buffer.last_seq, buffer.stale) == (
            model.ends,
            model.last_seq,
            model.stale,
        )


TestDraftRules = DraftRules.TestCase


def test_a_piece_committed_in_part_keeps_its_rest_and_its_logprob():
    buffer = DraftBuffer()
    assert buffer.offer(1, 0, [(" wor", -1.0), ("ld", -2.0), ("", -3.0), ("🙂", -4.0)], True)
    buffer.commit(" worl")
    assert buffer.pieces == [("d", -2.0), ("", -3.0), ("🙂", -4.0)]
    buffer.commit("d")
    assert buffer.pieces == [("", -3.0), ("🙂", -4.0)]
    assert buffer.ends


def test_committed_text_that_goes_on_beyond_the_draft_leaves_nothing():
    buffer = DraftBuffer()
    buffer.offer(1, 0, [(" wor", -1.0)], True)
    buffer.commit(" world")
    assert (buffer.text, buffer.ends, buffer.stale) == ("", False, 0)


def test_a_draft_that_was_committed_whole_still_says_that_the_answer_ends():
    buffer = DraftBuffer()
    buffer.offer(1, 0, [("Yes", -1.0)], True)
    buffer.commit("Yes")
    assert (buffer.text, buffer.ends) == ("", True)


def test_a_draft_from_inside_the_held_one_replaces_its_tail():
    buffer = DraftBuffer()
    buffer.offer(1, 0, [("one ", -1.0), ("two", -2.0)], False)
    assert buffer.offer(2, 5, [("en", -3.0)], False)
    assert buffer.pieces == [("one ", -1.0), ("t", -2.0), ("en", -3.0)]


@pytest.mark.parametrize(
    ("seq", "base", "draft"),
    [
        (2, 99, "x"),  # a gap
        (2, 3, "x"),  # inside 🙂
        (2, 0, "no"),  # contradicts
        (1, 6, "x"),  # seen before
        (2, 6, "\ud800"),  # no text
    ],
)
def test_stale_drafts_leave_what_is_held(seq, base, draft):
    buffer = DraftBuffer()
    buffer.offer(1, 0, [("a🙂b", -1.0)], False)
    buffer.commit("a")
    assert not buffer.offer(seq, base, [(draft, -1.0)], True)
    assert (buffer.text, buffer.ends, buffer.last_seq, buffer.stale) == ("🙂b", False, 1, 1)


def test_what_exceeds_the_bounds_is_dropped():
    few = DraftBuffer(max_pieces=2)
    assert few.offer(1, 0, [("a", 0.0), ("b", 0.0), ("c", 0.0)], True)
    assert (few.text, few.ends) == ("ab", False)
    short = DraftBuffer(max_bytes=5)
    assert short.offer(1, 0, [("abc", 0.0), ("def", 0.0), ("g", 0.0)], True)
    assert (short.text, short.ends) == ("abc", False)
    assert not short.offer(2, 7, [("x", 0.0)], False)


class Looked:
    """Pieces that count how many of them were looked at."""

    def __init__(self, *pieces):
        self.pieces, self.count = pieces, 0

    def __iter__(self):
        for piece, times in self.pieces:
            for _ in range(times):
                self.count += 1
                yield piece


ENDLESS = 10**12


@pytest.mark.parametrize("text", ["", "a", "🙂", "a" * 10_000_000])
def test_pieces_beyond_the_bounds_are_not_looked_at(text):
    buffer = DraftBuffer(max_pieces=48)
    pieces = Looked(((text, -1.0), ENDLESS))
    assert buffer.offer(1, 0, pieces, True)
    assert pieces.count <= 49
    assert buffer.piece_count <= 48
    assert buffer.held_bytes <= 4096
    assert not buffer.ends


def test_late_drafts_are_not_looked_at_beyond_the_bounds():
    buffer = DraftBuffer(max_pieces=48)
    buffer.commit("a" * 48 + "b")
    for text in ["", "a", "c", "a" * 48 + "c" * 10_000_000]:
        pieces = Looked(((text, -1.0), ENDLESS))
        assert not buffer.offer(1, 0, pieces, False)
        assert pieces.count <= 48
    pieces = Looked((("a", -1.0), 47), (("ab", -1.0), 1), (("c", -1.0), ENDLESS))
    assert buffer.offer(2, 0, pieces, True)
    assert (buffer.text, pieces.count) == ("c" * 48, 97)


def test_drafts_that_are_not_newer_are_not_looked_at():
    buffer = DraftBuffer()
    assert buffer.offer(1, 0, [("a", 0.0)], False)
    for seq, base in [(1, 0), (2, 99)]:
        pieces = Looked((("a", 0.0), ENDLESS))
        assert not buffer.offer(seq, base, pieces, False)
        assert pieces.count == 0


def test_drafts_from_before_what_is_remembered_are_stale():
    buffer = DraftBuffer()
    buffer.commit("a" * (MEMORY_BYTES + 10))
    assert not buffer.offer(1, 9, [("a" * MEMORY_BYTES + "b", 0.0)], False)
    assert buffer.offer(2, 10, [("a" * MEMORY_BYTES + "b", 0.0)], False)
    assert buffer.text == "b"


@given(text=st.text("ab", max_size=40), sizes=st.lists(st.integers(1, 5), max_size=20))
def test_committing_a_draft_bit_by_bit_uses_it_up(text, sizes):
    buffer = DraftBuffer()
    buffer.offer(1, 0, [(char, 0.0) for char in text], False)
    for size in sizes:
        buffer.commit(text[:size])
        text = text[size:]
        assert buffer.text == text
