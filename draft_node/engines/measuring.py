"""What a pass of an assistant costs here, and what follows from it.

Measured when an engine is made, over a text of a usual length. The smallest of a few times counts:
whatever else runs on the machine only ever adds to one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial

from anydraft.errors import AnydraftError
from draft_node.engines.cache import Cache, Pass, TreeCache, TreePlaces

_WORTH = {1: 1.0, 2: 1.4, 3: 1.57, 4: 1.71, 6: 1.86, 8: 1.97}
"""By nodes of a pass: at which cost, in passes of one node, it drafts as well as passes of one do.

From a simulated timeline of 13 Spec-Bench answers (Qwen2.5-Coder-1.5B, drafted with the
probabilities of SmolLM2-135M; steps of 30 ms, passes of one node of 8, round trips of 0, 20, 60):
the gains of every width, at costs that grow by 0.05 to 0.7 of a pass with each node, cross there.
At 0.22, what int4 on one thread costs, two nodes are best (1.72x; one 1.66x, four 1.64x), at 0.1
four (1.79x; one 1.66x). Wider passes than these gained nothing at any cost."""
_CHUNKS = (16, 32, 64, 128, 256)
_MAX_CHUNK_SECONDS = 0.07
"""Other sessions, and new verdicts, wait for one chunk of a prompt at most."""
_WORTHWHILE = 0.95
"""A larger chunk must be that much cheaper for each token."""
_TEXT_TOKENS = 200
_REPEATS = 3
_ROUNDS = 8


def pass_costs(
    open_cache: Callable[[], TreeCache], vocab_size: int, *, most: int
) -> dict[int, float]:
    """Seconds of a pass over so many nodes of a tree, by each number that may be chosen, behind a
    text that with them has `most` tokens at most."""
    with closing(open_cache()) as cache:
        trunk = _ids(min(_TEXT_TOKENS, most - max(_WORTH)), vocab_size)
        cache.run(Pass(trunk, []))

        def run(width: int) -> None:
            slots = range(len(trunk), len(trunk) + width)
            places = TreePlaces(len(trunk), [len(trunk)] * width, [[slot] for slot in slots])
            cache.run(Pass(trunk[:width], range(width), places))
            cache.length = len(trunk)

        # In turns, so that a busy moment of the machine does not fall on one width alone.
        rounds = [{width: _time(partial(run, width)) for width in _WORTH} for _ in range(_ROUNDS)]
    smallest = {width: min(times[width] for times in rounds) for width in _WORTH}
    # A pass costs no more than a wider one did.
    return {
        width: min(seconds for other, seconds in smallest.items() if other >= width)
        for width in _WORTH
    }


def chunk_tokens(open_cache: Callable[[], Cache], vocab_size: int, *, most: int) -> int:
    """How many tokens of a prompt, `most` at most, one pass should read: as many as make a token
    cheaper, in the time that others may wait."""
    with closing(open_cache()) as cache:
        best = min(_CHUNKS[0], most)
        cheapest = float("inf")
        for chunk in _CHUNKS:
            if chunk > most:
                break
            ids = _ids(chunk, vocab_size)

            try:
                seconds = min(_time(partial(_read_anew, cache, ids)) for _ in range(_REPEATS))
            except AnydraftError:
                # A context that is shorter than anybody said; 16 tokens are in the proof already.
                break
            if seconds > _MAX_CHUNK_SECONDS and chunk > best:
                break
            if seconds / chunk < _WORTHWHILE * cheapest:
                best, cheapest = chunk, seconds / chunk
        return best


def _read_anew(cache: Cache, ids: list[int]) -> None:
    cache.length = 0
    cache.run(Pass(ids, []))


def best_width(costs: Mapping[int, float]) -> int:
    """The nodes of a pass that drafts best for what it costs, by seconds of each."""
    return max(costs, key=lambda width: _WORTH[width] / costs[width])


def _time(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _ids(count: int, vocab_size: int) -> list[int]:
    return [(31 * k + 7) % vocab_size for k in range(count)]
