"""Measuring t_v(n), the time of a step over n tokens, at start-up.

The best of a few repeats counts: whatever else runs on the machine only ever adds to it.
"""

from __future__ import annotations

import time

from verify_node.cost import StepCost
from verify_node.engine.runner import ModelRunner, Row

_TOKENS = (1, 2, 4, 8, 16, 32)
_CONTEXT_TOKENS = 32
_REPEATS = 4


def calibrate(runner: ModelRunner, vocabulary_size: int) -> StepCost:
    """Times steps of a short session. Takes about twenty steps of the target."""
    cache = runner.new_cache()
    ids = [i % vocabulary_size for i in range(_CONTEXT_TOKENS)]
    runner.forward([Row(cache, ids, 1)])
    points = []
    for tokens in _TOKENS:
        points.append((tokens, _best_ms(runner, Row(cache, ids[:1] * tokens, tokens))))
    return StepCost(points)


def _best_ms(runner: ModelRunner, row: Row) -> float:
    times = []
    for _ in range(_REPEATS):
        length = row.cache.length
        started = time.perf_counter()
        # Reading a result back waits for a GPU to be done.
        runner.forward([row])[0][-1, 0].item()
        times.append((time.perf_counter() - started) * 1e3)
        row.cache.truncate(length)
    return min(times)
