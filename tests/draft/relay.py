"""The network between two nodes, for tests that break it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Relay:
    """Passes bytes on, until it is cut or frozen."""

    def __init__(self, target: str) -> None:
        self._host, _, self._port = target.rpartition(":")
        self._writers: list[asyncio.StreamWriter] = []
        self._passing = asyncio.Event()
        self._passing.set()
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    def freeze(self) -> None:
        """Nothing arrives any more, and nobody is told."""
        self._passing.clear()

    def cut(self) -> None:
        """Every connection is reset, and no new one is taken: the machine behind it died."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def stop(self) -> None:
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, to_behind = await asyncio.open_connection(self._host, int(self._port))
        self._writers += [writer, to_behind]
        for pair in ((reader, to_behind), (behind, writer)):
            self._tasks.append(asyncio.create_task(self._pass(*pair)))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._passing.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def relay(target: str) -> AsyncIterator[tuple[str, Relay]]:
    """Its address, which leads to `target`."""
    between = Relay(target)
    try:
        yield await between.start(), between
    finally:
        await between.stop()
