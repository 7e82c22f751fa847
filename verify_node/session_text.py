"""One session's text: committed ids become text, draft text becomes ids, the answer is cut.

Stands between the wire and the `Target`. Drafts arrive on the event loop and are aligned on a
thread of their own; blocks are committed on the target's thread. What they share, the draft text
and the ids that it follows, is guarded by a lock that is never held for long.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anydraft.errors import AnydraftError
from anydraft.text.alignment import Candidate, DraftAligner
from anydraft.text.answer import AnswerText
from anydraft.text.continuation import WINDOW_TOKENS
from anydraft.text.drafts import DraftBuffer
from anydraft.text.tokenizer import TextTokenizer
from anydraft.v1.result_pb2 import (
    FINISH_REASON_EOS,
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
    Finished,
    GenerationStats,
    TokenLogprob,
    TokenLogprobs,
)
from anydraft.v1.verification_pb2 import Draft
from verify_node.sampling_settings import ScoredToken
from verify_node.target import Block, Commit, DraftToken, FinishReason, Offer, TargetSession

_log = logging.getLogger(__name__)

MAX_CREDIT_PIECES = 48
"""Draft pieces that a session holds beyond its committed text, whatever the target could use."""
_END_PROBABILITY = 0.5
"""How likely an assistant's guess that the answer ends is taken to be."""
_REASONS = {
    "eos": FINISH_REASON_EOS,
    "stop": FINISH_REASON_STOP,
    "length": FINISH_REASON_LENGTH,
}


class Admitted:
    """The target has room for the session."""


@dataclass(frozen=True, slots=True)
class TextBlock:
    """What one block committed, as text."""

    draft_seq: int
    """The newest draft that was checked, 0 for none."""
    base_bytes: int
    text: str
    """Whole characters, special tokens written out; starts at `base_bytes` of the answer."""
    user_text: str
    """What a user may see: no special tokens, no stop string, nothing that may become one."""
    token_ids: tuple[int, ...]
    drafted_bytes: int
    """Leading bytes of `text` that were drafted and accepted."""
    logprobs: list[TokenLogprobs]
    credit_pieces: int
    held_bytes: int
    step_ms: float
    finished: Finished | None


SessionEvent = Admitted | TextBlock | AnydraftError


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    max_new_tokens: int
    eos_ids: frozenset[int]
    """Ids that end the answer; empty when the request ignores them."""
    end_id: int | None
    """The id that a draft's "the answer ends here" stands for."""
    stops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Cut:
    """How much of a block is kept, and its text."""

    num_tokens: int
    reason: FinishReason | None
    texts: Sequence[str]
    """Internal text: of each token, and what ends with the answer."""
    user_text: str


@dataclass(frozen=True, slots=True)
class _Held:
    """The draft text of one moment, and what it follows."""

    seq: int
    num_committed: int
    context: Sequence[int]
    """The last committed ids, as many as an alignment may look at."""
    pending: bytes
    text: str
    pieces: Sequence[tuple[str, float]]
    ends: bool


