"""When to send what was drafted.

After a restart the verifier has nothing: it waits for the first group, or goes on without. Each
further piece makes the group worth more and later. Once a group is out, the verifier is busy with
it, and what is drafted ahead only has to be there when it is done.
"""

from __future__ import annotations

AHEAD_PIECES = 4
"""Pieces in one message while drafting ahead."""
_FIRST_PIECES = 4
"""In the first group, before it is known how long a round and a piece take."""
_NEXT_PROBABILITY = 0.7
"""How likely one more piece is, given that those before it stand."""
_MEMORY = 0.8


class SendPolicy:
    """One session's record of how long things take."""

    def __init__(self) -> None:
        self._piece_ms: float | None = None
        self._round_ms: float | None = None

    def drafted(self, piece_ms: float) -> None:
        """One piece took this long."""
        self._piece_ms = _average(self._piece_ms, piece_ms)

    def answered(self, round_ms: float) -> None:
        """From sending a first group to the verdict on it."""
        self._round_ms = _average(self._round_ms, round_ms)

    def group_is_ready(self, num_pieces: int, expected: float, reach: float) -> bool:
        """Whether a first group should go now.

        `expected` is the number of its pieces that will stand, `reach` the chance that all do. A
        round brings 1 + expected tokens in the time of drafting and verifying. One more piece pays
        while it brings more per millisecond than the round does.
        """
        if self._piece_ms is None or self._round_ms is None:
            return num_pieces >= _FIRST_PIECES
        total_ms = num_pieces * self._piece_ms + self._round_ms
        return reach * _NEXT_PROBABILITY * total_ms < (1 + expected) * self._piece_ms


def _average(old: float | None, new: float) -> float:
    return new if old is None else _MEMORY * old + (1 - _MEMORY) * new
