"""The life of a node's gRPC server: listen, become ready, drain, stop.

`grpc.health.v1` answers for "" as soon as the process serves (live), and for a service's full name
once `set_ready` named it (ready). Reflection lists every registered service.

    node = NodeServer("127.0.0.1:0")
    add_GenerationServiceServicer_to_server(servicer, node.server)
    address = await node.start()
    ...  # load the model
    await node.set_ready(["anydraft.v1.GenerationService"])
    await node.run_until_signal(grace_s=10)
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterable
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from anydraft.errors import FailedPreconditionError
from anydraft.rpc.address import Address, parse_listen
from anydraft.rpc.calls import Calls
from anydraft.rpc.channel import KEEP_ALIVE, KeepAlive, server_options
from anydraft.rpc.services import RecordingServer

logger = logging.getLogger(__name__)

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

_COURTESY_S = 0.2
"""What calls that are no answers get when the node stops: watchers of health learn about it, short
calls finish. Then again, to send their status."""


class NodeServer:
    """One listening server; build it inside the event loop that will run it."""

    def __init__(self, listen: str, *, keep_alive: KeepAlive = KEEP_ALIVE) -> None:
        """`listen` is HOST:PORT, port 0 for a free one; InvalidRequestError when it is not."""
        self._listen = parse_listen(listen)
        self._health = health.aio.HealthServicer()
        self._stopping: asyncio.Task[None] | None = None
        self._calls = Calls()
        self._grace_is_over = asyncio.Event()
        self.on_draining: Callable[[], None] | None = None
        """Called once when the node begins to stop and answers still have time to finish."""
        self.server = RecordingServer(
            grpc.aio.server(interceptors=[self._calls], options=server_options(keep_alive))
        )
        """Register servicers on this before `start`."""

    async def start(self) -> str:
        """Listens and serves; returns the bound "host:port".

        Raises FailedPreconditionError when the address cannot be had.
        """
        names = list(self.server.service_names)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        listed = [*self.server.service_names, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(listed, self.server)
        for name in names:
            await self._health.set(name, _NOT_SERVING)
        address = self._bind()
        await self.server.start()
        logger.debug("listening on %s", address)
        if not address.is_loopback:
            logger.warning("%s is open to the network, without encryption or identity", address)
        return str(address)

    def _bind(self) -> Address:
        # gRPC reports a failed bind without its cause, so the socket is asked first.
        cause = _why_not_bindable(self._listen)
        try:
            port = self.server.add_insecure_port(str(self._listen)) if cause is None else 0
        except RuntimeError as exc:
            cause, port = str(exc), 0
        if not port:
            raise FailedPreconditionError(
                f"cannot listen on {self._listen} ({cause}): stop what listens there, "
                "or choose another address; port 0 takes a free one",
                reason="ADDRESS_UNAVAILABLE",
            )
        return Address(self._listen.host, port)

    async def set_ready(self, service_full_names: Iterable[str], is_ready: bool = True) -> None:
        """Health says SERVING, or NOT_SERVING, for these from now on. No effect once the server is
        stopping."""
        for name in service_full_names:
            await self._health.set(name, _SERVING if is_ready else _NOT_SERVING)

    async def run_until_signal(self, grace_s: float) -> None:
        """Serves until SIGTERM or SIGINT (or `stop`), then drains; returns when all is stopped.

        A second signal ends the grace at once.
        """
        signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signals.put_nowait, number)
        stopped = asyncio.create_task(self.server.wait_for_termination())
        try:
            if await _first_of(signals, stopped):
                finishing = asyncio.create_task(self.stop(grace_s))
                if await _first_of(signals, finishing):
                    self._grace_is_over.set()
                await finishing
        finally:
            stopped.cancel()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def stop(self, grace_s: float) -> None:
        """Health turns NOT_SERVING, new calls are refused, answers get `grace_s` seconds.

        An answer is a call inside `anydraft.rpc.calls.answering`. Every other one ends almost at
        once, as UNAVAILABLE: streams that never opened, watchers of health, reflection.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace_s))
        await asyncio.shield(self._stopping)

    async def _stop(self, grace_s: float) -> None:
        await self._health.enter_graceful_shutdown()
        if self.on_draining is not None:
            self.on_draining()
        courtesy_s = min(grace_s, _COURTESY_S)
        draining = asyncio.create_task(self._calls.drain(courtesy_s))
        hurrying = asyncio.create_task(self._grace_is_over.wait())
        await asyncio.wait(
            {draining, hurrying}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED
        )
        if draining.done():
            # For the last statuses. Some cannot be sent, because their client reads nothing.
            await asyncio.sleep(courtesy_s)
        for task in (draining, hurrying):
            task.cancel()
        # Once, and only now: two calls of it may meet, which crashes the process (grpcio 1.85).
        await self.server.stop(None)
        logger.info("stopped")


async def _first_of(signals: asyncio.Queue[signal.Signals], task: asyncio.Task[Any]) -> bool:
    """Waits for a signal or for the end of `task`; whether it was the signal."""
    received = asyncio.create_task(signals.get())
    try:
        await asyncio.wait({received, task}, return_when=asyncio.FIRST_COMPLETED)
        if not received.done():
            return False
        logger.info("%s: stopping", received.result().name)
        return True
    finally:
        received.cancel()


def _why_not_bindable(address: Address) -> str | None:
    """The system's reason for refusing `address`; None when it can be bound."""
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, where = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as exc:
        return os.strerror(exc.errno).lower() if exc.errno and exc.errno > 0 else str(exc)
    return None
