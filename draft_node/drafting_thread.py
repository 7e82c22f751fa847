"""The thread on which all sessions of a node draft, one pass at a time.

A pass is one look at the next pieces or one chunk of a prompt, so sessions take turns and nobody
waits longer than that for the thread. One thread, because a pass already uses all the cores that it
may.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count

from anydraft.errors import InternalError

_log = logging.getLogger(__name__)

_PATIENCE_S = 0.1
"""How much later a pass that is worth nothing may run than one that is surely worth it: a few
steps of a target, after which what was worth more then is not known to be so any more."""


class DraftingThread:
    """Passes run in the order in which they are due: those that are worth more sooner, and in time
    all of them."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="drafting")
        self._due: list[tuple[float, int, Callable[[], None], Future[float]]] = []
        self._numbers = count()

    def submit(self, step: Callable[[], None], worth: float) -> asyncio.Future[float]:
        """Runs `step`, which is worth so much, 0 to 1. The future holds how many milliseconds it
        took, or what it raised; cancelling it does not stop a step that has begun."""
        done: Future[float] = Future()
        due = time.monotonic() + _PATIENCE_S * (1.0 - worth)
        heapq.heappush(self._due, (due, next(self._numbers), step, done))
        self._thread.submit(self._run_next)
        return asyncio.wrap_future(done)

    def post(self, task: Callable[[], None]) -> None:
        """Runs `task` soon, behind a step that has begun, and waits for nothing; what it raises is
        logged. On this thread when the other has been closed."""
        try:
            self._thread.submit(_logged, task)
        except RuntimeError:  # it is shut down, and therefore at rest
            _logged(task)

    def close(self) -> None:
        """Waits for all that was asked for. Idempotent."""
        self._thread.shutdown()

    def _run_next(self) -> None:
        # Both threads use the heap; each push and pop is one call, under the interpreter lock.
        _, _, step, done = heapq.heappop(self._due)
        if not done.set_running_or_notify_cancel():
            return
        started = time.perf_counter()
        try:
            step()
        except Exception as error:
            done.set_exception(error)
        except BaseException as error:
            # A panic in a library's native code. Let through, it would end more than this draft.
            failed = InternalError(
                f"A drafter failed ({error!r}). Report this as a bug.", reason="DRAFTER_FAILED"
            )
            failed.__cause__ = error
            done.set_exception(failed)
        else:
            done.set_result((time.perf_counter() - started) * 1e3)


def _logged(task: Callable[[], None]) -> None:
    try:
        task()
    except Exception:
        _log.exception("what a session held could not be freed")
