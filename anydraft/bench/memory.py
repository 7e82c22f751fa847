"""What a simulated assistant lacked: its memory, followed from here."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from anydraft.errors import DeadlineExceededError

_POLL_S = 0.05
_PATIENCE_S = 900.0
"""Of whoever waits for the real assistant to choose what was missed."""


class Memory:
    """Follows the notes of `draft_node.simulated`, from their present end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0
        self._missed = 0
        self._filled = 0

    def missed(self) -> int:
        """How many choices were wanted and not known, since this object was made."""
        self._follow()
        return self._missed

    async def filled(self) -> None:
        """Returns once all that was missed is known. Raises DeadlineExceededError after a quarter
        of an hour."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while self.missed() > self._filled:
            if time.monotonic() > deadline_s:
                raise DeadlineExceededError(
                    "the simulated assistant did not learn in time what it lacked: see whether the "
                    "machine is busy, and run it again",
                    reason="NOT_READY",
                )
            await asyncio.sleep(_POLL_S)

    def _follow(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        lines = data[: data.rfind(b"\n") + 1]
        self._at += len(lines)
        for line in lines.splitlines():
            entry = json.loads(line)
            self._missed += entry.get("missed", 0)
            self._filled += entry.get("filled", 0)
