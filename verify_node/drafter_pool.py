"""Draft nodes that this node dials, so that apps need none: who is there, and who is next.

Drafts are a help that may come from anywhere: a session takes whoever has the most room, and goes
on with another one when that is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence

from anydraft.rpc.address import Address, parse_target
from anydraft.rpc.channel import KEEP_ALIVE, KeepAlive
from verify_node.pool_member import PoolMember

_log = logging.getLogger(__name__)

_RESOLVE_EVERY_S = 5.0
"""How often names are looked up again: behind one stand as many draft nodes as it has addresses."""
_NO_REST_S = 60.0


class DrafterPool:
    """`run` it in one event loop, until that is cancelled; then `close`."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        in_turn: bool = False,
        keep_alive: KeepAlive = KEEP_ALIVE,
    ) -> None:
        """`in_turn`: its members compute on this node's own cores.

        Raises InvalidRequestError when an address is not HOST:PORT.
        """
        self._targets = [parse_target(address) for address in addresses]
        self.in_turn = in_turn
        self._keep_alive = keep_alive
        self._members: dict[str, PoolMember] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[PoolMember] = set()
        """No longer found under their name, and still drafting."""
        self._changed = asyncio.Event()

    async def run(self) -> None:
        while True:
            try:
                await self._look_up()
            except Exception:  # the pool is then what it was
                _log.exception("the drafters could not be looked up")
            await asyncio.sleep(_RESOLVE_EVERY_S)

    async def _look_up(self) -> None:
        found = await asyncio.gather(*(_resolve(target) for target in self._targets))
        known = [addresses for addresses in found if addresses is not None]
        listed = {address for addresses in known for address in addresses}
        self._admit(listed)
        # A name that is not found just now stands for what it stood for.
        if len(known) == len(found):
            await self._dismiss(listed)

    async def take(self) -> PoolMember:
        """The member with the most room, once there is one. Give it back with
        `PoolMember.is_done`."""
        while True:
            changed = self._changed
            free = [member for member in self._members.values() if member.is_free]
            if free:
                member = min(free, key=lambda member: member.load)
                member.takes()
                return member
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._next_rest_s()):
                    await changed.wait()

    async def close(self) -> None:
        """Idempotent."""
        for watch in self._watches.values():
            watch.cancel()
        members = [*self._members.values(), *self._leaving]
        self._members.clear()
        self._leaving.clear()
        await asyncio.gather(*(member.close() for member in members))

    def _next_rest_s(self) -> float:
        """How long until a member may be free again that rests."""
        rests = [rest for member in self._members.values() if (rest := member.rest_s())]
        return min(rests, default=_NO_REST_S) + 0.001

    def _admit(self, addresses: set[str]) -> None:
        for address in sorted(addresses - self._members.keys()):
            member = PoolMember(address, self._tell, self._keep_alive)
            self._members[address] = member
            self._watches[address] = asyncio.create_task(member.watch())

    async def _dismiss(self, listed: set[str]) -> None:
        """Those that are not listed any more get no sessions; they may finish those they have."""
        for address in self._members.keys() - listed:
            self._watches.pop(address).cancel()
            self._leaving.add(self._members.pop(address))
        done = {member for member in self._leaving if member.num_ours == 0}
        self._leaving -= done
        await asyncio.gather(*(member.close() for member in done))

    def _tell(self) -> None:
        """Wakes all that wait; each takes a place at once, so the next one sees it taken."""
        self._changed.set()
        self._changed = asyncio.Event()


async def _resolve(target: Address) -> set[str] | None:
    """The addresses behind a name, each with the port; None when it is not found."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        _log.warning("no draft node is known behind %s: %s", target, error)
        return None
    return {str(Address(str(where[0]), target.port)) for _, _, _, _, where in found}
