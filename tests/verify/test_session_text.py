"""A session's text by itself: where answers are cut, what is shown, which draft is offered when."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest

from anydraft.errors import AnydraftError, UnavailableError
from anydraft.text.alignment import DraftAligner
from anydraft.text.lookup import PromptLookup
from anydraft.text.tokenizer import TextTokenizer
from anydraft.v1.result_pb2 import FINISH_REASON_EOS, FINISH_REASON_LENGTH, FINISH_REASON_STOP
from anydraft.v1.verification_pb2 import Draft, DraftPiece
from tests import tokenizers_zoo
from verify_node.answer_cut import AnswerCutter, AnswerLimits
from verify_node.session_draft import MAX_CREDIT_PIECES, SessionDraft
from verify_node.session_text import Admitted, Begun, SessionText, TextBlock
from verify_node.target import Block, Commit, Offer

TOKENIZER = TextTokenizer(tokenizers_zoo.build("gpt2"))
PROMPT = TOKENIZER.encode("def add")
EOS = 1


class FakeTarget:
    def __init__(self) -> None:
        self.offers: list[Offer] = []
        self.declined: list[int] = []

    def offer(self, offer: Offer) -> None:
        self.offers.append(offer)

    def decline(self, num_committed: int, needs_ms: float = 0.0) -> None:
        self.declined.append(num_committed)

    def expect_drafts(self, expected: bool) -> None:
        del expected

    def close(self) -> None:
        pass


class Session:
    """A `SessionText`, its target, what it said, and alignments that run when they are told to."""

    def __init__(
        self,
        *,
        stops: Sequence[str] = (),
        limit: int = 100,
        eos: int | None = EOS,
        lookup: PromptLookup | None = None,
    ) -> None:
        self.target = FakeTarget()
        self.events: list[Admitted | TextBlock | AnydraftError] = []
        self.due: list[Callable[[], None]] = []
        ids = frozenset() if eos is None else frozenset([eos])
        limits = AnswerLimits(limit, ids, eos, tuple(stops))
        self.text = SessionText(
            DraftAligner(TOKENIZER),
            PROMPT,
            limits,
            Begun(AnswerCutter(TOKENIZER, limits)),
            lookup,
            self.target,
            self.events.append,
            self.due.append,
        )

    def draft(self, first_piece: int, base_bytes: int, *pieces: DraftPiece) -> None:
        """Pieces as they are; those made by `chain` hang below one another."""
        self.text.draft(Draft(first_piece=first_piece, base_bytes=base_bytes, pieces=pieces))

    def commit(
        self, ids: Sequence[int], *, accepted: int = 0, newest: int = 0, beside: int = 0
    ) -> Commit:
        kept = self.text.commit(
            Block(
                token_ids=tuple(ids),
                scores=(),
                num_drafted=accepted,
                num_accepted=accepted,
                newest_piece=newest,
                draft_room=24,
                step_ms=1.0,
                wait_ms=0.0,
                num_beside=beside,
            )
        )
        if kept.afterwards is not None:
            kept.afterwards()
        return kept

    def align(self) -> None:
        due, self.due[:] = list(self.due), []
        for run in due:
            run()

    @property
    def last(self) -> TextBlock:
        event = self.events[-1]
        assert isinstance(event, TextBlock)
        return event


def chain(first_piece: int, *pieces: tuple[str, float]) -> list[DraftPiece]:
    """Pieces that hang below one another, the first at the base."""
    return [
        DraftPiece(
            text=text.encode(), logprob=logprob, parent=first_piece + index - 1 if index else 0
        )
        for index, (text, logprob) in enumerate(pieces)
    ]


def paths(offer: Offer) -> set[tuple[int, ...]]:
    """All of an offer's paths, each from the committed tokens."""
    said: list[tuple[int, ...]] = []
    for token in offer.tokens:
        before = said[token.parent] if token.parent >= 0 else ()
        said.append((*before, token.token_id))
    return set(said)


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode("x" + text)[len(TOKENIZER.encode("x")) :]


def test_a_block_is_cut_at_the_first_end_of_sequence() -> None:
    session = Session()
    ids = ids_of(" one two")
    kept = session.commit([*ids, EOS, *ids])
    assert (kept.num_tokens, kept.reason, kept.offer) == (len(ids) + 1, "eos", None)
    assert session.last.text == session.last.user_text == " one two"
    assert session.last.token_ids == (*ids, EOS)
    assert session.last.finished is not None
    assert session.last.finished.reason == FINISH_REASON_EOS


