"""One session's text: committed ids become text, draft text becomes ids, the answer is cut.

Stands between the wire and the `Target`. Drafts arrive on the event loop and are aligned on a
thread of their own; blocks are committed on the target's thread. What they share, the draft text
and the ids that it follows, is guarded by a lock that is never held for long.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anydraft.errors import AnydraftError
from anydraft.text.alignment import DraftAligner
from anydraft.text.continuation import WINDOW_TOKENS
from anydraft.text.lookup import PromptLookup
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
from verify_node.answer_cut import AnswerCutter, AnswerLimits, Cut
from verify_node.draft_tree import behind
from verify_node.sampling_settings import ScoredToken
from verify_node.session_draft import MAX_CREDIT_PIECES, DraftSnapshot, SessionDraft
from verify_node.target import Block, Commit, FinishReason, Offer, TargetSession

_log = logging.getLogger(__name__)

_MOST_HELD_UP = 3
"""Other sessions that may wait while all that one holds is aligned, for half a millisecond. That
what came last is checked a step earlier is worth a part of a token, to one session."""

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

    newest_piece: int
    """The newest piece of the draft that was checked, 0 for none."""
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
    turn_ms: float
    """`Block.turn_ms`"""
    step_ms: float
    finished: Finished | None


SessionEvent = Admitted | TextBlock | AnydraftError


@dataclass(frozen=True, slots=True)
class Begun:
    """An answer that was begun elsewhere: its ids, cut."""

    cutter: AnswerCutter
    token_ids: tuple[int, ...] = ()
    text: str = ""
    """Internal text of the ids, as far as it was announced."""
    finish_reason: FinishReason | None = None
    """Set where nothing is left to do but to say so."""


class SessionText:
    """A `SessionListener` that turns blocks into `TextBlock`s, and drafts into offers."""

    def __init__(
        self,
        aligner: DraftAligner,
        prompt_ids: Sequence[int],
        limits: AnswerLimits,
        begun: Begun,
        lookup: PromptLookup | None,
        target: TargetSession,
        on_event: Callable[[SessionEvent], None],
        align_aside: Callable[[Callable[[], None]], object],
    ) -> None:
        """`lookup` drafts, too, where it is given. `align_aside` runs what it is given on another
        thread, one after the other."""
        self._aligner = aligner
        self._limits = limits
        self._target = target
        self._on_event = on_event
        self._align_aside = align_aside
        # The target's thread only.
        self._cutter = begun.cutter
        self._opened_at = time.perf_counter()
        self.stats = GenerationStats(
            prompt_tokens=len(prompt_ids), completion_tokens=len(begun.token_ids)
        )
        # Shared.
        self._lock = threading.Lock()
        self._ids = [*prompt_ids, *begun.token_ids]
        self._num_prompt = len(prompt_ids)
        self._pending = begun.cutter.pending
        """Bytes of committed ids that are not text yet."""
        self._draft = SessionDraft(lookup)
        if begun.text:
            self._draft.commit(begun.text.encode(), 0)
        self._alignment_due = False
        self._declined: float | None = None
        """Set where nothing will come behind what is being aligned: `Draft.needs_ms`."""
        self._offer: Offer | None = None
        """The newest, from which the target goes on by itself while the answer follows it."""
        self._over = False

    @property
    def committed_bytes(self) -> int:
        """Of the announced text."""
        return self._draft.committed_bytes

    # From the event loop.

    def draft(self, draft: Draft) -> None:
        """A draft arrived. Stale pieces are counted, never an error; a draft without pieces says
        that nothing will come before the next verdict, behind what came before it."""
        with self._lock:
            if self._over:
                return
            if not draft.pieces:
                if draft.base_bytes == self._draft.committed_bytes:
                    if self._alignment_due:
                        self._declined = draft.needs_ms
                    else:
                        self._target.decline(len(self._ids) - self._num_prompt, draft.needs_ms)
                return
            if not self._draft.take(draft) or self._alignment_due:
                return
            self._alignment_due = True
        self._align_aside(self._align_and_offer)

    # From the thread of the alignments.

    def _align_and_offer(self) -> None:
        with self._lock:
            if not self._alignment_due or self._over:
                return  # the target's thread was first
            self._alignment_due = False
            snapshot = self._snapshot()
            declined, self._declined = self._declined, None
        if (offer := self._aligned(snapshot)) is not None:
            with self._lock:
                self._keep(offer)
            self._target.offer(offer)
        if declined is not None:
            self._target.decline(snapshot.num_committed, declined)

    # From the target's thread.

    def opened(self, cached_tokens: int) -> None:
        self.stats.cached_tokens = cached_tokens
        self._on_event(Admitted())

    def commit(self, block: Block) -> Commit:
        """Most of what is drafted is aligned aside, while the target computes: it waits for an
        alignment here only where it lacks something, and beside many sessions for a brief one."""
        cut = self._cutter.cut(block.token_ids)
        with self._lock:
            text = self._commit(block, cut)
            self._over = cut.reason is not None
            self._declined = None
            holds_any = self._draft.holds_any and not self._over
            misses = holds_any and (self._alignment_due or not self._has_offered())
            brief = block.num_beside > _MOST_HELD_UP
            snapshot = self._snapshot(brief=brief) if misses else None
            is_complete = misses and not brief
            align_soon = holds_any and not (is_complete or self._alignment_due)
            self._alignment_due = holds_any and not is_complete
        offer = None if snapshot is None else self._aligned(snapshot)
        if offer is not None:
            with self._lock:
                self._keep(offer)

        def afterwards() -> None:
            self._on_event(text)
            if align_soon:
                self._align_aside(self._align_and_offer)

        return Commit(cut.num_tokens, cut.reason, offer, afterwards)

    def failed(self, error: AnydraftError) -> None:
        with self._lock:
            self._over = True
        self._on_event(error)

    def _commit(self, block: Block, cut: Cut) -> TextBlock:
        """Under the lock."""
        base_bytes = self._draft.committed_bytes
        token_ids = block.token_ids[: cut.num_tokens]
        num_accepted = min(block.num_accepted, cut.num_tokens)
        drafted, text = "".join(cut.texts[:num_accepted]), "".join(cut.texts)
        self._ids.extend(token_ids)
        self._pending = self._cutter.pending
        self._draft.commit(text.encode(), block.num_drafted)
        self._count(block, cut.num_tokens, num_accepted)
        return TextBlock(
            newest_piece=block.newest_piece,
            base_bytes=base_bytes,
            text=text,
            user_text=cut.user_text,
            token_ids=token_ids,
            drafted_bytes=len(drafted.encode()),
            logprobs=[_logprobs(score) for score in block.scores[: cut.num_tokens]],
            # Drafters work ahead of steps: what one step could use says only whether to go on.
            credit_pieces=MAX_CREDIT_PIECES if block.draft_room else 0,
            turn_ms=block.turn_ms,
            step_ms=block.step_ms,
            finished=self.finished(cut.reason),
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

    def finished(self, reason: FinishReason | None) -> Finished | None:
        """What the last block says of an answer that ends for this reason; None: it goes on."""
        if reason is None:
            return None
        self.stats.text_bytes = self._draft.committed_bytes
        self.stats.stale_pieces = self._draft.stale_pieces
        return Finished(reason=_REASONS[reason], stop=self._cutter.stop or "", stats=self.stats)

    def _keep(self, offer: Offer) -> None:
        """Under the lock. As the target does with offers."""
        if self._offer is None or self._offer.num_committed <= offer.num_committed:
            self._offer = offer

    def _has_offered(self) -> bool:
        """Under the lock. Whether the target has anything of the draft where the answer stands."""
        if self._offer is None:
            return False
        since = self._ids[self._num_prompt + self._offer.num_committed :]
        return bool(behind(self._offer.tokens, since))

    def _snapshot(self, *, brief: bool = False) -> DraftSnapshot:
        """Under the lock."""
        num_committed = len(self._ids) - self._num_prompt
        context = self._ids[-WINDOW_TOKENS:]
        return self._draft.snapshot(num_committed, context, self._pending, brief=brief)

    # From either thread, without the lock.

    def _aligned(self, snapshot: DraftSnapshot) -> Offer | None:
        """What the draft text means in ids of the target. An answer needs no drafts, so a fault
        here costs this draft and no more."""
        try:
            return snapshot.offer(self._aligner, self._limits.end_id)
        except Exception:
            _log.exception("a draft could not be aligned; the answer goes on without it")
        except BaseException:  # a panic of the tokenizers library
            _log.critical("a draft broke the tokenizer; the answer goes on without it")
        return None


def _logprobs(score: ScoredToken) -> TokenLogprobs:
    return TokenLogprobs(
        logprob=score.logprob,
        top=[TokenLogprob(token_id=token_id, logprob=value) for token_id, value in score.top],
    )
