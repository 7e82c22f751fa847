"""Responses of `Generate` to events and a result: what the sync and the async stream share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from anydraft.client._answer import (
    AlternativeToken,
    FinishReason,
    GenerationResult,
    Stats,
    TextEvent,
    TokenLogprobs,
)
from anydraft.client._resume import ResumePoint, Session
from anydraft.errors import FailedPreconditionError, InternalError
from anydraft.v1 import generation_pb2, result_pb2

_FINISH_REASONS: dict[int, FinishReason] = {
    result_pb2.FINISH_REASON_EOS: "eos",
    result_pb2.FINISH_REASON_STOP: "stop",
    result_pb2.FINISH_REASON_LENGTH: "length",
}


class AnswerAssembler:
    """Fed every response of one call in order; knows nothing about how they arrive."""

    def __init__(
        self, clock: Callable[[], float] = monotonic, begun: ResumePoint | None = None
    ) -> None:
        """`begun`: where the answer was begun before."""
        self._clock = clock
        self._begun = begun
        self._started_at_s = clock()
        self._first_text_at_s: float | None = None
        self._is_abandoned = False
        self._opened = result_pb2.Opened()
        self._events: list[TextEvent] = []
        self._result: GenerationResult | None = None

    def begin(self) -> None:
        """The call starts now; times count from here."""
        self._started_at_s = self._clock()

    def abandon(self) -> None:
        """The caller closed the stream; nothing more will be added."""
        self._is_abandoned = True

    @property
    def may_go_on(self) -> bool:
        """Whether the rest of the answer can be asked for: nothing was shown, or enough is
        known."""
        return not self._events or self.resume_point is not None

    @property
    def resume_point(self) -> ResumePoint | None:
        """None while nothing is known of the answer, and where the server goes on with none."""
        if not self._opened.fingerprint:
            return self._begun
        return ResumePoint(
            text=self._text(),
            token_ids=self._token_ids(),
            logprobs=self._all_logprobs(),
            seed=self._opened.seed,
            max_new_tokens=self._opened.max_new_tokens,
            fingerprint=self._opened.fingerprint,
        )

    @property
    def session(self) -> Session | None:
        """None before the answer has begun, and where the server keeps none."""
        if not self._opened.resume_token:
            return None
        return Session(self._opened.session_id, self._opened.resume_token)

    def _text(self) -> str:
        begun = "" if self._begun is None else self._begun.text
        return begun + "".join(event.text for event in self._events)

    def _token_ids(self) -> tuple[int, ...]:
        begun = () if self._begun is None else self._begun.token_ids
        return (*begun, *(token for event in self._events for token in event.token_ids))

    def _all_logprobs(self) -> tuple[TokenLogprobs, ...]:
        begun = () if self._begun is None else self._begun.logprobs
        return (*begun, *(entry for event in self._events for entry in event.logprobs))

    def add(self, response: generation_pb2.GenerateResponse) -> TextEvent | None:
        """The event in `response`, if it holds one. Raises InternalError for nonsense."""
        match response.WhichOneof("message"):
            case "opened":
                self._opened = response.opened
            case "delta":
                return self._add_delta(response.delta)
            case "finished":
                self._result = self._finish(response.finished)
        # Anything else was added to the contract after this client: not meant for it.
        return None

    def result(self) -> GenerationResult:
        """The whole answer.

        Raises FailedPreconditionError when the caller closed the stream before its end, and
        InternalError when the server did.
        """
        if self._result is not None:
            return self._result
        if self._is_abandoned:
            raise FailedPreconditionError(
                "the stream was closed before the answer was finished: take the result first",
                reason="STREAM_CLOSED",
            )
        raise InternalError(
            "the server ended the stream before the answer was finished: ask again, "
            "and see the server's log if it happens again",
            reason="TRUNCATED_STREAM",
        )

    def _add_delta(self, delta: generation_pb2.TextDelta) -> TextEvent:
        if delta.text and self._first_text_at_s is None:
            self._first_text_at_s = self._clock()
        event = TextEvent(
            text=delta.text,
            token_ids=tuple(delta.token_ids),
            drafted_chars=_leading_chars(delta.text, delta.drafted_bytes),
            logprobs=_logprobs(delta.token_ids, delta.logprobs),
        )
        self._events.append(event)
        return event

    def _finish(self, finished: result_pb2.Finished) -> GenerationResult:
        reason = _FINISH_REASONS.get(finished.reason)
        if reason is None:
            raise InternalError(
                f"the server ended the answer for an unknown reason ({finished.reason}): "
                "use the same anydraft version on both sides",
                reason="UNKNOWN_FINISH_REASON",
            )
        return GenerationResult(
            text=self._text(),
            token_ids=self._token_ids(),
            finish_reason=reason,
            stop=finished.stop if reason == "stop" else None,
            seed=self._opened.seed,
            model=self._opened.model,
            session_id=self._opened.session_id,
            logprobs=self._all_logprobs(),
            stats=self._stats(finished.stats),
        )

    def _stats(self, stats: result_pb2.GenerationStats) -> Stats:
        started_at_s, first_text_at_s = self._started_at_s, self._first_text_at_s
        return Stats(
            prompt_tokens=stats.prompt_tokens,
            cached_tokens=stats.cached_tokens,
            completion_tokens=stats.completion_tokens,
            resumes=stats.resumes,
            rounds=stats.rounds,
            draft_rounds=stats.draft_rounds,
            drafted=stats.drafted_tokens,
            accepted=stats.accepted_tokens,
            stale_pieces=stats.stale_pieces,
            text_bytes=stats.text_bytes,
            prefill_ms=stats.prefill_ms,
            verify_ms=stats.verify_ms,
            wait_ms=stats.wait_ms,
            sent_pieces=stats.sent_pieces,
            draft_ms=stats.draft_ms,
            sent_bytes=stats.sent_bytes,
            received_bytes=stats.received_bytes,
            time_to_first_text_s=(
                first_text_at_s - started_at_s if first_text_at_s is not None else None
            ),
            total_s=self._clock() - started_at_s,
        )


def _leading_chars(text: str, num_bytes: int) -> int:
    """How many whole characters the first `num_bytes` bytes of `text` hold."""
    return len(text.encode()[:num_bytes].decode(errors="ignore"))


def _logprobs(
    token_ids: Sequence[int], logprobs: Sequence[result_pb2.TokenLogprobs]
) -> tuple[TokenLogprobs, ...]:
    if not logprobs:
        return ()
    if len(logprobs) != len(token_ids):
        raise InternalError(
            f"the server sent {len(logprobs)} log-probabilities for {len(token_ids)} tokens: "
            "use the same anydraft version on both sides",
            reason="MALFORMED_LOGPROBS",
        )
    return tuple(
        TokenLogprobs(
            token_id=token_id,
            logprob=entry.logprob,
            top=tuple(AlternativeToken(top.token_id, top.logprob) for top in entry.top),
        )
        for token_id, entry in zip(token_ids, logprobs, strict=True)
    )