def test_a_block_is_cut_at_a_stop_string_that_began_in_the_block_before() -> None:
    session = Session(stops=["wo three"])
    first, second = ids_of(" one tw"), ids_of("o three four")
    assert session.commit(first).reason is None
    assert session.last.user_text == " one t"
    kept = session.commit(second)
    assert kept.reason == "stop"
    assert kept.num_tokens < len(second)
    assert session.last.user_text == ""
    finished = session.last.finished
    assert finished is not None
    assert (finished.reason, finished.stop) == (FINISH_REASON_STOP, "wo three")


def test_text_held_back_is_shown_when_the_limit_ends_the_answer() -> None:
    ids = ids_of(" one two")
    session = Session(stops=["two three"], limit=len(ids))
    kept = session.commit([*ids, *ids])
    assert (kept.num_tokens, kept.reason) == (len(ids), "length")
    assert session.last.user_text == " one two"
    assert session.last.finished is not None
    assert session.last.finished.reason == FINISH_REASON_LENGTH


def test_accepted_tokens_beyond_the_cut_do_not_count() -> None:
    ids = ids_of(" one two three")
    session = Session(limit=2)
    session.commit(ids, accepted=len(ids) - 1, newest=1)
    stats = session.text.stats
    assert (stats.completion_tokens, stats.accepted_tokens) == (2, 2)
    assert session.last.drafted_bytes == len(session.last.text.encode())


def test_a_draft_is_aligned_aside_and_then_offered() -> None:
    session = Session()
    session.draft(7, 0, *chain(7, (" one", -0.1), (" two", -0.2)))
    assert session.target.offers == []
    session.align()
    (offer,) = session.target.offers
    assert (offer.num_committed, offer.newest_piece) == (0, 8)
    assert [token.token_id for token in offer.tokens] == ids_of(" one two")
    reaches = [token.reach for token in offer.tokens]
    assert reaches[0] == pytest.approx(math.exp(-0.1))
    assert reaches[-1] == pytest.approx(math.exp(-0.3))


def test_a_tree_of_text_is_a_tree_of_ids() -> None:
    session = Session()
    session.draft(1, 0, *chain(1, (" one", -0.1), (" two", -0.2)))
    session.draft(
        3,
        0,
        DraftPiece(text=b" three", logprob=-1.0, parent=1),
        DraftPiece(text=b" four", logprob=-2.0),
        DraftPiece(parent=2, ends=True, logprob=-0.5),
    )
    session.align()
    (offer,) = session.target.offers
    longest = {
        (*ids_of(" one two"), EOS),
        tuple(ids_of(" one three")),
        tuple(ids_of(" four")),
    }
    assert paths(offer) == {path[:n] for path in longest for n in range(1, len(path) + 1)}
    reaches = [token.reach for token in offer.tokens]
    assert reaches == sorted(reaches, reverse=True)


def test_many_drafts_make_one_alignment() -> None:
    """What a session has waiting for the alignment thread does not grow with what it is sent."""
    session = Session()
    for piece in range(1, 40):
        session.draft(piece, 0, *chain(piece, (" one", -0.1)))
    assert len(session.due) == 1
    session.align()
    assert [offer.newest_piece for offer in session.target.offers] == [39]


def test_a_draft_that_arrives_during_a_step_is_not_named_by_its_verdict() -> None:
    session = Session()
    one, two = ids_of(" one"), ids_of(" two")
    session.draft(1, 0, *chain(1, (" one", -0.1)))
    session.align()
    assert session.target.offers[-1].newest_piece == 1
    # The step that checks piece 1 runs now.
    session.draft(2, 0, DraftPiece(text=b" two", logprob=-0.1, parent=1))
    kept = session.commit(one, accepted=len(one) - 1, newest=1)
    assert session.last.newest_piece == 1
    # It is what comes next, at once, although it was not aligned in time.
    assert kept.offer is not None
    assert kept.offer.newest_piece == 2
    assert [token.token_id for token in kept.offer.tokens] == two
    session.align()
    assert len(session.target.offers) == 1
    # Where nothing of the draft is left, the next piece is offered as it comes.
    assert session.commit(ids_of(" nine"), newest=2).offer is None
    session.draft(3, len(" one nine"), *chain(3, (" ten", -0.1)))
    session.align()
    assert [offer.newest_piece for offer in session.target.offers] == [1, 3]


