"""What a decode step takes, by how the keys and values of a session lie in memory.

`exact`: buffers as large as the session may ever come to need, from the allocator. `mapped`: what
the verify node does, addresses for a whole context and memory as it is written. `blocks`: blocks
of 16 tokens anywhere in one pool, gathered in each step. One session of 2,000 tokens, and 16 of
500; the layouts take turns step by step, so that all of them see the same machine.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch

from anydraft.models import load_dense, resolve_model
from benchmarks._common import MODEL, Findings, run_script
from verify_node.runners.base import Row
from verify_node.runners.packed_linear import pack_linears
from verify_node.runners.ragged import RaggedRunner
from verify_node.runners.ragged_cache import LayerBuffer, RaggedCache

CONTEXT, BLOCK = 8192, 16
STEPS, SHORT_STEPS = 40, 12
CASES = ((1, 2000), (16, 500))
CHUNK = 500


class ExactBuffer(LayerBuffer):
    """Never larger than `_max_tokens`, from torch's allocator."""

    def write(
        self, start: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.keys is None or self.values is None:
            shape = (keys.shape[0], self._max_tokens, keys.shape[2])
            self.keys, self.values = keys.new_empty(shape), values.new_empty(shape)
        return super().write(start, keys, values)


class BlockBuffer(LayerBuffer):
    """Keys and values [blocks, heads, BLOCK, size], gathered for each reading."""

    def write(
        self, start: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        heads, count, size = keys.shape
        num_blocks = -(-self._max_tokens // BLOCK)
        if self.keys is None or self.values is None:
            shape = (num_blocks, heads, BLOCK, size)
            self.keys, self.values = keys.new_empty(shape), values.new_empty(shape)
        table = torch.arange(num_blocks - 1, -1, -1)[: -(-(start + count) // BLOCK)]
        places = torch.arange(start, start + count)
        blocks, slots = table[places // BLOCK], places % BLOCK
        views: list[torch.Tensor] = []
        for pool, new in ((self.keys, keys), (self.values, values)):
            pool[blocks, :, slots] = new.transpose(0, 1)
            lined_up = pool[table].transpose(0, 1).reshape(heads, -1, size)
            views.append(lined_up[:, : start + count])
        return views[0], views[1]


class Layout(RaggedCache):
    def __init__(self, max_tokens: int, buffer: Callable[[int], LayerBuffer]) -> None:
        super().__init__(max_tokens)
        self._buffer = buffer

    def layer(self, layer_idx: int) -> LayerBuffer:
        if layer_idx not in self._layers:
            self._layers[layer_idx] = self._buffer(self._max_tokens)
        return self._layers[layer_idx]


def read(runner: RaggedRunner, num_tokens: int) -> RaggedCache:
    """A cache of the layout in use that holds so many tokens."""
    cache = runner.new_cache(CONTEXT)
    while (left := num_tokens - cache.length) > 0:
        runner.forward([Row(cache, [7] * min(CHUNK, left), 0)])
    return cache


def fill(cache: RaggedCache, like: RaggedCache) -> None:
    for index, layer in like._layers.items():
        if layer.keys is not None and layer.values is not None:
            length = like.length
            cache.layer(index).write(0, layer.keys[:, :length], layer.values[:, :length])
    cache.advance(like.length)


@torch.inference_mode()
def measure_case(runner: RaggedRunner, sessions: int, num_tokens: int, steps: int) -> Findings:
    exact = num_tokens + steps + 2
    layouts: dict[str, list[RaggedCache]] = {
        "exact": [Layout(exact, ExactBuffer) for _ in range(sessions)],
        "mapped": [runner.new_cache(CONTEXT) for _ in range(sessions)],
        "blocks": [Layout(exact, BlockBuffer) for _ in range(sessions)],
    }
    times: dict[str, list[float]] = {name: [] for name in layouts}
    like = read(runner, num_tokens)
    for caches in layouts.values():
        for cache in caches:
            fill(cache, like)
    for _ in range(steps):
        for name, caches in layouts.items():
            rows = [Row(cache, [5], 1) for cache in caches]
            started = time.perf_counter()
            runner.forward(rows)
            times[name].append((time.perf_counter() - started) * 1e3)
    started = time.perf_counter()
    copy = like.copied(num_tokens, CONTEXT)
    copy_ms = (time.perf_counter() - started) * 1e3
    for caches in (*layouts.values(), [like, copy]):
        for cache in caches:
            cache.close()
    medians = {name: statistics.median(of_layout) for name, of_layout in times.items()}
    return {
        "sessions": sessions,
        "tokens_each": num_tokens,
        "step_ms": {name: round(ms, 2) for name, ms in medians.items()},
        "speed_to_exact": {name: round(medians["exact"] / ms, 3) for name, ms in medians.items()},
        "copy_of_one_ms": round(copy_ms, 1),
    }


def measure(short: bool) -> Findings:
    model, _ = load_dense(resolve_model(MODEL), torch.float32, "cpu")
    runner = RaggedRunner(model)
    pack_linears(model)
    steps = SHORT_STEPS if short else STEPS
    return {"cases": [measure_case(runner, *case, steps) for case in CASES]}


def main(argv: Sequence[str] | None = None) -> int:
    return run_script(__doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
