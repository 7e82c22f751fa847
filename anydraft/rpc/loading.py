"""Work of minutes at a node's start, which a signal does not wait for.

The event loop goes on meanwhile: the node answers questions about its health and hears signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

_THREAD_NAME = "loading"


def load_aside(load: Callable[[], _T]) -> asyncio.Future[_T]:
    """Runs `load` on a thread of its own; the future gets what it returns or raises."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def tell(result: _T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # what `load` returned, also None

    def run() -> None:
        result, error = None, None
        try:
            result = load()
            # What is loaded stays. A collection that walks all of it stops every session.
            gc.collect()
            gc.freeze()
        except BaseException as raised:
            error = raised
        # The loop is closed when the node has stopped meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, name=_THREAD_NAME, daemon=True).start()
    return future


def end_process(code: int) -> int:
    """Returns `code`, unless something is still loading: native code on another thread does not
    survive the end of the interpreter, so the process ends here and now."""
    if any(thread.name == _THREAD_NAME for thread in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
