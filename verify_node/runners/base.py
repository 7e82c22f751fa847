"""What the scheduler asks of a model: one forward over the new tokens of several sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


class SessionCache(Protocol):
    """The keys and values of one session, for all layers."""

    @property
    def length(self) -> int:
        """Tokens held."""

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens; `length` is at most the present one. Also
        repairs what a forward that raised has left half written."""

    def keep(self, length: int, slots: Sequence[int]) -> None:
        """Forget all but the first `length` tokens and those at the places `slots` behind them,
        which move up in that order. `slots` grow: 0 is the first token behind `length`."""

    def close(self) -> None:
        """Frees all memory, at once and without the garbage collector. Idempotent; a closed cache
        takes no more tokens."""


class NoCache:
    """The `SessionCache` of a session that has no place: nothing, and room for nothing."""

    length = 0

    def truncate(self, length: int) -> None:
        self.keep(length, ())

    def keep(self, length: int, slots: Sequence[int]) -> None:
        if length or slots:
            raise ValueError("a session without a place has no tokens in a cache")

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Row:
    """New tokens of one session: they follow what its cache holds."""

    cache: SessionCache
    token_ids: Sequence[int]
    num_logits: int
    """How many of the last tokens need logits; 0 for all but the last chunk of a prompt."""
    parents: Sequence[int] | None = None
    """None: each token follows the one before it. Else, for each token, the index in this row of
    the token that it follows, smaller than its own; -1 for what the cache holds. A token sees what
    the cache holds, its ancestors in the row and itself, and its position is one behind its
    parent's. The cache takes all of them, in the order of the row."""


class ModelRunner(Protocol):
    """One model, many caches. Not thread-safe: one thread runs all steps."""

    @property
    def name(self) -> str:
        """How it runs the model, for people: "ragged" or "per-session"."""

    @property
    def takes_trees(self) -> bool:
        """Whether rows may have `parents`."""

    @property
    def copy_of(self) -> Callable[[SessionCache, int, int], SessionCache] | None:
        """Of a cache, so many of its first tokens, in a cache as `new_cache` makes it with the
        third number; None for a runner that cannot."""

    def new_cache(self, max_tokens: int) -> SessionCache:
        """For a session that will never hold more than `max_tokens`; memory is taken as it is
        needed."""

    def forward(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        """Appends every row to its cache; returns its logits, [num_logits, vocabulary], float32.

        No two rows may share a cache. When it raises, the caches of all rows may hold part of
        their new tokens: truncate them before they are used again.
        """
