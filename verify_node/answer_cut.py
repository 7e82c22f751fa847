"""An answer's ids as text, up to where it ends: what is kept of every block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anydraft.text.answer import AnswerText
from anydraft.text.tokenizer import TextTokenizer
from verify_node.target import FinishReason


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    max_new_tokens: int
    eos_ids: frozenset[int]
    """Ids that end the answer; empty when the request ignores them."""
    end_id: int | None
    """The id that a draft's "the answer ends here" stands for."""
    stops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """How much of a block is kept, and its text."""

    num_tokens: int
    reason: FinishReason | None
    texts: Sequence[str]
    """Internal text: of each token, and what ends with the answer."""
    user_text: str


class AnswerCutter:
    """Of one answer. It says the same of an id however the ids before it came in blocks, so an
    answer that was begun elsewhere goes on where the same ids are cut first."""

    def __init__(self, tokenizer: TextTokenizer, limits: AnswerLimits) -> None:
        self._limits = limits
        self._answer = AnswerText(tokenizer, limits.stops)
        self._num_tokens = 0

    @property
    def pending(self) -> bytes:
        """Bytes of ids that are not text yet."""
        return self._answer.pending

    @property
    def stop(self) -> str | None:
        """The stop string that ended the answer."""
        return self._answer.stop

    def cut(self, token_ids: Sequence[int]) -> Cut:
        """At the first end of sequence, stop string or limit."""
        texts: list[str] = []
        shown: list[str] = []
        left = self._limits.max_new_tokens - self._num_tokens
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
        self._num_tokens += count
        return Cut(count, reason, texts, "".join(shown))
