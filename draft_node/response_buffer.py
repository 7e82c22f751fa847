"""Responses on their way to a reader who may be slow.

An answer is read from the verify node as fast as it is made, so that a session ends, and gives its
caches back on both nodes, when its answer is finished and not when its reader has taken it.
"""

from __future__ import annotations

import asyncio
from collections import deque

from anydraft.v1.generation_pb2 import GenerateResponse

MAX_BYTES = 1024 * 1024
"""Of one answer. More than the longest text of most contexts, little beside a KV cache."""


class ResponseBuffer:
    """One writer, one reader, in one event loop."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        """`put` waits while at least `max_bytes` are not taken."""
        self._max_bytes = max_bytes
        self._responses: deque[GenerateResponse] = deque()
        self._num_bytes = 0
        self._ended = False
        self._error: Exception | None = None
        self._discarding = False
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()

    async def put(self, response: GenerateResponse) -> None:
        while self._num_bytes >= self._max_bytes and not self._discarding:
            self._writable.clear()
            await self._writable.wait()
        if not self._discarding:
            self._responses.append(response)
            self._num_bytes += response.ByteSize()
            self._readable.set()

    def end(self, error: Exception | None = None) -> None:
        """Nothing follows but `error`, which `get` raises behind the last response."""
        self._ended, self._error = True, error
        self._readable.set()

    def discard(self) -> None:
        """The reader has left: what is here and what comes is dropped."""
        self._discarding = True
        self._responses.clear()
        self._writable.set()

    async def get(self) -> GenerateResponse | None:
        """The next one; None at the end. Raises the error that ended them."""
        while not self._responses:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return None
            self._readable.clear()
            await self._readable.wait()
        response = self._responses.popleft()
        self._num_bytes -= response.ByteSize()
        self._writable.set()
        return response
