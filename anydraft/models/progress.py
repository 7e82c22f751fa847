"""A progress bar on stderr, when somebody is there to see it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def wants_progress(progress: bool | None) -> bool:
    """`progress` where it was chosen, else whether stderr is a terminal."""
    return sys.stderr.isatty() if progress is None else progress


class ByteProgress:
    """Counts bytes towards a total. Silent unless a bar was asked for."""

    def __init__(self, bar: Any | None) -> None:
        self._bar = bar
        self._done_bytes = 0

    def advance(self, count: int) -> None:
        self._done_bytes += count
        if self._bar is not None:
            self._bar.update(count)

    def at(self, done_bytes: int) -> None:
        """Move to an absolute position; moving back (a retry) is allowed."""
        self.advance(done_bytes - self._done_bytes)


@contextmanager
def byte_progress(label: str, total_bytes: int, progress: bool | None) -> Iterator[ByteProgress]:
    if not wants_progress(progress):
        yield ByteProgress(None)
        return
    from tqdm import tqdm

    with tqdm(total=total_bytes, desc=label, unit="B", unit_scale=True, file=sys.stderr) as bar:
        yield ByteProgress(bar)