def test_what_the_target_has_is_aligned_again_while_it_computes() -> None:
    session = Session()
    one, two = ids_of(" one"), ids_of(" two")
    session.draft(1, 0, *chain(1, (" one", -0.1), (" two", -0.1)))
    session.align()
    # The target goes on with " two" by itself: nobody holds it up.
    assert session.commit(one, accepted=len(one) - 1, newest=2).offer is None
    session.draft(3, 0, DraftPiece(text=b" three", logprob=-0.1, parent=2))
    session.align()
    offer = session.target.offers[-1]
    assert (offer.num_committed, offer.newest_piece) == (len(one), 3)
    assert tuple(ids_of(" two three")) in paths(offer)
    # What was not aligned in time is, where the step is for few sessions.
    session.draft(4, 0, DraftPiece(text=b" four", logprob=-0.1, parent=3))
    kept = session.commit(two, accepted=len(two) - 1, newest=3)
    assert kept.offer is not None
    assert tuple(ids_of(" three four")) in paths(kept.offer)


def test_many_sessions_wait_for_no_more_of_a_draft_than_a_step_of_theirs_checks() -> None:
    words = [" one", " two", " three", " four", " five", " six", " seven", " eight", " nine"]
    session = Session()
    session.draft(1, 0, *chain(1, *((word, -0.1) for word in words)))
    kept = session.commit(ids_of(words[0]), beside=15)
    assert kept.offer is not None
    assert tuple(ids_of(" two three four")) in paths(kept.offer)
    whole = tuple(ids_of("".join(words[1:])))
    assert whole not in paths(kept.offer)
    session.align()
    (offer,) = session.target.offers
    assert whole in paths(offer)


def test_nobody_is_told_of_a_block_before_its_step_is_committed() -> None:
    session = Session()
    block = Block(tuple(ids_of(" one")), (), 0, 0, 0, 24, step_ms=1.0, wait_ms=0.0)
    kept = session.text.commit(block)
    assert session.events == []
    assert kept.afterwards is not None
    kept.afterwards()
    assert session.last.text == " one"


