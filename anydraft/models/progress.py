"""How far a long step is: a bar on stderr where somebody sees it, else lines in the log."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anydraft.models.cache import folder_bytes, human_bytes

logger = logging.getLogger(__name__)

LINE_EVERY_S = 5.0
_POLL_S = 0.5


def wants_progress(progress: bool | None) -> bool:
    """`progress` where it was chosen, else whether stderr is a terminal."""
    return sys.stderr.isatty() if progress is None else progress


class ByteProgress:
    """Counts bytes towards a total, and tells `bar` of it."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._done_bytes = 0

    def advance(self, count: int) -> None:
        self._done_bytes += count
        self._bar.update(count)

    def at(self, done_bytes: int) -> None:
        """Move to an absolute position; moving back (a retry) is allowed."""
        self.advance(done_bytes - self._done_bytes)


class LoggedBar:
    """In place of a bar: a line at INFO at the start, then at most one in LINE_EVERY_S seconds."""

    def __init__(
        self, label: str, total_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._label = label
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._clock = clock
        self._told_at = clock()
        logger.info("%s (%s)", label, human_bytes(total_bytes))

    def update(self, count: int) -> None:
        self._done_bytes += count
        if self._clock() - self._told_at < LINE_EVERY_S:
            return
        self._told_at = self._clock()
        share = min(100, 100 * self._done_bytes // max(1, self._total_bytes))
        logger.info("%s: %d %% of %s", self._label, share, human_bytes(self._total_bytes))


@contextmanager
def byte_progress(label: str, total_bytes: int, progress: bool | None) -> Iterator[ByteProgress]:
    """`label` says what is done with the bytes, such as `fetching NAME from PyPI`."""
    if not wants_progress(progress):
        yield ByteProgress(LoggedBar(label, total_bytes))
        return
    from tqdm import tqdm

    with tqdm(total=total_bytes, desc=label, unit="B", unit_scale=True, file=sys.stderr) as bar:
        yield ByteProgress(bar)


@contextmanager
def told(label: str, total_bytes: int, folder: Path, progress: bool | None) -> Iterator[None]:
    """Lines about a download that a library makes into `folder`, unless it shows a bar itself."""
    if wants_progress(progress) or not total_bytes:
        yield
        return
    bar = ByteProgress(LoggedBar(label, total_bytes))
    before = folder_bytes(folder)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_POLL_S):
            bar.at(folder_bytes(folder) - before)

    thread = threading.Thread(target=watch, name="download-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
