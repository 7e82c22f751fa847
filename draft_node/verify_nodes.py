"""The verify nodes that a draft node may dial: who is there, and who is next."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence

import grpc.aio

from anydraft.rpc.address import Address, parse_target
from anydraft.rpc.channel import KeepAlive, dial
from anydraft.v1.server_pb2 import ServerInfo
from draft_node.verify_watch import VerifyWatch

_log = logging.getLogger(__name__)


class VerifyNode:
    """One of them, as it is seen from here."""

    def __init__(
        self, address: str, keep_alive: KeepAlive, on_change: Callable[[], Awaitable[None]]
    ) -> None:
        self.address = address
        self.channel: grpc.aio.Channel = dial(address, keep_alive)
        self.watch = VerifyWatch(self.channel, address, on_change)
        self.num_answers = 0
        """That are made there for this draft node."""

    def may_go_on(self, fingerprint: str) -> bool:
        """Whether it may make an answer, or go on with one, that nodes with this fingerprint make;
        an empty one is any. What is not known yet is tried."""
        info = self.watch.info
        return not fingerprint or info is None or info.fingerprint == fingerprint


class VerifyNodes:
    """Belongs to one event loop. `run` it until it is cancelled, then `close`."""

    def __init__(
        self,
        addresses: Sequence[str],
        keep_alive: KeepAlive,
        on_change: Callable[[], Awaitable[None]],
    ) -> None:
        """`on_change` is awaited whenever one has come or gone. A name with several addresses
        stands for as many nodes. Raises InvalidRequestError when an address is not HOST:PORT."""
        targets = [parse_target(address) for address in addresses]
        found = [str(address) for target in targets for address in _resolved(target)]
        self._on_change = on_change
        self._changed = asyncio.Event()
        self._nodes = [
            VerifyNode(address, keep_alive, self._tell) for address in dict.fromkeys(found)
        ]

    @property
    def addresses(self) -> str:
        """For messages."""
        return ", ".join(node.address for node in self._nodes)

    @property
    def is_good(self) -> bool:
        """Whether answers can be had."""
        return any(node.watch.is_good for node in self._nodes)

    @property
    def info(self) -> ServerInfo | None:
        """What one of them said last about itself, rather one that is there."""
        nodes = sorted(self._nodes, key=lambda node: not node.watch.is_good)
        return next((node.watch.info for node in nodes if node.watch.info is not None), None)

    async def first_look(self) -> None:
        """Returns when something is known of each of them."""
        await asyncio.gather(*(node.watch.first_look() for node in self._nodes))

    def best(self, fingerprint: str, but: Collection[VerifyNode] = ()) -> VerifyNode | None:
        """Who is there and makes fewest answers of ours, of those that may go on with one, none
        that is in `but`; of those that seem not to be there, the first. None when there is none."""
        able = [n for n in self._nodes if n not in but and n.may_go_on(fingerprint)]
        good = [node for node in able if node.watch.is_good]
        if good:
            return min(good, key=lambda node: node.num_answers)
        return able[0] if able else None

    def other_good(self, than: VerifyNode, fingerprint: str) -> bool:
        """Whether another one that is there may go on with an answer."""
        best = self.best(fingerprint, but=(than,))
        return best is not None and best.watch.is_good

    async def change(self, timeout_s: float) -> None:
        """Returns when one has come or gone, or when the time is up."""
        changed = self._changed
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            return

    async def run(self) -> None:
        await asyncio.gather(*(node.watch.run() for node in self._nodes))

    async def close(self) -> None:
        await asyncio.gather(*(node.channel.close() for node in self._nodes))

    async def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        await self._on_change()


def _resolved(target: Address) -> list[Address]:
    """All addresses of a name, where it has several; else as it was given, for gRPC to look up
    again whenever it dials."""
    if target.is_loopback:
        return [target]
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError:
        return [target]
    hosts = list(dict.fromkeys(str(where[0]) for *_, where in found))
    return [Address(host, target.port) for host in hosts] if len(hosts) > 1 else [target]
