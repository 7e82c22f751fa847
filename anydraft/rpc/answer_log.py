"""One line in a node's log for each answer: how it went, and how it ended."""

from __future__ import annotations

import logging
import time

from anydraft.errors import AnydraftError
from anydraft.v1.result_pb2 import FinishReason, GenerationStats

_log = logging.getLogger(__name__)

CANCELLED = "cancelled"
CLOSED = "closed by the client"


class AnswerLog:
    """Of one answer, from when it is asked for; says nothing of prompt or text. Whoever follows the
    answer notes here what it learns."""

    def __init__(self) -> None:
        self._began_at = time.perf_counter()
        self._is_over = False
        self.session_id: str | None = None
        """Once there is a session."""
        self.num_tokens = 0
        """Of the answer, so far."""
        self.stats: GenerationStats | None = None
        """On a draft node only once the answer is finished."""

    def end(self, how: str, *details: str) -> None:
        """`how` is a word: `finish_word`, `error_word`, CANCELLED or CLOSED. Only the first call
        counts."""
        if self._is_over:
            return
        self._is_over = True
        seconds = max(time.perf_counter() - self._began_at, 1e-6)
        if self.session_id is None:
            what = "not begun" if how == CANCELLED else "refused"
            _log.info("answer %s: %s, after %.2f s", what, how, seconds)
            return
        _log.info(
            "answer %r ended (%s): %d tokens in %.2f s, %.1f tokens/s, %s",
            self.session_id,
            how,
            self.num_tokens,
            seconds,
            self.num_tokens / seconds,
            ", ".join([self._acceptance(), *details]),
        )

    def _acceptance(self) -> str:
        if self.stats is None:
            return "accepted draft tokens not known"
        return f"{self.stats.accepted_tokens} of {self.stats.drafted_tokens} draft tokens accepted"


def finish_word(reason: FinishReason.ValueType) -> str:
    """Such as "eos"."""
    return FinishReason.Name(reason).removeprefix("FINISH_REASON_").lower()


def error_word(error: BaseException) -> str:
    """The reason of an error of ours, the type of another."""
    return error.reason if isinstance(error, AnydraftError) else type(error).__name__
