"""One session's text: committed ids become text, draft text becomes ids, the answer is cut.

Stands between the wire and the `Target`. It hears from two threads, the event loop (drafts arrive)
and the target's (blocks are committed), and locks around both.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anydraft.text.alignment import Candidate, DraftAligner
from anydraft.text.detokenizer import StreamingDetokenizer
from anydraft.text.drafts import DraftBuffer
from anydraft.text.stopping import StopMatcher
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
from verify_node.sampling_settings import ScoredToken
from verify_node.target import Commit, Cut, DraftToken, TargetSession

MAX_CREDIT_PIECES = 48
"""Draft pieces that a session holds beyond its committed text, whatever the target could use."""
_END_PROBABILITY = 0.5
"""How likely an assistant's guess that the answer ends is taken to be."""
_REASONS = {
    "eos": FINISH_REASON_EOS,
    "stop": FINISH_REASON_STOP,
    "length": FINISH_REASON_LENGTH,
}


@dataclass(frozen=True, slots=True)
class Block:
    """What one step committed, as text."""

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


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    max_new_tokens: int
    eos_ids: frozenset[int]
    """Ids that end the answer; empty when the request ignores them."""
    end_id: int | None
    """The id that a draft's "the answer ends here" stands for."""
    stops: tuple[str, ...]


class SessionText:
    """A `SessionListener` that turns commits into `Block`s, and drafts into offers."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        aligner: DraftAligner,
        prompt_ids: Sequence[int],
        limits: AnswerLimits,
        target: TargetSession,
        on_event: Callable[[Block | Exception], None],
    ) -> None:
        self._aligner = aligner
        self._limits = limits
        self._target = target
        self._on_event = on_event
        self._lock = threading.Lock()
        self._ids = list(prompt_ids)
        self._num_prompt = len(prompt_ids)
        self._internal = StreamingDetokenizer(tokenizer, keep_special=True)
        self._visible = StreamingDetokenizer(tokenizer, keep_special=False)
        self._stops = StopMatcher(limits.stops)
        self._stop_found = ""
        self._user_text = ""
        self._drafts = DraftBuffer(max_pieces=MAX_CREDIT_PIECES)
        self._over = False
        self._opened_at = time.perf_counter()
        self.stats = GenerationStats(prompt_tokens=len(prompt_ids))

    # From the event loop.

    def draft(
        self, seq: int, base_bytes: int, pieces: Sequence[tuple[str, float]], ends: bool
    ) -> None:
        """A draft arrived. Stale ones are counted, never an error; an empty one says that nothing
        will come before the next verdict.
        """
        with self._lock:
            if self._over:
                return
            if not pieces and not ends and base_bytes == self._drafts.committed_bytes:
                self._target.decline(len(self._ids) - self._num_prompt)
            elif self._drafts.offer(seq, base_bytes, pieces, ends):
                self._offer()

    # From the target's thread.

    def cut(self, token_ids: Sequence[int]) -> Cut:
        with self._lock:
            return self._cut(token_ids)

    def committed(self, commit: Commit) -> None:
        with self._lock:
            block = self._block(commit)
            if block.finished is None:
                self._offer()
            else:
                self._over = True
        self._on_event(block)

    def failed(self, error: Exception) -> None:
        self._on_event(error)

    def _cut(self, token_ids: Sequence[int]) -> Cut:
        """The first end of sequence, stop string or limit; also makes the user's text."""
        shown: list[str] = []
        cut = Cut(len(token_ids))
        num_answer = len(self._ids) - self._num_prompt
        for count, token_id in enumerate(token_ids, start=1):
            if token_id in self._limits.eos_ids:
                cut = Cut(count, "eos")
                break
            shown.append(self._show(self._visible.push([token_id])))
            if self._stop_found:
                cut = Cut(count, "stop")
                break
            if num_answer + count >= self._limits.max_new_tokens:
                cut = Cut(count, "length")
                break
        if cut.reason in ("eos", "length"):
            shown.append(self._show(self._visible.flush()))
            if self._stop_found:
                cut = Cut(cut.num_tokens, "stop")
            else:
                shown.append(self._stops.flush())
        self._user_text = "".join(shown)
        return cut

    def _show(self, text: str) -> str:
        safe, stop = self._stops.push(text)
        self._stop_found = stop or ""
        return safe

    def _block(self, commit: Commit) -> Block:
        base_bytes = self._drafts.committed_bytes
        # An end of sequence has no text of its own: nothing is drafted or shown behind it.
        spoken = commit.token_ids[:-1] if commit.reason == "eos" else commit.token_ids
        drafted = self._internal.push(spoken[: commit.num_accepted])
        rest = self._internal.push(spoken[commit.num_accepted :])
        if commit.reason is not None:
            rest += self._internal.flush()
        text = drafted + rest
        self._ids.extend(commit.token_ids)
        draft_seq = self._drafts.last_seq if commit.num_drafted else 0
        self._drafts.commit(text)
        self._count(commit)
        return Block(
            draft_seq=draft_seq,
            base_bytes=base_bytes,
            text=text,
            user_text=self._user_text,
            token_ids=commit.token_ids,
            drafted_bytes=len(drafted.encode()),
            logprobs=[_logprobs(score) for score in commit.scores],
            credit_pieces=min(commit.draft_room, MAX_CREDIT_PIECES),
            held_bytes=self._drafts.held_bytes,
            step_ms=commit.step_ms,
            finished=self._finished(commit),
        )

    def _count(self, commit: Commit) -> None:
        stats = self.stats
        if not stats.rounds:
            stats.prefill_ms = (time.perf_counter() - self._opened_at) * 1e3
        else:
            stats.verify_ms += commit.step_ms
        stats.rounds += 1
        stats.draft_rounds += commit.num_drafted > 0
        stats.drafted_tokens += commit.num_drafted
        stats.accepted_tokens += commit.num_accepted
        stats.completion_tokens += len(commit.token_ids)
        stats.wait_ms += commit.wait_ms

    def _finished(self, commit: Commit) -> Finished | None:
        if commit.reason is None:
            return None
        self.stats.text_bytes = self._drafts.committed_bytes
        self.stats.stale_drafts = self._drafts.stale
        return Finished(reason=_REASONS[commit.reason], stop=self._stop_found, stats=self.stats)

    def _offer(self) -> None:
        """Tells the target what the held draft text means in its own ids."""
        candidates = self._aligner.align(self._ids, self._internal.pending, self._drafts.text)
        draft = _with_probabilities(candidates, self._drafts.pieces)
        if self._drafts.ends and self._limits.end_id is not None and self._covers(candidates):
            draft.append(DraftToken(self._limits.end_id, _END_PROBABILITY))
        self._target.offer(len(self._ids) - self._num_prompt, draft)

    def _covers(self, candidates: Sequence[Candidate]) -> bool:
        covered = candidates[-1].end if candidates else 0
        return covered == self._drafts.held_bytes


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