def test_an_alignment_that_fails_costs_a_draft_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class PanicError(BaseException):
        """As the panics of the tokenizers library, which are no Exception."""

    for error in (ValueError("broken"), PanicError()):
        session = Session()

        def fail(*_: object, error: BaseException = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(DraftAligner, "align", fail)
            session.draft(1, 0, *chain(1, (" one", -0.1)))
            session.align()
            assert session.target.offers == []
            kept = session.commit(ids_of(" one"))
        assert (kept.reason, kept.offer) == (None, None)
        assert session.last.text == " one"
    assert "goes on without it" in caplog.text


def test_an_empty_draft_declines_where_the_answer_stands() -> None:
    session = Session()
    session.draft(1, 0)
    assert session.target.declined == [0]
    session.draft(2, 5)
    assert session.target.declined == [0]


def test_what_came_before_an_empty_draft_is_offered_before_it_declines() -> None:
    """A drafter that takes turns says so that the step may begin: with what it has drafted."""
    session = Session()
    session.draft(1, 0, *chain(1, (" one", -0.1)))
    session.draft(2, 0)
    assert session.target.declined == []
    session.align()
    assert tuple(ids_of(" one")) in paths(session.target.offers[-1])
    assert session.target.declined == [0]
    # A step that was taken first needs to hear of neither.
    session.draft(2, 0, *chain(2, (" two", -0.1)))
    session.draft(3, 0)
    session.commit(ids_of(" three"))
    session.align()
    assert session.target.declined == [0]


def test_nothing_is_offered_once_the_answer_is_over() -> None:
    session = Session()
    session.draft(1, 0, *chain(1, (" one", -0.1)))
    session.text.failed(UnavailableError("gone", reason="SHUTTING_DOWN"))
    session.align()
    session.draft(2, 0, *chain(2, (" two", -0.1)))
    session.align()
    assert session.target.offers == []
    assert isinstance(session.events[-1], UnavailableError)


def test_a_guess_that_the_answer_ends_is_an_end_of_sequence_for_the_target() -> None:
    for eos, expected in [(EOS, [*ids_of(" one"), EOS]), (None, ids_of(" one"))]:
        session = Session(eos=eos)
        end = DraftPiece(parent=1, ends=True, logprob=-0.5)
        session.draft(1, 0, *chain(1, (" one", -0.1)), end)
        session.align()
        assert [token.token_id for token in session.target.offers[-1].tokens] == expected


def test_copied_text_is_offered_without_a_draft_node() -> None:
    session = Session(lookup=PromptLookup([b" one two three four five. And again:"]))
    kept = session.commit(ids_of(" one two three"))
    assert kept.offer is not None
    assert kept.offer.newest_piece == 0
    assert tuple(ids_of(" four five.")) in paths(kept.offer)
    # Nor does a draft that says something else replace it, or add to what both say.
    copied = kept.offer.tokens[0].reach
    base = len(" one two three")
    session.draft(1, base, *chain(1, (" four", -3.0), (" six", -0.1)))
    session.align()
    offer = session.target.offers[-1]
    assert offer.newest_piece == 2
    assert {tuple(ids_of(" four five.")), tuple(ids_of(" four six"))} <= paths(offer)
    assert offer.tokens[0].reach == copied


HOSTILE = {
    "below itself": [DraftPiece(text=b"x", parent=1)],
    "a cycle": [DraftPiece(text=b"x", parent=2), DraftPiece(text=b"y", parent=1)],
    "no such parent": [DraftPiece(text=b"x", parent=2**64 - 1)],
    "says nothing": [DraftPiece()] * 4096,
    "duplicates": [DraftPiece(text=b" one", logprob=-1.0)] * 4096,
    "siblings": [DraftPiece(text=b"%d" % n, logprob=-1.0) for n in range(4096)],
    "no text": [DraftPiece(text=b"\xff\xfe\x80", logprob=-1.0), DraftPiece(text=b"\x80")],
    "no number": [DraftPiece(text=b" one", logprob=n) for n in (math.nan, math.inf, -math.inf)],
    "much text": [DraftPiece(text=b"\xcc\x81" * 1_000_000)] * 2,
    "ends at once": [DraftPiece(ends=True), DraftPiece(text=b"x", ends=True)],
    "a long chain": [DraftPiece(text=b"a", parent=n) for n in range(4096)],
}


@pytest.mark.parametrize("pieces", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize(
    ("first_piece", "base_bytes"), [(1, 0), (0, 0), (2**64 - 2, 0), (1, 2**64 - 1), (1, 2)]
)
def test_hostile_drafts_end_nothing_and_are_counted(
    pieces: list[DraftPiece],
    first_piece: int,
    base_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded: list[int] = []
    encode = TOKENIZER.encode
    session = Session()
    monkeypatch.setattr(
        TOKENIZER, "encode", lambda text: encoded.append(len(text.encode())) or encode(text)
    )
    session.draft(first_piece, base_bytes, *pieces)
    session.align()
    for offer in session.target.offers:
        assert len(offer.tokens) <= 64
        seen = set()
        for index, token in enumerate(offer.tokens):
            assert token.parent < index
            most = 1.0 if token.parent < 0 else offer.tokens[token.parent].reach
            assert 0 <= token.reach <= most
            assert (token.parent, token.token_id) not in seen
            seen.add((token.parent, token.token_id))
    assert sum(encoded) < 30_000
    monkeypatch.undo()
    kept = session.commit(ids_of(" one two"))
    assert (kept.num_tokens, kept.reason) == (len(ids_of(" one two")), None)
    session.commit([EOS])
    stale = session.text.stats.stale_pieces
    assert len(pieces) - MAX_CREDIT_PIECES <= stale <= len(pieces)


def test_pieces_of_a_message_beyond_what_could_be_taken_are_not_looked_at() -> None:
    looked_at = 0

    class Endless:
        def __iter__(self) -> Iterator[DraftPiece]:
            nonlocal looked_at
            while True:
                looked_at += 1
                yield DraftPiece(text=b"a", parent=looked_at - 1)

        def __len__(self) -> int:
            return 10**9

    draft = SimpleNamespace(first_piece=1, base_bytes=0, pieces=Endless())
    held = SessionDraft(None)
    assert held.take(draft)  # type: ignore[arg-type]
    assert looked_at <= 2 * MAX_CREDIT_PIECES + 1
    assert held.stale_pieces == 10**9 - MAX_CREDIT_PIECES
