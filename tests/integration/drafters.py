"""Drafters for tests: one that knows the answer in part, and one that means harm."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from anydraft.text.tree import Node, Piece, TextTree
from anydraft.v1.prompt_pb2 import Prompt


@dataclass
class KnowingDrafter:
    """Drafts the right text, in pieces of its own choosing, between branches that are wrong, and
    errs now and then."""

    truths: dict[str, str]
    """Prompt -> internal text of the answer."""
    error_rate: float = 0.1
    random: random.Random = field(default_factory=lambda: random.Random(5))
    description = "knows the answers"

    def open(self, prompt: Prompt, **_: object) -> _KnowingStream:
        return _KnowingStream(self, self.truths[prompt.text])


class _KnowingStream:
    idle = False
    needs_ms = 0.0

    def __init__(self, drafter: KnowingDrafter, truth: str) -> None:
        self._drafter = drafter
        self._truth = truth.encode()
        self._tip: Node | None = None

    def worth(self, tree: TextTree) -> float:
        return 1.0

    def grow(self, tree: TextTree, limit: int) -> None:
        del limit
        tip = self._tip if self._tip is not None and self._tip in tree else None
        position = tip.end if tip else tree.committed_bytes
        rng = self._drafter.random
        text = self._truth[position : position + rng.randint(1, 5)]
        if not text:
            self.idle = True
            tree.hang(Piece(b"", -0.1, ends=True), tip)
            return
        wrong = rng.choice([b"?", "é".encode(), text[::-1], b"\n\n", "👩‍👩‍👧".encode()])
        # Now and then it seems the likelier one, so that the right one comes behind it.
        beside = tree.hang(Piece(wrong, rng.choice([-1.0, -0.01])), tip)
        if beside is not None and rng.random() < 0.5:
            tree.hang(Piece(text, -0.5), beside)
        if rng.random() < self._drafter.error_rate:
            text = wrong
        self._tip = tree.hang(Piece(text, -0.05), tip)

    def commit(self, text: str, *, turn_ms: float) -> None:
        del text
        self.idle = False

    def close(self) -> None:
        pass


class RandomStream:
    """Bytes out of nowhere, anywhere in the tree, sure of themselves."""

    idle = False
    needs_ms = 0.0

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def worth(self, tree: TextTree) -> float:
        return 1.0

    def grow(self, tree: TextTree, limit: int) -> None:
        held = [held.node for held in tree.best_first() if not held.node.ends]
        for _ in range(self._random.randint(1, min(limit, 8))):
            tree.hang(self._piece(), self._random.choice([None, *held]))

    def _piece(self) -> Piece:
        kind = self._random.random()
        if kind < 0.1:
            return Piece(self._random.randbytes(3), 0.0)
        if kind < 0.15:
            return Piece(b"x" * 3000, 0.0)
        if kind < 0.2:
            return Piece(b"", 0.0, ends=True)
        points = [self._random.choice("abc \n<|im_end|>é世🙂") for _ in range(4)]
        return Piece("".join(points).encode(), 0.0)

    def commit(self, text: str, *, turn_ms: float) -> None:
        del text

    def close(self) -> None:
        pass


@dataclass
class RandomDrafter:
    description = "random"

    def open(self, prompt: Prompt, **_: object) -> RandomStream:
        return RandomStream(len(prompt.text))
