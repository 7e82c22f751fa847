"""The thread on which all sessions of a node draft, one step at a time, in the order they ask.

A step is one token or one chunk of a prompt, so sessions take turns and a verdict never waits
longer than that. One thread, because a step already uses all the cores that it may.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from anydraft.errors import InternalError

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class DraftingThread:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="drafting")

    async def run(self, step: Callable[[], _T]) -> tuple[_T, float]:
        """What `step` returns and how many milliseconds it took; raises what it raises.

        Cancelling this does not stop a step that has begun.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, _timed, step)

    def post(self, task: Callable[[], None]) -> None:
        """Runs `task` after all that was asked for before, and waits for nothing; what it raises is
        logged. On this thread when the other has been closed."""
        try:
            self._thread.submit(_logged, task)
        except RuntimeError:  # it is shut down, and therefore at rest
            _logged(task)

    def close(self) -> None:
        """Waits for all that was asked for. Idempotent."""
        self._thread.shutdown()


def _timed(step: Callable[[], _T]) -> tuple[_T, float]:
    started = time.perf_counter()
    try:
        result = step()
    except Exception:
        raise
    except BaseException as error:
        # A panic in a library's native code. Let through, it would end more than this draft.
        raise InternalError(
            f"A drafter failed ({error!r}). Report this as a bug.", reason="DRAFTER_FAILED"
        ) from error
    return result, (time.perf_counter() - started) * 1e3


def _logged(task: Callable[[], None]) -> None:
    try:
        task()
    except Exception:
        _log.exception("what a session held could not be freed")
