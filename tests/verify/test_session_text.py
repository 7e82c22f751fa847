"""A session's text by itself: where answers are cut, what is shown, which draft is offered when."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from anydraft.errors import AnydraftError, UnavailableError
from anydraft.text.alignment import DraftAligner
from anydraft.text.tokenizer import TextTokenizer
from anydraft.v1.result_pb2 import FINISH_REASON_EOS, FINISH_REASON_LENGTH, FINISH_REASON_STOP
from anydraft.v1.verification_pb2 import Draft, DraftPiece
from tests import tokenizers_zoo
from verify_node.session_text import Admitted, AnswerLimits, SessionText, TextBlock
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

    def decline(self, num_committed: int) -> None:
        self.declined.append(num_committed)

    def expect_drafts(self, expected: bool) -> None:
        del expected

    def close(self) -> None:
        pass


class Session:
    """A `SessionText`, its target, what it said, and alignments that run when they are told to."""

    def __init__(self, *, stops: Sequence[str] = (), limit: int = 100, eos: int | None = EOS):
        self.target = FakeTarget()
        self.events: list[Admitted | TextBlock | AnydraftError] = []
        self.due: list[Callable[[], None]] = []
        ids = frozenset() if eos is None else frozenset([eos])
        self.text = SessionText(
            TOKENIZER,
            DraftAligner(TOKENIZER),
            PROMPT,
            AnswerLimits(limit, ids, eos, tuple(stops)),
            self.target,
            self.events.append,
            self.due.append,
        )

    def draft(
        self, seq: int, base_bytes: int, pieces: Sequence[tuple[str, float]], ends: bool
    ) -> None:
        made = [DraftPiece(text=text, logprob=logprob) for text, logprob in pieces]
        self.text.draft(Draft(seq=seq, base_bytes=base_bytes, pieces=made, ends=ends))

    def commit(self, ids: Sequence[int], *, accepted: int = 0, seq: int = 0) -> Commit:
        return self.text.commit(
            Block(
                token_ids=tuple(ids),
                scores=(),
                num_drafted=accepted,
                num_accepted=accepted,
                draft_seq=seq,
                draft_room=24,
                step_ms=1.0,
                wait_ms=0.0,
            )
        )

    def align(self) -> None:
        due, self.due[:] = list(self.due), []
        for run in due:
            run()

    @property
    def last(self) -> TextBlock:
        event = self.events[-1]
        assert isinstance(event, TextBlock)
        return event


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
    session.commit(ids, accepted=len(ids) - 1, seq=1)
    stats = session.text.stats
    assert (stats.completion_tokens, stats.accepted_tokens) == (2, 2)
    assert session.last.drafted_bytes == len(session.last.text.encode())


def test_a_draft_is_aligned_aside_and_then_offered() -> None:
    session = Session()
    session.draft(7, 0, [(" one", -0.1), (" two", -0.2)], False)
    assert session.target.offers == []
    session.align()
    (offer,) = session.target.offers
    assert (offer.num_committed, offer.seq) == (0, 7)
    assert [token.token_id for token in offer.tokens] == ids_of(" one two")


def test_many_drafts_make_one_alignment() -> None:
    """What a session has waiting for the alignment thread does not grow with what it is sent."""
    session = Session()
    for seq in range(1, 40):
        session.draft(seq, 0, [(" one", -0.1)], False)
    assert len(session.due) == 1
    session.align()
    assert [offer.seq for offer in session.target.offers] == [39]


def test_a_draft_that_arrives_during_a_step_is_not_named_by_its_verdict() -> None:
    session = Session()
    one, two = ids_of(" one"), ids_of(" two")
    session.draft(1, 0, [(" one", -0.1)], False)
    session.align()
    assert session.target.offers[-1].seq == 1
    # The step that checks draft 1 runs now.
    session.draft(2, len(" one"), [(" two", -0.1)], False)
    kept = session.commit(one, accepted=len(one) - 1, seq=1)
    assert session.last.draft_seq == 1
    # It is what comes next, at once; its own alignment is no longer needed.
    assert kept.offer is not None
    assert kept.offer.seq == 2
    assert [token.token_id for token in kept.offer.tokens] == two
    assert session.last.held_bytes == len(" two")
    session.align()
    assert len(session.target.offers) == 1


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
            session.draft(1, 0, [(" one", -0.1)], False)
            session.align()
            assert session.target.offers == []
            kept = session.commit(ids_of(" one"))
        assert (kept.reason, kept.offer) == (None, None)
        assert session.last.text == " one"
    assert "goes on without it" in caplog.text


def test_an_empty_draft_declines_where_the_answer_stands() -> None:
    session = Session()
    session.draft(1, 0, [], False)
    assert session.target.declined == [0]
    session.draft(2, 5, [], False)
    assert session.target.declined == [0]


def test_nothing_is_offered_once_the_answer_is_over() -> None:
    session = Session()
    session.draft(1, 0, [(" one", -0.1)], False)
    session.text.failed(UnavailableError("gone", reason="SHUTTING_DOWN"))
    session.align()
    session.draft(2, 0, [(" two", -0.1)], False)
    session.align()
    assert session.target.offers == []
    assert isinstance(session.events[-1], UnavailableError)


def test_a_guess_that_the_answer_ends_is_an_end_of_sequence_for_the_target() -> None:
    session = Session()
    session.draft(1, 0, [(" one", -0.1)], True)
    session.align()
    assert [t.token_id for t in session.target.offers[-1].tokens] == [*ids_of(" one"), EOS]
    session = Session(eos=None)
    session.draft(1, 0, [(" one", -0.1)], True)
    session.align()
    assert [t.token_id for t in session.target.offers[-1].tokens] == ids_of(" one")
