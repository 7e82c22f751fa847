"""Measuring t_v(n), the time of a step over n tokens, at start-up.

The best of a few rounds counts: whatever else runs on the machine only ever adds to it.
"""

from __future__ import annotations

import math
import time

from verify_node.runners.base import ModelRunner, Row
from verify_node.step_cost import StepCost

_TOKENS = (1, 2, 4, 8, 16, 32)
_CONTEXT_TOKENS = 32
_ROUNDS = 4


def calibrate(runner: ModelRunner, vocabulary_size: int) -> StepCost:
    """Times steps of a short session. Takes about twenty-five steps of the target."""
    cache = runner.new_cache(_CONTEXT_TOKENS + max(_TOKENS))
    ids = [i % vocabulary_size for i in range(_CONTEXT_TOKENS)]
    runner.forward([Row(cache, ids, 1)])
    best = dict.fromkeys(_TOKENS, math.inf)
    # Round by round, not size by size: a busy moment then spoils one round of all sizes.
    for _ in range(_ROUNDS):
        for tokens in _TOKENS:
            best[tokens] = min(best[tokens], _step_ms(runner, Row(cache, ids[:tokens], tokens)))
    return StepCost(list(best.items()))


def _step_ms(runner: ModelRunner, row: Row) -> float:
    length = row.cache.length
    started = time.perf_counter()
    # Reading a result back waits for a GPU to be done.
    runner.forward([row])[0][-1, 0].item()
    elapsed = time.perf_counter() - started
    row.cache.truncate(length)
    return elapsed * 1e3
