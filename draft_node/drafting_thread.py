"""The thread on which all sessions of a node draft, one pass at a time.

A pass is one look at the next pieces or one chunk of a prompt, so sessions take turns and nobody
waits longer than that for the thread. One thread, because a pass already uses all the cores that it
may.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from anydraft.errors import InternalError

_log = logging.getLogger(__name__)

_PATIENCE_S = 0.1
"""How long a pass that is worth nothing waits for others, at most, that are surely worth it: a few
steps of a target, in which a session gets no draft."""


@dataclass(eq=False, slots=True)
class _Pass:
    worth: Callable[[], float]
    run: Callable[[], None]
    asked_at: float = field(default_factory=time.monotonic)
    done: Future[float] = field(default_factory=Future)


class DraftingThread:
    """Of the passes that wait, the one that is worth most is next, and in time each of them."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="drafting")
        self._waiting: list[_Pass] = []
        self._lock = threading.Lock()

    def submit(self, worth: Callable[[], float], run: Callable[[], None]) -> asyncio.Future[float]:
        """Runs a pass. The future holds how many milliseconds it took, or what it raised;
        cancelling it does not stop a pass that has begun.

        `worth` says, 0 to 1 and on this thread as well, what the pass is worth by now; it is asked
        only while others wait, perhaps often.
        """
        asked = _Pass(worth, run)
        with self._lock:
            self._waiting.append(asked)
        self._thread.submit(self._run_best)
        return asyncio.wrap_future(asked.done)

    def post(self, task: Callable[[], None]) -> None:
        """Runs `task` soon, behind a pass that has begun, and waits for nothing; what it raises is
        logged. On this thread when the other has been closed."""
        try:
            self._thread.submit(_logged, task)
        except RuntimeError:  # it is shut down, and therefore at rest
            _logged(task)

    def close(self) -> None:
        """Waits for all that was asked for. Idempotent."""
        self._thread.shutdown()

    def _run_best(self) -> None:
        with self._lock:
            waiting = self._waiting[:]
        best = waiting[0] if len(waiting) == 1 else max(waiting, key=_urgency)
        with self._lock:
            self._waiting.remove(best)
        if best.done.set_running_or_notify_cancel():
            _settle(best.done, best.run)


def _urgency(asked: _Pass) -> float:
    """What it is worth; a pass that fails to say so is next, and fails for its own session."""
    try:
        worth = asked.worth()
    except BaseException:  # a panic in native code as well
        return math.inf
    return worth + (time.monotonic() - asked.asked_at) / _PATIENCE_S


def _settle(done: Future[float], run: Callable[[], None]) -> None:
    started = time.perf_counter()
    try:
        run()
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
