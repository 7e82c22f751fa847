"""The seam between what a sequence is and how an engine computes it: one pass, and slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Pass:
    """New tokens for the slots that follow those that are filled."""

    ids: Sequence[int]
    wanted: Sequence[int]
    """For which of them logits are asked for, as indices in ascending order. May be empty."""
    tree: TreePlaces | None = None
    """None for a chain: every token stands behind all that are held, and sees them."""


@dataclass(frozen=True, slots=True)
class TreePlaces:
    """Where the tokens of a pass stand when they are no chain.

    The first `trunk` slots hold a chain that all of them see.
    """

    trunk: int
    slot_positions: Sequence[int]
    """Of every slot behind the trunk, the new ones last: its place in its own path."""
    seen: Sequence[Sequence[int]]
    """For each new token the slots behind the trunk that it sees: its path, itself included."""

    def positions(self, count: int) -> Array:
        """[count] int64: of the new tokens."""
        return np.array(self.slot_positions[-count:], np.int64)

    def visible(self, window: int | None = None) -> Array:
        """[new tokens, slots] bool; with a `window`, only that many places back, their own
        included."""
        total = self.trunk + len(self.slot_positions)
        visible = np.zeros((len(self.seen), total), np.bool_)
        visible[:, : self.trunk] = True
        for row, slots in zip(visible, self.seen, strict=True):
            row[list(slots)] = True
        if window is not None:
            places = np.concatenate([np.arange(self.trunk), np.array(self.slot_positions)])
            visible &= places > self.positions(len(self.seen))[:, None] - window
        return visible


class Cache(Protocol):
    """Keys and values of one sequence."""

    length: int
    """Slots filled; the owner lowers it to drop what lies behind, `run` raises it."""

    def run(self, work: Pass) -> Array:
        """Computes one pass; returns logits, [len(work.wanted), vocabulary] float32, valid until
        the next pass. Leaves `length` as it was when it fails."""

    def close(self) -> None:
        """Frees the memory, whoever still refers to this object. It is not used again."""


class TreeCache(Cache, Protocol):
    """A cache whose `run` takes `Pass.tree`."""

    def move(self, sources: Sequence[int], start: int) -> None:
        """Slot `start + k` becomes what slot `sources[k]` was; what lies behind is dropped."""
