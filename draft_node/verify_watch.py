"""What a draft node knows of its verify node, before any answer needs it.

Health of the draft node's `GenerationService` follows this: an answer takes both nodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NoReturn, cast

import grpc
import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from anydraft.errors import AnydraftError, FailedPreconditionError, InternalError, UnavailableError
from anydraft.rpc.health_watch import next_status
from anydraft.rpc.status import from_rpc_error
from anydraft.v1 import verification_pb2
from anydraft.v1.server_pb2 import NODE_ROLE_VERIFY, GetServerInfoRequest, ServerInfo
from anydraft.v1.server_pb2_grpc import ServerServiceStub
from anydraft.version import PROTOCOL_REVISION, VERSION

if TYPE_CHECKING:
    from anydraft.v1.server_pb2_grpc import ServerServiceAsyncStub

_log = logging.getLogger(__name__)

_VERIFICATION = verification_pb2.DESCRIPTOR.services_by_name["VerificationService"].full_name
_ANSWER_S = 3.0
"""How long the verify node may take to say what it is."""
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 2.0


class VerifyWatch:
    """`run` it in the event loop of `channel`, until it is cancelled."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        address: str,
        on_change: Callable[[], Awaitable[None]],
    ) -> None:
        """`address` is where `channel` leads, for messages. `on_change` is awaited whenever
        `is_good` has changed."""
        self._health = HealthStub(channel)
        self._server = cast("ServerServiceAsyncStub", ServerServiceStub(channel))
        self._address = address
        self._on_change = on_change
        self._problem: AnydraftError | None = None
        self._has_looked = asyncio.Event()
        self.is_good = False
        """Whether a verify node that speaks our revision of the protocol serves there now."""
        self.info: ServerInfo | None = None
        """What the verify node said last about itself."""

    async def first_look(self) -> None:
        """Returns when `info` is known, or it is known that nothing is known."""
        await self._has_looked.wait()

    async def run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        problem: AnydraftError
        while True:
            try:
                await self._look()
            except grpc.RpcError as error:
                problem = from_rpc_error(error, address=f"the verify node {self._address}")
            except AnydraftError as error:
                problem = error
            except Exception as error:
                # Without its watch, the node would say for ever what was true last.
                _log.exception("the verify node could not be watched")
                problem = InternalError(
                    f"The verify node {self._address} could not be watched ({error!r}). "
                    "Report this as a bug.",
                    reason="UNEXPECTED_FAILURE",
                )
            # What has just been good is asked again at once, what stays bad less and less often.
            pause_s = _FIRST_PAUSE_S if self.is_good else min(2 * pause_s, _LONGEST_PAUSE_S)
            await self._found(problem)
            await asyncio.sleep(pause_s)

    async def _look(self) -> NoReturn:
        """Raises what is wrong with the verify node, as soon as something is."""
        call = self._health.Watch(HealthCheckRequest(service=_VERIFICATION))
        try:
            async with asyncio.timeout(_ANSWER_S):
                status = await next_status(call)
            response = await self._server.GetServerInfo(GetServerInfoRequest(), timeout=_ANSWER_S)
            self._require_verify_node(response.info)
            self.info = response.info
            while status == HealthCheckResponse.SERVING:
                await self._found(None)
                status = await next_status(call)
        except TimeoutError:
            raise UnavailableError(
                f"The verify node {self._address} does not answer. See its log, and the network.",
                reason="VERIFY_NODE_UNREACHABLE",
            ) from None
        finally:
            # Left at the first bad news: a node that stops waits for its watchers.
            call.cancel()
        raise UnavailableError(
            f"The verify node {self._address} is loading its model, or going away. Wait for it.",
            reason="VERIFY_NODE_NOT_READY",
        )

    def _require_verify_node(self, info: ServerInfo) -> None:
        if info.role != NODE_ROLE_VERIFY:
            raise FailedPreconditionError(
                f"The node at {self._address} is no verify node. Restart this one with --verify "
                "and the address of one.",
                reason="NOT_A_VERIFY_NODE",
            )
        if info.protocol_revision != PROTOCOL_REVISION:
            raise FailedPreconditionError(
                f"The verify node {self._address} (anydraft {info.version}) speaks revision "
                f"{info.protocol_revision} of the protocol and this node (anydraft {VERSION}) "
                f"revision {PROTOCOL_REVISION}. Install the same version on both.",
                reason="PROTOCOL_REVISION_MISMATCH",
            )

    async def _found(self, problem: AnydraftError | None) -> None:
        """Says and passes on what is new."""
        is_new = (problem and problem.reason) != (self._problem and self._problem.reason)
        if problem is not None and is_new:
            _log.warning("no answers until the verify node is there: %s", problem)
        was_good, self.is_good, self._problem = self.is_good, problem is None, problem
        self._has_looked.set()
        if self.is_good != was_good:
            if self.is_good and self.info is not None:
                _log.info("the verify node %s serves %s", self._address, self.info.model)
            await self._on_change()
