"""What follows from the times of passes, with a clock that only passes move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from anydraft.errors import InternalError
from draft_node.engines import measuring
from draft_node.engines.cache import Pass
from draft_node.engines.measuring import best_width, chunk_tokens, pass_costs


class TimedCache:
    """Takes `seconds(tokens)` for a pass, sometimes more, and holds `most` tokens."""

    def __init__(self, seconds: Callable[[int], float], most: int = 10_000) -> None:
        self.length, self.now, self.runs = 0, 0.0, 0
        self._seconds, self._most = seconds, most

    def run(self, work: Pass) -> np.ndarray[Any, Any]:
        if self.length + len(work.ids) > self._most:
            raise InternalError("too long", reason="ASSISTANT_FAILED")
        if work.tree is not None:
            assert len(work.tree.slot_positions) == len(work.ids)
        self.runs += 1
        self.length += len(work.ids)
        # Two of five passes are held up by something else.
        self.now += self._seconds(len(work.ids)) * (3 if self.runs % 5 < 2 else 1)
        return np.zeros((len(work.wanted), 10), np.float32)

    def move(self, sources: Sequence[int], start: int) -> None:
        raise NotImplementedError

    def close(self) -> None: ...


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[], TimedCache]]:
    def make(seconds: Callable[[int], float], most: int = 10_000) -> Callable[[], TimedCache]:
        cache = TimedCache(seconds, most)
        monkeypatch.setattr(measuring.time, "perf_counter", lambda: cache.now)
        return lambda: cache

    return make


def test_the_smallest_time_of_a_pass_counts(timed: Any) -> None:
    found = pass_costs(timed(lambda count: 0.001 * count), 50, most=10_000)
    assert found == pytest.approx({width: 0.001 * width for width in found})
    assert {1, 2, 4} <= set(found)


def test_a_short_context_is_enough(timed: Any) -> None:
    assert len(pass_costs(timed(lambda _: 0.01, most=64), 50, most=64)) > 1


@pytest.mark.parametrize(("slope", "width"), [(0.0, 8), (0.1, 4), (0.22, 2), (0.5, 1), (1.0, 1)])
def test_the_width_follows_the_cost_of_a_node(slope: float, width: int, timed: Any) -> None:
    open_cache = timed(lambda count: 0.008 * (1 + slope * (count - 1)))
    assert best_width(pass_costs(open_cache, 50, most=10_000)) == width


@pytest.mark.parametrize(
    ("seconds", "most", "chunk"),
    [
        # Every token costs the same: nobody waits longer than for the smallest chunk.
        (lambda count: 0.001 * count, 10_000, 16),
        # A pass costs the same whatever it reads.
        (lambda count: 0.001, 10_000, 256),
        (lambda count: 0.001, 100, 64),
        (lambda count: 0.001, 5, 5),
        # Larger chunks are cheaper, and keep others waiting.
        (lambda count: 0.02 + 0.001 * count, 10_000, 32),
        (lambda count: 10.0 + 0.001 * count, 10_000, 16),
    ],
)
def test_a_chunk_is_as_large_as_it_pays(
    seconds: Callable[[int], float], most: int, chunk: int, timed: Any
) -> None:
    assert chunk_tokens(timed(seconds), 50, most=most) == chunk


def test_a_context_that_is_shorter_than_was_said_is_no_failure(timed: Any) -> None:
    assert chunk_tokens(timed(lambda _: 0.001, most=70), 50, most=10_000) == 64
