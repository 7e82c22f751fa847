"""How long the passes of a simulated assistant take."""

from __future__ import annotations

import time
from dataclasses import dataclass

MAX_PATHS = 4
"""Of a pass: what the real engine chooses with passes that cost as these do."""
CHUNK_TOKENS = 32
"""Of a prompt that are read in one pass."""
_CHEAP_NODES = 4
_CHEAP = 0.1
_DEAR = 0.19
"""1, 2, 4, 8 and 16 nodes of SmolLM2-135M (int4, ONNX Runtime, one thread) cost 1, 1.1, 1.3, 2.1
and 3.4 times what one does."""
_READ = 0.08
"""Each token of a prompt behind the first four: a chunk of 32 takes as long as 3.5 single tokens
there."""


@dataclass(frozen=True, slots=True)
class Pace:
    piece_ms: float
    """Of a pass over one token."""

    def pass_ms(self, nodes: int) -> float:
        """Over so many nodes of a tree; none take no time."""
        return self.piece_ms * _relative(nodes, _DEAR)

    def read_ms(self, tokens: int) -> float:
        """Over so many tokens of a text."""
        return self.piece_ms * _relative(tokens, _READ)


def _relative(count: int, dear: float) -> float:
    if count < 1:
        return 0.0
    cheap = min(count, _CHEAP_NODES)
    return 1 + _CHEAP * (cheap - 1) + dear * (count - cheap)


class Deadline:
    """A time from now on, of which what is left is slept through."""

    def __init__(self, ms: float) -> None:
        self._due_s = time.perf_counter() + ms / 1e3

    def sleep(self) -> None:
        if (left_s := self._due_s - time.perf_counter()) > 0:
            time.sleep(left_s)
