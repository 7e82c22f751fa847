"""The thread on which all sessions of a node draft, one step at a time, in the order they ask.

A step is one token or one chunk of a prompt, so sessions take turns and a verdict never waits
longer than that. One thread, because a step already uses all the cores that it may.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


class DraftingThread:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="drafting")

    async def run(self, step: Callable[[], _T]) -> tuple[_T, float]:
        """What `step` returns and how many milliseconds it took; raises what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, _timed, step)

    def close(self) -> None:
        """Waits for the step at hand, drops those that wait."""
        self._thread.shutdown(cancel_futures=True)


def _timed(step: Callable[[], _T]) -> tuple[_T, float]:
    started = time.perf_counter()
    result = step()
    return result, (time.perf_counter() - started) * 1e3
