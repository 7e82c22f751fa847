"""Drafts by a small model, in its own tokens.

The invariant: the engine's cache holds exactly the ids of the assistant's own encoding of prompt
and committed text, as of the last restart, and behind them its own draft.
"""

from __future__ import annotations

import codecs
import math
from dataclasses import dataclass

import numpy as np

from anydraft.text.mirror import AssistantMirror
from anydraft.text.tokenizer import TextTokenizer
from anydraft.v1.prompt_pb2 import Prompt
from draft_node.drafters.base import Piece
from draft_node.engines.base import AssistantEngine, Logits

DEFAULT_MIN_CONFIDENCE = 0.3

DEFAULT_MAX_CONTEXT_TOKENS = 4096
"""Memory of a session, and the time that it takes to read a long text before the first draft,
grow with it."""

_CHUNK_TOKENS = 32
"""Ids fed in one step: other sessions and new verdicts wait for one step at most."""
_MAX_KEPT_TOKENS = 1024
"""What is kept of a text that outgrows the assistant's context. It is all read again."""


@dataclass(frozen=True)
class AssistantDrafter:
    """See `draft_node.drafters.base.Drafter`."""

    engine: AssistantEngine
    tokenizer: TextTokenizer
    min_confidence: float = DEFAULT_MIN_CONFIDENCE
    """A piece less likely than this is the last of its draft."""
    max_context_tokens: int = DEFAULT_MAX_CONTEXT_TOKENS
    """How much of a text a session holds in its cache, where the engine could hold more."""

    @property
    def context_tokens(self) -> int:
        return min(self.engine.context_tokens, self.max_context_tokens)

    def __post_init__(self) -> None:
        self.tokenizer.check_vocabulary(self.engine.vocab_size)

    @property
    def description(self) -> str:
        return self.engine.description

    def open(self, prompt: Prompt) -> AssistantStream:
        return AssistantStream(self, prompt)


class AssistantStream:
    """See `draft_node.drafters.base.DraftStream`."""

    def __init__(self, drafter: AssistantDrafter, prompt: Prompt) -> None:
        self._engine = drafter.engine
        self._context_tokens = drafter.context_tokens
        self._tokenizer = drafter.tokenizer
        self._min_logprob = math.log(max(drafter.min_confidence, 1e-9))
        self._prompt = prompt
        self._state = drafter.engine.open()
        self._mirror: AssistantMirror | None = None
        self._uncommitted = ""
        """Committed text that the mirror has not heard of."""
        self._start = 0
        """Where in the mirror's ids the assistant's window begins."""
        self._ids: list[int] = []
        """What the cache must hold before the next piece can be read off."""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._restarted = True
        self.idle = False

    def commit(self, text: str, *, restart: bool) -> None:
        self._uncommitted += text
        if restart:
            self._restarted, self.idle = True, False

    def close(self) -> None:
        self._state.close()

    def step(self) -> Piece | None:
        if self._restarted:
            self._follow_committed_text()
        if len(self._ids) > self._context_tokens:
            self.idle = True
        if self.idle:
            return None
        logits = self._feed()
        return None if logits is None else self._next_piece(logits)

    def _follow_committed_text(self) -> None:
        """Cuts the cache where it differs from the committed text, dropping the draft."""
        if self._mirror is None:
            self._mirror = AssistantMirror(
                self._tokenizer, self._tokenizer.encode_prompt_leniently(self._prompt)
            )
        unchanged = self._mirror.append(self._uncommitted)
        self._uncommitted = ""
        ids = self._mirror.ids
        held, start = self._ids[: self._state.length], self._start
        self._start = self._window_start(len(ids))
        self._ids = ids[self._start :]
        same = _common(held, self._ids, unchanged - start) if self._start == start else 0
        # The logits of the last id are needed, so it is fed even when it is held.
        self._state.truncate(min(same, len(self._ids) - 1))
        self._decoder.reset()
        self._restarted = False

    def _window_start(self, length: int) -> int:
        """Moves only when the context is nearly full, because everything is read again then."""
        context = self._context_tokens
        if length - self._start <= context - min(64, context // 4):
            return self._start
        return length - min(context // 2, _MAX_KEPT_TOKENS)

    def _feed(self) -> Logits | None:
        chunk = self._ids[self._state.length :][:_CHUNK_TOKENS]
        logits = self._state.feed(chunk)
        return logits if self._state.length == len(self._ids) else None

    def _next_piece(self, logits: Logits) -> Piece | None:
        logits = logits[: self._tokenizer.id_limit]
        token_id = int(logits.argmax())
        if not np.isfinite(logits[token_id]):
            # The engine overflowed (argmax finds NaN as well): what it says means nothing.
            self.idle = True
            return None
        logprob = -math.log(float(np.exp(logits - logits[token_id]).sum()))
        confident = logprob >= self._min_logprob
        if token_id in self._engine.eos_ids or self._tokenizer.is_special(token_id):
            # No special token is draft text: it would mean nothing to the target.
            self.idle = True
            ends = confident and token_id in self._engine.eos_ids
            return Piece("", logprob, ends=True) if ends else None
        text = self._decode(token_id)
        if text is None:
            self.idle = True
            return None
        self._ids.append(token_id)
        self.idle = not confident
        return Piece(text, logprob)

    def _decode(self, token_id: int) -> str | None:
        """None when the bytes cannot become text, or there are none."""
        data = self._tokenizer.token_bytes(token_id)
        try:
            return self._decoder.decode(data) if data else None
        except UnicodeDecodeError:
            return None


def _common(held: list[int], wanted: list[int], known: int) -> int:
    """How many leading ids agree; the first `known` are known to."""
    count = min(max(known, 0), len(held), len(wanted))
    while count < min(len(held), len(wanted)) and held[count] == wanted[count]:
        count += 1
    return count
