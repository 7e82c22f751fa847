"""Drafters for tests: one that knows the answer in part, and one that means harm."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from anydraft.v1.prompt_pb2 import Prompt
from draft_node.drafters.base import Piece


@dataclass
class KnowingDrafter:
    """Drafts the right text, by characters of its own choosing, and errs now and then."""

    truths: dict[str, str]
    """Prompt -> internal text of the answer."""
    error_rate: float = 0.1
    random: random.Random = field(default_factory=lambda: random.Random(5))
    description = "knows the answers"

    def open(self, prompt: Prompt) -> _KnowingStream:
        return _KnowingStream(self, self.truths[prompt.text])


class _KnowingStream:
    def __init__(self, drafter: KnowingDrafter, truth: str) -> None:
        self._drafter = drafter
        self._truth = truth
        self._committed = ""
        self._drafted = ""
        self.idle = False

    def step(self) -> Piece | None:
        position = len(self._committed) + len(self._drafted)
        rng = self._drafter.random
        text = self._truth[position : position + rng.randint(1, 5)]
        if not text:
            self.idle = True
            return Piece("", -0.1, ends=True)
        if rng.random() < self._drafter.error_rate:
            text = rng.choice(["?", "é", text[::-1], "\n\n", "👩‍👩‍👧"])
        self._drafted += text
        return Piece(text, -0.05)

    def commit(self, text: str, *, restart: bool) -> None:
        self._committed += text
        self._drafted = "" if restart else self._drafted[len(text) :]
        if restart:
            self.idle = False

    def close(self) -> None:
        pass


class RandomStream:
    """Text out of nowhere, sure of itself."""

    idle = False

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def step(self) -> Piece | None:
        kind = self._random.random()
        if kind < 0.1:
            return Piece("", 0.0)
        if kind < 0.15:
            return Piece("x" * 3000, 0.0)
        if kind < 0.2:
            return Piece("", 0.0, ends=True)
        points = [self._random.choice("abc \n<|im_end|>é世🙂") for _ in range(4)]
        return Piece("".join(points), 0.0)

    def commit(self, text: str, *, restart: bool) -> None:
        del text, restart

    def close(self) -> None:
        pass


@dataclass
class RandomDrafter:
    description = "random"

    def open(self, prompt: Prompt) -> RandomStream:
        return RandomStream(len(prompt.text))
