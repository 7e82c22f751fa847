"""Drafts by prompt lookup: what followed the last words where they stood before, as a chain."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from anydraft.text.lookup import PromptLookup, prompt_parts
from anydraft.text.tree import Node, Piece, TextTree
from anydraft.v1.prompt_pb2 import Prompt

MEMORY_BYTES = 64 * 1024
"""Of earlier answers. Every session sorts what it searches once, which takes 13 ms for so much."""
_MAX_PIECES = 48
"""Of a chain: what a target accepts in the few steps that pass until it can be longer."""
_MIN_LOGPROB = math.log(0.02)
"""Of a chain, as far as it goes."""
_SURE_LOGPROB = math.log(0.9)
"""Of a word. Where lookup is so sure, an assistant that computes costs more than it can add."""


class AnswerMemory:
    """The latest answers of a node, to be found again in later ones of the same tenant: the newest
    whole ones that fit `max_bytes`. Used on the drafting thread alone. It never leaves the process
    but as drafts."""

    def __init__(self, max_bytes: int = MEMORY_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._answers: deque[tuple[str, bytes]] = deque()

    def answers(self, tenant: str = "") -> Sequence[bytes]:
        """Those of a tenant, the oldest first."""
        return tuple(answer for owner, answer in self._answers if owner == tenant)

    def add(self, answer: bytes, tenant: str = "") -> None:
        if not answer or len(answer) > self._max_bytes or (tenant, answer) in self._answers:
            return
        self._answers.append((tenant, answer))
        self._num_bytes += len(answer)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= len(self._answers.popleft()[1])


@dataclass(frozen=True)
class LookupDrafter:
    """See `draft_node.drafters.base.Drafter`."""

    memory: AnswerMemory | None = field(default_factory=AnswerMemory)
    """What it remembers of earlier answers; None for nothing."""
    description: str = "prompt lookup"

    def open(self, prompt: Prompt, *, in_turn: bool = False, tenant: str = "") -> LookupStream:
        del in_turn
        return LookupStream(prompt, self.memory, tenant)


class LookupStream:
    """See `draft_node.drafters.base.DraftStream`."""

    def __init__(self, prompt: Prompt, memory: AnswerMemory | None, tenant: str = "") -> None:
        self._prompt = prompt
        self._tenant = tenant
        self._memory = memory
        self._lookup: PromptLookup | None = None
        self._uncommitted = ""
        """Committed text that was not searched for yet."""
        self._answer = bytearray()
        self._nodes: set[Node] = set()
        """What it hung, as far as it is held."""
        self.idle = False
        self.needs_ms = 0.0
        self.is_sure = False
        """Whether what it says is right nearly always."""

    def commit(self, text: str, *, turn_ms: float) -> None:
        del turn_ms
        self._uncommitted += text
        self.idle = False

    def worth(self, tree: TextTree) -> float:
        del tree
        return 1.0

    def grow(self, tree: TextTree, limit: int) -> None:
        pieces = self._search()
        self.is_sure = bool(pieces) and pieces[0].logprob >= _SURE_LOGPROB
        self._hang(tree, pieces, limit)
        self.idle = True

    def close(self) -> None:
        if self._memory is not None:
            answer = bytes(self._answer) + self._uncommitted.encode()
            self._memory.add(answer, self._tenant)
        self._memory = self._lookup = None

    def _search(self) -> list[Piece]:
        data, self._uncommitted = self._uncommitted.encode(), ""
        self._answer += data
        if self._lookup is None:
            earlier = () if self._memory is None else self._memory.answers(self._tenant)
            self._lookup = PromptLookup([*earlier, *prompt_parts(self._prompt)])
        self._lookup.commit(data)
        return self._lookup.continuation(max_pieces=_MAX_PIECES)

    def _hang(self, tree: TextTree, pieces: list[Piece], limit: int) -> None:
        """The chain, behind what stands of the one before."""
        self._nodes = {node for node in self._nodes if node in tree}
        said = b"".join(piece.text for piece in pieces)
        below, known = self._walk(tree, said)
        logprob = 0.0
        for piece in pieces:
            logprob += piece.logprob
            text = piece.text[known:]
            known = max(known - len(piece.text), 0)
            if logprob < _MIN_LOGPROB or limit == 0:
                return
            if not text:
                continue
            before = tree.num_pieces
            below = tree.hang(Piece(text, piece.logprob), below)
            if below is None:
                return
            limit -= tree.num_pieces - before
            self._nodes.add(below)

    def _walk(self, tree: TextTree, said: bytes) -> tuple[Node | None, int]:
        """How far its own nodes say this: the last one, and how many bytes they have together."""
        below: Node | None = None
        known = 0
        siblings = tree.roots
        while True:
            step = next((node for node in siblings if self._says(tree, node, said[known:])), None)
            if step is None:
                return below, known
            below, siblings = step, step.children
            known += len(tree.rest(step))

    def _says(self, tree: TextTree, node: Node, said: bytes) -> bool:
        return node in self._nodes and bool(said) and said.startswith(tree.rest(node))
