"""Assistants that say what they are told to, and a verifier that knows the answer.

All go by the real rules: trunk and branches on one side, the verifier's `TextTree` on the other.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from anydraft.errors import ContextFullError, InternalError
from anydraft.text import TextTokenizer
from anydraft.text.continuation import Continuation
from anydraft.text.tree import Node, Piece, TextTree
from anydraft.v1.verification_pb2 import Draft, Verdict
from draft_node.engines.base import Choices, Path

_TARGET_TOKEN = re.compile(r"\s?\w{1,4}|\s?[^\w\s]|\s", re.DOTALL)
"""Cuts that are not the assistant's."""
SURE, UNSURE = math.log(0.97), math.log(0.5)


@dataclass
class ScriptedEngine:
    """Continues the text of its ids as `script` does, and ends where the script ends. Text that is
    not the script's head is continued as if it had the same length."""

    tokenizer: TextTokenizer
    prompt_ids: Sequence[int]
    script: str
    context_tokens: int = 10_000
    max_paths: int = 4
    chunk_tokens: int = 32
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

    def choices(self, ids: Sequence[int]) -> Choices:
        """What may follow: the script's token first, and two that it never means."""
        token_id = self.next_id(ids)
        sure = self.tokenizer.token_bytes(token_id).decode(errors="replace") not in self.doubts
        best = SURE if sure else UNSURE
        others = [self.tokenizer.encode(word)[0] for word in ("#", "%", "@")]
        others = [other for other in others if other != token_id][:2]
        rest = math.log(1 - math.exp(best)) - math.log(4)
        return Choices((token_id, *others), (best, rest, rest))

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


@dataclass
class HashedEngine(ScriptedEngine):
    """Any text may follow any other, with probabilities that nobody could guess."""

    words: tuple[str, ...] = (" a", " b", "the", ".", "ab", "b", " the")

    def choices(self, ids: Sequence[int]) -> Choices:
        return hashed_choices(self, ids)


def hashed_choices(engine: HashedEngine, ids: Sequence[int]) -> Choices:
    candidates = {engine.tokenizer.encode(word)[0] for word in engine.words} | {engine.eos_id}
    weights = {}
    for token_id in candidates:
        digest = hashlib.blake2b(repr((tuple(ids), token_id)).encode(), digest_size=4).digest()
        weights[token_id] = (1 + int.from_bytes(digest, "big") / 2**32) ** 6
    total = sum(weights.values())
    best = sorted(weights, key=lambda token_id: -weights[token_id])
    return Choices(tuple(best), tuple(math.log(weights[token_id] / total) for token_id in best))


