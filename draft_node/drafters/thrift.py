"""What a pass must bring where the assistant takes its cores from the target.

On a machine of its own an assistant drafts on as long as there is room: what is not needed has cost
nothing. Where both nodes share the cores, a pass delays the answer by about as long as it takes. It
pays where the text that it is expected to add is more than the answer grows by in that time.
"""

from __future__ import annotations

import time

_WEIGHT = 0.2
"""Of a new measurement in a running mean: about five rounds, as text changes its kind."""
_UNKNOWN = 0.2
"""The least reach of a pass while it is not known yet how fast the answer grows: what comes out in
the end with a target of some 200 ms a step (0.5B to 1.5B on two cores)."""
_READING_SHARE = 0.3
"""Of the time since the question came, which reading a long text may take: how long the answer will
be is not known, and one that ends soon must not have paid for drafts that never came."""


class Thrift:
    """Of one session."""

    def __init__(self) -> None:
        self._asked_at = time.perf_counter()
        self._read_ms = 0.0
        self._committed_at: float | None = None
        self._bytes_per_ms: float | None = None
        self._pass_ms: float | None = None
        self._brings: float | None = None
        """Bytes that the pieces below a place are expected to add once that is reached."""

    def committed(self, num_bytes: int) -> None:
        """The answer grew."""
        now = time.perf_counter()
        if self._committed_at is not None:
            ms = max((now - self._committed_at) * 1e3, 1e-3)
            self._bytes_per_ms = _mean(self._bytes_per_ms, num_bytes / ms)
        self._committed_at = now

    def may_read(self) -> bool:
        """Whether a further part of a long text may be read before the answer grows again."""
        asked_ms = (time.perf_counter() - self._asked_at) * 1e3
        return self._read_ms < _READING_SHARE * asked_ms

    def read(self, ms: float) -> None:
        """Reading a part of a long text took so long. A target that takes turns waits for that, so
        until the next commit the answer grows at no usual rate."""
        self._read_ms += ms
        self._committed_at = None

    def passed(self, ms: float) -> None:
        """A pass took so long."""
        self._pass_ms = _mean(self._pass_ms, ms)

    def looked(self, expected_bytes: float) -> None:
        """The pieces below a place will add so many bytes on average, if it is reached."""
        self._brings = _mean(self._brings, expected_bytes)

    def pays(self, reach: float) -> bool:
        """Whether to look at a place that the answer comes to with this probability."""
        if self._bytes_per_ms is None or self._pass_ms is None or self._brings is None:
            return reach >= _UNKNOWN
        return reach * self._brings > self._bytes_per_ms * self._pass_ms


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
