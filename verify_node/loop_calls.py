"""From the target's thread to the event loop: what is told within one step arrives in one go.

Each waking of a loop is a system call, at which the thread lets go of the interpreter and has to
wait for it again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class LoopCalls:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
        """By the loops that have been woken and have not come round to it."""

    def call(self, loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
        """Has `function`, which must not raise, called on a loop soon, in the order of these calls.
        Nothing happens when the loop is closed."""
        with self._lock:
            if (waiting := self._waiting.get(loop)) is not None:
                waiting.append(function)
                return
            self._waiting[loop] = [function]
        try:
            loop.call_soon_threadsafe(self._run, loop)
        except RuntimeError:
            self._take(loop)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        for function in self._take(loop):
            function()

    def _take(self, loop: asyncio.AbstractEventLoop) -> list[Callable[[], None]]:
        with self._lock:
            return self._waiting.pop(loop, [])