class ScriptedState:
    """Its trunk is a list, so that a test can look into it; it keeps to the contract to the
    letter."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.ids: list[int] = []
        self.branches: set[Path] = set()
        """Paths behind the trunk that are held."""
        self.num_read = 0
        """Ids of the trunk that were read, not drafted."""
        self.num_fed = 0
        """Ids that were computed."""
        self.num_calls = 0
        self.is_closed = False

    @property
    def length(self) -> int:
        return len(self.ids)

    def read(self, ids: Sequence[int], *, wanted: bool) -> Choices | None:
        self._check(ids, len(ids))
        self.branches.clear()
        self.ids += ids
        self.num_read += len(ids)
        self.num_fed += len(ids)
        self.num_calls += 1
        return self.engine.choices(self.ids) if wanted else None

    def expand(self, paths: Sequence[Path]) -> list[Choices]:
        if not 1 <= len(paths) <= self.engine.max_paths or not all(paths) or not self.ids:
            raise _misused(f"expand {paths}")
        heads = {path[:end] for path in paths for end in range(1, len(path) + 1)}
        held = self.branches if self.engine.max_paths > 1 else self.branches & heads
        self._check([token_id for path in paths for token_id in path], len(held | heads))
        self.num_fed += len(heads - held)
        self.num_calls += 1
        self.branches = held | heads
        return [self.engine.choices([*self.ids, *path]) for path in paths]

    def advance(self, path: Path) -> int:
        self._check(path, 0)
        count = 0
        while count < len(path) and path[: count + 1] in self.branches:
            count += 1
        self.ids += path[:count]
        below = [branch for branch in self.branches if branch[:count] == path[:count]]
        self.branches = {branch[count:] for branch in below if len(branch) > count}
        return count

    def truncate(self, length: int) -> None:
        self._check([0], 0)
        if not 0 <= length <= self.length:
            raise _misused(f"truncate {length}")
        self.branches.clear()
        del self.ids[length:]

    def close(self) -> None:
        self.is_closed = True

    def _check(self, ids: Sequence[int], more: int) -> None:
        if self.is_closed or not ids or not 0 <= min(ids) <= max(ids) < self.engine.vocab_size:
            raise _misused(f"closed {self.is_closed}, ids {ids}")
        if self.length + more > self.engine.context_tokens:
            raise ContextFullError("full", reason="ASSISTANT_CONTEXT_FULL")


def _misused(what: str) -> InternalError:
    return InternalError(what, reason="ASSISTANT_MISUSED")


class ScriptedVerifier:
    """Has an answer ready, and accepts what the tree has in common with it."""

    def __init__(
        self, answer: str, *, credit_pieces: int = 48, credit_bytes: int = 16 * 1024
    ) -> None:
        self.answer = answer
        self.credit_pieces = credit_pieces
        self.credit_bytes = credit_bytes
        self.committed = ""
        self.tree = TextTree(max_pieces=10_000, max_bytes=1024 * 1024)
        self.drafts: list[Draft] = []
        self.num_steps = 0
        self.num_stale = 0
        self.num_repeated = 0

    @property
    def finished(self) -> bool:
        return self.committed == self.answer

    @property
    def held_bytes(self) -> int:
        return sum(len(held.node.text) for held in self.tree.best_first())

    @property
    def longest(self) -> int:
        """Pieces of the longest path that agrees with the answer."""
        rest = self.answer.encode()[len(self.committed.encode()) :]
        held = self.tree.best_first()
        return max((h.depth + 1 for h in held if rest.startswith(self.said(h.node))), default=0)

    def take(self, draft: Draft) -> None:
        self.drafts.append(draft)
        for piece_id, piece in enumerate(draft.pieces, draft.first_piece):
            said = Piece(piece.text, piece.logprob, piece.ends)
            node = self.tree.add(piece_id, piece.parent, draft.base_bytes, said)
            self.num_stale += node is None
            self.num_repeated += node is not None and len(node.ids) > 1

    def step(self, *, max_accepted: int | None = None) -> Verdict:
        """Accepts at most so many characters, and says one token more by itself."""
        rest = self.answer[len(self.committed) :]
        accepted = len(self._accepted(rest.encode()).decode(errors="ignore"))
        accepted = accepted if max_accepted is None else min(accepted, max_accepted)
        own = _TARGET_TOKEN.match(rest, accepted)
        text = rest[:accepted] + (own[0] if own else "")
        verdict = Verdict(
            newest_piece=self.tree.newest,
            base_bytes=len(self.committed.encode()),
            text=text,
            token_ids=[0],
            drafted_bytes=len(rest[:accepted].encode()),
            credit_pieces=self.credit_pieces,
            step_ms=1.0,
        )
        self.committed += text
        self.tree.commit(text.encode())
        self.num_steps += 1
        return verdict

    def said(self, node: Node) -> bytes:
        """What a held node's path says beyond the committed text."""
        return b"".join(self.tree.rest(step) for step in self.tree.path(node))

    def _accepted(self, rest: bytes) -> bytes:
        return max(
            (_common(self.said(held.node), rest) for held in self.tree.best_first()),
            key=len,
            default=b"",
        )


def _common(one: bytes, other: bytes) -> bytes:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return one[:count]
