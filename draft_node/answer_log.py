"""One line in the log for each answer: how it went, and how it ended."""

from __future__ import annotations

import logging
import time

from anydraft.v1.result_pb2 import FinishReason, GenerationStats
from anydraft.v1.verification_pb2 import VerifyResponse

_log = logging.getLogger(__name__)

CANCELLED = "cancelled"


class AnswerLog:
    """Of one answer. Hears what the verify node says, and is told once how the answer ended; says
    nothing of prompt or text."""

    def __init__(self) -> None:
        self._started_at_s = time.perf_counter()
        self._session_id: str | None = None
        self._num_tokens = 0
        self._stats: GenerationStats | None = None
        self._is_over = False

    def hear(self, response: VerifyResponse) -> None:
        match response.WhichOneof("message"):
            case "opened":
                self._session_id = response.opened.session_id
            case "verdict":
                self._num_tokens += len(response.verdict.token_ids)
            case "finished":
                self._stats = response.finished.stats

    def end(self, how: str, *, sent_pieces: int = 0) -> None:
        """`how` is a word: `finish_word`, the reason of an error, or CANCELLED. Only the first call
        counts."""
        if self._is_over:
            return
        self._is_over = True
        seconds = max(time.perf_counter() - self._started_at_s, 1e-6)
        if self._session_id is None:
            what = "not begun" if how == CANCELLED else "refused"
            _log.info("answer %s: %s, after %.2f s", what, how, seconds)
            return
        _log.info(
            "answer %r ended (%s): %d tokens in %.2f s, %.1f tokens/s, %s, %d pieces sent",
            self._session_id,
            how,
            self._num_tokens,
            seconds,
            self._num_tokens / seconds,
            self._acceptance(),
            sent_pieces,
        )

    def _acceptance(self) -> str:
        """The verify node tells at the end, if the answer comes that far."""
        if self._stats is None:
            return "accepted draft tokens not known"
        return (
            f"{self._stats.accepted_tokens} of {self._stats.drafted_tokens} draft tokens accepted"
        )


def finish_word(reason: FinishReason.ValueType) -> str:
    """Such as "eos"."""
    return FinishReason.Name(reason).removeprefix("FINISH_REASON_").lower()
