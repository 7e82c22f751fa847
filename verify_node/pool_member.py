"""One draft node of a pool: whether it drafts, how much it has to do, and when it is left alone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import grpc
import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from anydraft.errors import AnydraftError, FailedPreconditionError, InternalError, UnavailableError
from anydraft.rpc.channel import KEEP_ALIVE, KeepAlive, dial
from anydraft.rpc.health_watch import next_status
from anydraft.rpc.status import from_rpc_error
from anydraft.v1 import drafting_pb2
from anydraft.v1.drafting_pb2_grpc import DraftingServiceStub
from anydraft.v1.server_pb2 import NODE_ROLE_DRAFT, GetServerInfoRequest, ServerInfo
from anydraft.v1.server_pb2_grpc import ServerServiceStub
from anydraft.version import PROTOCOL_REVISION, VERSION

if TYPE_CHECKING:
    from anydraft.v1.drafting_pb2_grpc import DraftingServiceAsyncStub
    from anydraft.v1.server_pb2_grpc import ServerServiceAsyncStub

_log = logging.getLogger(__name__)

_DRAFTING = drafting_pb2.DESCRIPTOR.services_by_name["DraftingService"].full_name
_ANSWER_S = 3.0
"""How long a draft node may take to say what it is."""
_LOAD_EVERY_S = 2.0
"""How often it is asked how much it has to do: other verify nodes dial it, too."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


class PoolMember:
    """`watch` it in the event loop in which it was made, until that is cancelled; then `close`."""

    def __init__(
        self,
        address: str,
        on_change: Callable[[], None],
        keep_alive: KeepAlive = KEEP_ALIVE,
    ) -> None:
        """`on_change` is called when it may have become free for a session."""
        self.address = address
        self._on_change = on_change
        self._channel = dial(address, keep_alive)
        self._health = HealthStub(self._channel)
        self._server = cast("ServerServiceAsyncStub", ServerServiceStub(self._channel))
        self.drafting = cast("DraftingServiceAsyncStub", DraftingServiceStub(self._channel))
        self._is_good = False
        self._problem: str | None = None
        """The reason of what was wrong last."""
        self.num_ours = 0
        """Sessions of this node that it drafts for."""
        self._num_others = 0
        self._limit = 1
        self._rests_until = 0.0
        self._pause_s = _FIRST_PAUSE_S

    @property
    def is_free(self) -> bool:
        """Whether to give it another session."""
        return self._is_good and self.load < 1 and self.rest_s() == 0.0

    @property
    def load(self) -> float:
        """The share of its places that is taken, as far as is known."""
        return (self.num_ours + self._num_others) / self._limit

    def rest_s(self) -> float:
        """For how long it is still left alone, after what went wrong with it."""
        return max(self._rests_until - time.monotonic(), 0.0)

    def takes(self) -> None:
        self.num_ours += 1

    def is_done(self, *, has_failed: bool) -> None:
        """With a session. Where that has failed, the member rests: each time for longer."""
        self.num_ours -= 1
        if has_failed:
            self._rests_until = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        else:
            self._pause_s = _FIRST_PAUSE_S
        self._on_change()

    def hear_load(self, num_sessions: int, max_sessions: int) -> None:
        """What it says of itself; ours are counted here, and sooner."""
        self._num_others = max(num_sessions - self.num_ours, 0)
        self._limit = max(max_sessions, 1)
        self._on_change()

    async def watch(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            was_good = False
            try:
                was_good = await self._look()
                problem: AnydraftError = UnavailableError(
                    f"the draft node {self.address} is loading its assistant, or going away",
                    reason="NOT_READY",
                )
            except grpc.RpcError as error:
                problem = from_rpc_error(error, address=f"the draft node {self.address}")
            except AnydraftError as error:
                problem = error
            except TimeoutError:
                problem = UnavailableError(
                    f"the draft node {self.address} does not answer", reason="NOT_READY"
                )
            except Exception as error:
                # Without its watch, it would be for ever what it was last.
                _log.exception("the draft node %s could not be watched", self.address)
                problem = InternalError(
                    f"the draft node {self.address} could not be watched ({error!r}). Report this "
                    "as a bug.",
                    reason="UNEXPECTED_FAILURE",
                )
            self._found(problem)
            pause_s = _FIRST_PAUSE_S if was_good else min(2 * pause_s, _LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)

    async def close(self) -> None:
        """Ends the streams of all its sessions."""
        self._is_good = False
        await self._channel.close()

    async def _look(self) -> bool:
        """Returns at the first bad news, whether there was any good before. Raises what is wrong
        with it otherwise."""
        call = self._health.Watch(HealthCheckRequest(service=_DRAFTING))
        was_good = False
        try:
            async with asyncio.timeout(_ANSWER_S):
                status = await next_status(call)
            while status == HealthCheckResponse.SERVING:
                await self._ask_for_load()
                was_good = True
                self._found(None)
                status = await self._status_after(call)
        finally:
            # Left at the first bad news: a node that stops waits for its watchers.
            call.cancel()
        return was_good

    async def _status_after(self, call: grpc.aio.UnaryStreamCall[object, object]) -> int | None:
        """The next one; asks for the load while there is none."""
        # Not under a timeout: a read that is cancelled ends its call.
        reading = asyncio.ensure_future(next_status(call))
        try:
            while not (await asyncio.wait({reading}, timeout=_LOAD_EVERY_S))[0]:
                await self._ask_for_load()
            return reading.result()
        finally:
            reading.cancel()

    async def _ask_for_load(self) -> None:
        """Raises FailedPreconditionError where it is no draft node of ours."""
        response = await self._server.GetServerInfo(GetServerInfoRequest(), timeout=_ANSWER_S)
        self._require_drafter(response.info)
        info = response.info
        self.hear_load(info.num_drafting_sessions, info.max_drafting_sessions)

    def _require_drafter(self, info: ServerInfo) -> None:
        if info.role != NODE_ROLE_DRAFT:
            raise FailedPreconditionError(
                f"the node at {self.address} is no draft node. Name others with --drafters.",
                reason="NOT_A_DRAFT_NODE",
            )
        if info.protocol_revision != PROTOCOL_REVISION:
            raise FailedPreconditionError(
                f"the draft node {self.address} (anydraft {info.version}) speaks revision "
                f"{info.protocol_revision} of the protocol and this node (anydraft {VERSION}) "
                f"revision {PROTOCOL_REVISION}. Install the same version on both.",
                reason="PROTOCOL_REVISION_MISMATCH",
            )

    def _found(self, problem: AnydraftError | None) -> None:
        """Logs what is new."""
        was_good, self._is_good = self._is_good, problem is None
        reason = problem.reason if problem is not None else None
        if problem is not None and reason != self._problem:
            _log.warning("no drafts from there: %s", problem)
        self._problem = reason
        if self._is_good and not was_good:
            _log.info("the draft node %s drafts, for %d sessions", self.address, self._limit)
            self._on_change()
