"""How far two sequences of ids agree: what of a cache still stands."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(held: Sequence[int], wanted: Sequence[int], known: int = 0) -> int:
    """How many leading ids agree; the first `known` are known to."""
    most = min(len(held), len(wanted))
    count = min(max(known, 0), most)
    while count < most and held[count] == wanted[count]:
        count += 1
    return count