class SessionText:
    """A `SessionListener` that turns blocks into `TextBlock`s, and drafts into offers."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        aligner: DraftAligner,
        prompt_ids: Sequence[int],
        limits: AnswerLimits,
        target: TargetSession,
        on_event: Callable[[SessionEvent], None],
        align_aside: Callable[[Callable[[], None]], object],
    ) -> None:
        """`align_aside` runs what it is given on another thread, one after the other."""
        self._aligner = aligner
        self._limits = limits
        self._target = target
        self._on_event = on_event
        self._align_aside = align_aside
        # The target's thread only.
        self._answer = AnswerText(tokenizer, limits.stops)
        self._opened_at = time.perf_counter()
        self.stats = GenerationStats(prompt_tokens=len(prompt_ids))
        # Shared.
        self._lock = threading.Lock()
        self._ids = list(prompt_ids)
        self._num_prompt = len(prompt_ids)
        self._pending = b""
        """Bytes of committed ids that are not text yet."""
        self._drafts = DraftBuffer(max_pieces=MAX_CREDIT_PIECES)
        self._alignment_due = False
        self._over = False

    # From the event loop.

    def draft(self, draft: Draft) -> None:
        """A draft arrived. Stale ones are counted, never an error; an empty one says that nothing
        will come before the next verdict.
        """
        # One by one, as far as there is room: a message can hold two million of them.
        pieces = ((piece.text, piece.logprob) for piece in draft.pieces)
        with self._lock:
            if self._over:
                return
            is_empty = not draft.pieces and not draft.ends
            if is_empty and draft.base_bytes == self._drafts.committed_bytes:
                self._target.decline(len(self._ids) - self._num_prompt)
                return
            taken = self._drafts.offer(draft.seq, draft.base_bytes, pieces, draft.ends)
            if not taken or self._alignment_due:
                return
            self._alignment_due = True
        self._align_aside(self._align_and_offer)

    # From the thread of the alignments.

    def _align_and_offer(self) -> None:
        with self._lock:
            if not self._alignment_due or self._over:
                return  # the target's thread was first
            self._alignment_due = False
            held = self._held()
        if (offer := self._aligned(held)) is not None:
            self._target.offer(offer)

    # From the target's thread.

    def opened(self) -> None:
        self._on_event(Admitted())

    def commit(self, block: Block) -> Commit:
        cut = self._cut(block.token_ids)
        with self._lock:
            text = self._commit(block, cut)
            self._over = cut.reason is not None
            self._alignment_due = False
            held = self._held()
        self._on_event(text)
        if cut.reason is not None:
            return Commit(cut.num_tokens, cut.reason)
        return Commit(cut.num_tokens, offer=self._aligned(held))

    def failed(self, error: AnydraftError) -> None:
        with self._lock:
            self._over = True
        self._on_event(error)

    def _cut(self, token_ids: Sequence[int]) -> _Cut:
        """At the first end of sequence, stop string or limit."""
        texts: list[str] = []
        shown: list[str] = []
        left = self._limits.max_new_tokens - (len(self._ids) - self._num_prompt)
        reason: FinishReason | None = None
        for token_id in token_ids[:left]:
            if token_id in self._limits.eos_ids:
                reason = "eos"
                # It has no text of its own: nothing is drafted or shown behind it.
                texts.append("")
                break
            part = self._answer.push(token_id)
            texts.append(part.internal)
            shown.append(part.shown)
            if self._answer.stop is not None:
                break
        count = len(texts)
        if reason is None and self._answer.stop is None and count == left:
            reason = "length"
        if reason is not None or self._answer.stop is not None:
            last = self._answer.finish()  # may complete a stop string, too
            texts.append(last.internal)
            shown.append(last.shown)
        if self._answer.stop is not None:
            reason = "stop"
        return _Cut(count, reason, texts, "".join(shown))

    def _commit(self, block: Block, cut: _Cut) -> TextBlock:
        """Under the lock."""
        base_bytes = self._drafts.committed_bytes
        token_ids = block.token_ids[: cut.num_tokens]
        num_accepted = min(block.num_accepted, cut.num_tokens)
        drafted, text = "".join(cut.texts[:num_accepted]), "".join(cut.texts)
        self._ids.extend(token_ids)
        self._pending = self._answer.pending
        self._drafts.commit(text)
        self._count(block, cut.num_tokens, num_accepted)
        return TextBlock(
            draft_seq=block.draft_seq,
            base_bytes=base_bytes,
            text=text,
            user_text=cut.user_text,
            token_ids=token_ids,
            drafted_bytes=len(drafted.encode()),
            logprobs=[_logprobs(score) for score in block.scores[: cut.num_tokens]],
            credit_pieces=min(block.draft_room, MAX_CREDIT_PIECES),
            held_bytes=self._drafts.held_bytes,
            step_ms=block.step_ms,
            finished=self._finished(cut.reason),
        )

    def _count(self, block: Block, num_tokens: int, num_accepted: int) -> None:
        stats = self.stats
        if not stats.rounds:
            stats.prefill_ms = (time.perf_counter() - self._opened_at) * 1e3
        else:
            stats.verify_ms += block.step_ms
        stats.rounds += 1
        stats.draft_rounds += block.num_drafted > 0
        stats.drafted_tokens += block.num_drafted
        stats.accepted_tokens += num_accepted
        stats.completion_tokens += num_tokens
        stats.wait_ms += block.wait_ms

    def _finished(self, reason: FinishReason | None) -> Finished | None:
        if reason is None:
            return None
        self.stats.text_bytes = self._drafts.committed_bytes
        self.stats.stale_drafts = self._drafts.stale
        return Finished(reason=_REASONS[reason], stop=self._answer.stop or "", stats=self.stats)

    def _held(self) -> _Held:
        """Under the lock."""
        return _Held(
            seq=self._drafts.last_seq,
            num_committed=len(self._ids) - self._num_prompt,
            context=self._ids[-WINDOW_TOKENS:],
            pending=self._pending,
            text=self._drafts.text,
            pieces=self._drafts.pieces,
            ends=self._drafts.ends,
        )

    # From either thread, without the lock.

    def _aligned(self, held: _Held) -> Offer | None:
        """What the draft text means in ids of the target. An answer needs no drafts, so a fault
        here costs this draft and no more."""
        try:
            return self._align(held)
        except Exception:
            _log.exception("a draft could not be aligned; the answer goes on without it")
        except BaseException:  # a panic of the tokenizers library
            _log.critical("a draft broke the tokenizer; the answer goes on without it")
        return None

    def _align(self, held: _Held) -> Offer:
        candidates = self._aligner.align(held.context, held.pending, held.text)
        draft = _with_probabilities(candidates, held.pieces)
        covered = candidates[-1].end if candidates else 0
        end_id = self._limits.end_id
        if held.ends and end_id is not None and covered == len(held.text.encode()):
            draft.append(DraftToken(end_id, _END_PROBABILITY))
        return Offer(held.num_committed, tuple(draft), held.seq)


def _with_probabilities(
    candidates: Sequence[Candidate], pieces: Sequence[tuple[str, float]]
) -> list[DraftToken]:
    """The assistant's log-probabilities, moved from its pieces to the target's tokens.

    A piece counts towards the first token that it overlaps: what a token says is as likely as all
    pieces that begin in it.
    """
    tokens: list[DraftToken] = []
    index, begins_at = 0, 0
    for candidate in candidates:
        logprob = 0.0
        while index < len(pieces) and begins_at < candidate.end:
            logprob += pieces[index][1]
            begins_at += len(pieces[index][0].encode())
            index += 1
        probability = math.exp(min(logprob, 0.0)) if math.isfinite(logprob) else 0.0
        tokens.append(DraftToken(candidate.token_id, probability))
    return tokens


def _logprobs(score: ScoredToken) -> TokenLogprobs:
    return TokenLogprobs(
        logprob=score.logprob,
        top=[TokenLogprob(token_id=token_id, logprob=value) for token_id, value in score.top],
    )
