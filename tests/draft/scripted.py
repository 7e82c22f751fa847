"""An assistant that says what it is told to, and a verifier that knows the answer.

Both go by the real rules: ids and a cache on one side, the verifier's `DraftBuffer` on the other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from anydraft.text import DraftBuffer, TextTokenizer
from anydraft.text.continuation import Continuation
from anydraft.v1.verification_pb2 import Draft, Verdict
from draft_node.engines.base import Logits
from draft_node.engines.checks import check_feed, check_truncate, closed_state

_TARGET_TOKEN = re.compile(r"\s?\w{1,4}|\s?[^\w\s]|\s", re.DOTALL)
"""Cuts that are not the assistant's."""


@dataclass
class ScriptedEngine:
    """Continues the text of its ids as `script` does, and ends where the script ends. Text that is
    not the script's head is continued as if it had the same length."""

    tokenizer: TextTokenizer
    prompt_ids: Sequence[int]
    script: str
    context_tokens: int = 10_000
    doubts: frozenset[str] = frozenset()
    """Token texts that it is not sure of."""
    states: list[ScriptedState] = field(default_factory=list)
    description: str = "scripted"

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def eos_id(self) -> int:
        (token_id,) = self.tokenizer.encode("</s>")
        return token_id

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset([self.eos_id])

    def open(self) -> ScriptedState:
        self.states.append(ScriptedState(self))
        return self.states[-1]

    def next_id(self, ids: Sequence[int]) -> int:
        said = len(self.tokenizer.text_bytes(ids[len(self.prompt_ids) :]))
        script = self.script.encode()
        start = min(said, len(script))
        while start < len(script) and script[start] & 0xC0 == 0x80:
            start -= 1
        for token_id in Continuation(self.tokenizer).encode(self.prompt_ids, script[start:]):
            if start >= said:
                return token_id
            start += len(self.tokenizer.token_bytes(token_id))
        return self.eos_id


class ScriptedState:
    """Its cache is a list, so that a test can look into it."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.ids: list[int] = []
        self.num_fed = 0
        self.num_calls = 0
        self.is_closed = False

    @property
    def length(self) -> int:
        return len(self.ids)

    def feed(self, ids: Sequence[int]) -> Logits:
        self._check_open()
        check_feed(ids, self.length, self.engine)
        self.ids += ids
        self.num_fed += len(ids)
        self.num_calls += 1
        token_id = self.engine.next_id(self.ids)
        sure = self.engine.tokenizer.token_bytes(token_id).decode(errors="replace")
        logits = np.zeros(self.engine.vocab_size, np.float32)
        logits[token_id] = 4.0 if sure in self.engine.doubts else 12.0
        return logits

    def truncate(self, length: int) -> None:
        self._check_open()
        check_truncate(length, self.length)
        del self.ids[length:]

    def close(self) -> None:
        self.is_closed = True

    def _check_open(self) -> None:
        if self.is_closed:
            raise closed_state()


class ScriptedVerifier:
    """Has an answer ready, and accepts what drafts have in common with it."""

    def __init__(self, answer: str, *, credit_pieces: int = 48) -> None:
        self.answer = answer
        self.credit_pieces = credit_pieces
        self.committed = ""
        self.buffer = DraftBuffer(max_pieces=48)
        self.drafts: list[Draft] = []
        self.num_steps = 0

    @property
    def finished(self) -> bool:
        return self.committed == self.answer

    def well_supplied(self, num_pieces: int) -> bool:
        """Whether it holds so many pieces, or all that will come."""
        return self.buffer.piece_count >= num_pieces or self.buffer.ends

    def take(self, draft: Draft) -> None:
        self.drafts.append(draft)
        pieces = [(piece.text, piece.logprob) for piece in draft.pieces]
        self.buffer.offer(draft.seq, draft.base_bytes, pieces, draft.ends)

    def step(self, *, max_accepted: int | None = None) -> Verdict:
        """Accepts at most so many characters, and says one token more by itself."""
        rest, held = self.answer[len(self.committed) :], self.buffer.text
        accepted = 0
        while accepted < min(len(rest), len(held)) and rest[accepted] == held[accepted]:
            accepted += 1
        accepted = accepted if max_accepted is None else min(accepted, max_accepted)
        own = _TARGET_TOKEN.match(rest, accepted)
        text = rest[:accepted] + (own[0] if own else "")
        verdict = Verdict(
            draft_seq=self.buffer.last_seq if held else 0,
            base_bytes=len(self.committed.encode()),
            text=text,
            token_ids=[0],
            drafted_bytes=len(rest[:accepted].encode()),
            credit_pieces=self.credit_pieces,
            step_ms=1.0,
        )
        self.committed += text
        self.buffer.commit(text)
        verdict.held_bytes = self.buffer.held_bytes
        self.num_steps += 1
        return verdict
