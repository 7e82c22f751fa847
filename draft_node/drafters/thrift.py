"""What a pass must bring where the assistant takes its cores from the target.

On a machine of its own an assistant drafts on as long as there is room: what is not needed has cost
nothing. Where both nodes share the cores, it computes in turn with the target, and a pass delays
the answer by about as long as it takes. It pays where the text that it is expected to add is more
than the answer grows by in that time.
"""

from __future__ import annotations

import math
import time

_WEIGHT = 0.2
"""Of a new measurement in a running mean: about five rounds, as text changes its kind."""
_UNKNOWN = 0.2
"""The least reach of a pass while it is not known yet how fast the answer grows: what comes out in
the end with a target of some 200 ms a step (0.5B to 1.5B on two cores)."""


class ReadingPace:
    """How long an assistant takes to read a token of a long text. Of all sessions."""

    def __init__(self) -> None:
        self._ms: float | None = None

    def read(self, num_tokens: int, ms: float) -> None:
        self._ms = _mean(self._ms, ms / max(num_tokens, 1))

    def ms(self, num_tokens: int) -> float:
        """Expected; 0 where nothing is known."""
        return num_tokens * (self._ms or 0.0)


class Thrift:
    """Of one session."""

    def __init__(self, pace: ReadingPace) -> None:
        self._pace = pace
        self._ends_at = math.inf
        self._committed_at: float | None = None
        self._bytes_per_ms: float | None = None
        self._pass_ms: float | None = None
        self._brings: float | None = None
        """Bytes that the pieces below a place are expected to add once that is reached."""

    def committed(self, num_bytes: int, turn_ms: float) -> None:
        """The answer grew, and a turn of that length begins."""
        now = time.perf_counter()
        self._ends_at = now + turn_ms / 1e3
        if self._committed_at is not None:
            ms = max((now - self._committed_at) * 1e3, 1e-3)
            self._bytes_per_ms = _mean(self._bytes_per_ms, num_bytes / ms)
        self._committed_at = now

    def needs_ms(self, num_tokens: int) -> float:
        """How long reading so many tokens takes, where the turn is too short for it; else 0. A text
        is read in one turn or not at all: half of it is of no use."""
        reading_ms = max(self._pace.ms(num_tokens), self._pass_ms or 0.0)
        return 0.0 if self._has_time_for(reading_ms) else max(reading_ms, 1.0)

    def read(self, num_tokens: int, ms: float) -> None:
        """Reading a part of a long text took so long. The target waits for that, so until the next
        commit the answer grows at no usual rate."""
        self._pace.read(num_tokens, ms)
        self._committed_at = None

    def passed(self, ms: float) -> None:
        """A pass took so long."""
        self._pass_ms = _mean(self._pass_ms, ms)

    def looked(self, expected_bytes: float) -> None:
        """The pieces below a place will add so many bytes on average, if it is reached."""
        self._brings = _mean(self._brings, expected_bytes)

    def pays(self, reach: float) -> bool:
        """Whether to look at a place that the answer comes to with this probability."""
        if not self._has_time_for(self._pass_ms or 0.0):
            return False
        if self._bytes_per_ms is None or self._pass_ms is None or self._brings is None:
            return reach >= _UNKNOWN
        return reach * self._brings > self._bytes_per_ms * self._pass_ms

    def _has_time_for(self, ms: float) -> bool:
        return time.perf_counter() + ms / 1e3 < self._ends_at


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
