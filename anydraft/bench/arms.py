"""Arms: ways to get the same answer. Each is asked the same tasks in the same run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from anydraft.bench.tasks import Task
from anydraft.client import AsyncClient, Stats

TARGET_ONLY = "target_only"
ASSISTED = "assisted"
PEER_ALONE = "transformers"
PEER_ASSISTED = "transformers_assisted"

ANSWER_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What one arm made of one task, as whoever asked saw it."""

    ids: tuple[int, ...]
    began_at_s: float
    """By `time.monotonic`."""
    arrivals: tuple[tuple[float, int], ...]
    """When tokens came, by the same clock, and how many at once. The last is the end."""
    stats: Stats | None
    """What the nodes say; None for an arm that has no nodes."""

    @property
    def total_s(self) -> float:
        """Until the last token had come."""
        return self.arrivals[-1][0] - self.began_at_s

    @property
    def first_s(self) -> float:
        """Until the first token had come."""
        return self.arrivals[0][0] - self.began_at_s

    @property
    def num_first(self) -> int:
        """How many tokens came with the first."""
        return self.arrivals[0][1]


class Arm(Protocol):
    """May be asked several tasks at once, if it is made of nodes."""

    @property
    def name(self) -> str: ...

    async def ask(self, task: Task) -> Answer:
        """Raises AnydraftError when there is no answer."""

    async def close(self) -> None: ...


class NodeArm:
    """Nodes that serve `Generate`, which take turns."""

    def __init__(self, name: str, addresses: Sequence[str]) -> None:
        self.name = name
        self._clients = [AsyncClient(a, timeout=ANSWER_TIMEOUT_S) for a in addresses]
        self._busy = [0] * len(addresses)

    async def ask(self, task: Task) -> Answer:
        """Of the node that has least to do."""
        index = self._busy.index(min(self._busy))
        self._busy[index] += 1
        try:
            return await self._ask(self._clients[index], task)
        finally:
            self._busy[index] -= 1

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    async def _ask(self, client: AsyncClient, task: Task) -> Answer:
        stream = client.generate(
            messages=[{"role": "user", "content": task.prompt}],
            max_new_tokens=task.max_new_tokens,
            temperature=task.temperature,
            seed=task.seed,
        )
        began_at_s = time.monotonic()
        arrivals = []
        async with stream:
            async for event in stream:
                if event.token_ids:
                    arrivals.append((time.monotonic(), len(event.token_ids)))
            result = await stream.result()
        if not arrivals:
            arrivals.append((time.monotonic(), 0))
        return Answer(result.token_ids, began_at_s, tuple(arrivals), result.stats)
