"""One line in the log for each answer: how it went, and how it ended."""

from __future__ import annotations

import logging
import time

from anydraft.errors import AnydraftError
from anydraft.v1.result_pb2 import GenerationStats

_log = logging.getLogger(__name__)


class AnswerLog:
    """Of one answer; begins when it is asked for, and says nothing of prompt or text."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._began_at = time.perf_counter()

    def refused(self, error: BaseException) -> None:
        """It was never opened."""
        _log.info("answer %r refused: %s", self._session_id, _name(error))

    def ended(self, how: str, stats: GenerationStats) -> None:
        """`how` is a finish reason, "cancelled", or the reason of an error."""
        seconds = max(time.perf_counter() - self._began_at, 1e-6)
        tokens = stats.completion_tokens
        _log.info(
            "answer %r ended (%s): prompt %d tokens, answer %d tokens in %.2f s, %.1f tokens/s, "
            "%d of %d draft tokens accepted",
            self._session_id,
            how,
            stats.prompt_tokens,
            tokens,
            seconds,
            tokens / seconds,
            stats.accepted_tokens,
            stats.drafted_tokens,
        )

    def failed(self, error: BaseException, stats: GenerationStats) -> None:
        self.ended(_name(error), stats)


def _name(error: BaseException) -> str:
    return error.reason if isinstance(error, AnydraftError) else type(error).__name__
