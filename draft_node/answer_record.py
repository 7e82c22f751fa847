"""What is kept of one answer when it is over: a line in the log, without a word of its text."""

from __future__ import annotations

import logging
import time

from anydraft.v1.result_pb2 import FinishReason, GenerationStats
from anydraft.v1.verification_pb2 import VerifyResponse

_log = logging.getLogger(__name__)

CANCELLED = "cancelled"


class AnswerRecord:
    """Hears what the verify node says, and is told once how the answer ended."""

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
        seconds = time.perf_counter() - self._started_at_s
        if self._session_id is None:
            what = "not begun" if how == CANCELLED else "refused"
            _log.info("answer %s: %s after %.2f s", what, how, seconds)
            return
        _log.info(
            "answer %s: %s, %d tokens in %.2f s (%.1f/s), %s, %d pieces sent",
            self._session_id,
            how,
            self._num_tokens,
            seconds,
            self._num_tokens / seconds if seconds else 0.0,
            self._acceptance(),
            sent_pieces,
        )

    def _acceptance(self) -> str:
        """The verify node tells at the end, if the answer comes that far."""
        if self._stats is None:
            return "acceptance not known"
        drafted = self._stats.drafted_tokens
        share = self._stats.accepted_tokens / drafted if drafted else 0.0
        return f"{share:.0%} of {drafted} drafted tokens accepted"


def finish_word(reason: FinishReason.ValueType) -> str:
    """Such as "eos"."""
    return FinishReason.Name(reason).removeprefix("FINISH_REASON_").lower()
