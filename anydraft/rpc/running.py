"""One running call of a node, as those see it who must end it from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, cast


class RunningCall:
    """The call that the current task works on."""

    def __init__(self, *, is_refused: Callable[[], bool], on_answered: Callable[[], None]) -> None:
        """`is_refused`: whether no answer may begin any more. `on_answered`: an answer is over."""
        self.is_refused = is_refused
        self.on_answered = on_answered
        self.is_answering = False
        self.is_writing = False
        self.was_ended = False
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())

    def end(self) -> None:
        """The method gets CancelledError where it waits, or after the message that it is sending:
        gRPC cannot send a status behind a message that was cut off.
        """
        self.was_ended = True
        if not self.is_writing:
            self._task.cancel()


current_call: ContextVar[RunningCall] = ContextVar("current_call")
"""Unset outside a call."""
