"""The gRPC face of a draft node: answers that a verify node makes, helped by drafts made here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, aclosing, suppress
from functools import partial

import grpc.aio

from anydraft.errors import FailedPreconditionError, UnavailableError
from anydraft.rpc.answer_log import AnswerLog
from anydraft.rpc.answer_table import SESSION_TTL_S, AnswerTable
from anydraft.rpc.calls import answering
from anydraft.v1.generation_pb2 import GenerateRequest, GenerateResponse
from anydraft.v1.generation_pb2_grpc import GenerationServiceServicer
from anydraft.v1.server_pb2 import (
    NODE_ROLE_DRAFT,
    GetServerInfoRequest,
    GetServerInfoResponse,
    ServerInfo,
)
from anydraft.v1.server_pb2_grpc import ServerServiceServicer
from anydraft.version import PROTOCOL_REVISION, VERSION
from draft_node.assisted_answer import AssistedAnswer, Drafting
from draft_node.failover import RECONNECT_S
from draft_node.load import LoadedDrafter
from draft_node.places import Places
from draft_node.verify_nodes import VerifyNodes

_FIRST_LOOK_S = 2.0
"""How long a question waits for the first news of the verify node."""

Context = grpc.aio.ServicerContext[object, object]


class GenerationService(GenerationServiceServicer):
    """`Generate`, by way of one Verify stream for each answer."""

    def __init__(
        self,
        nodes: VerifyNodes | None,
        *,
        reconnect_s: float = RECONNECT_S,
        session_ttl_s: float = SESSION_TTL_S,
    ) -> None:
        """Without `nodes`: no answers. `reconnect_s`: see `Failover`; `session_ttl_s`: see
        `AnswerTable`."""
        self._table = AnswerTable(session_ttl_s)
        self._nodes = nodes
        self._reconnect_s = reconnect_s
        self.drafting: Drafting | None = None
        """What new answers are drafted with; None while it is loading."""

    async def Generate(  # noqa: N802
        self, request: GenerateRequest, context: Context
    ) -> AsyncIterator[GenerateResponse]:
        timeout_s = context.time_remaining()
        make = partial(self._answer, timeout_s=timeout_s)
        async with aclosing(self._table.answer(request, make)) as responses:
            async for response in responses:
                yield response

    async def _answer(
        self, request: GenerateRequest, *, timeout_s: float | None
    ) -> AsyncGenerator[GenerateResponse, None]:
        if self._nodes is None:
            AnswerLog().end("NO_VERIFY_NODE")
            raise FailedPreconditionError(
                "This node drafts for verify nodes that dial it, no more. Ask one of those, or "
                "restart this node with --verify HOST:PORT.",
                reason="NO_VERIFY_NODE",
            )
        if self.drafting is None:
            AnswerLog().end("MODEL_LOADING")
            raise UnavailableError(
                "This draft node is still loading its assistant. Wait until it is ready.",
                reason="MODEL_LOADING",
            )
        answer = AssistedAnswer(
            self._nodes,
            self.drafting,
            timeout_s=timeout_s,
            reconnect_s=self._reconnect_s,
        )
        resume = request.resume if request.HasField("resume") else None
        with ExitStack() as opened:
            try:
                async for response in answer.responses(request.spec, resume):
                    if response.HasField("opened"):
                        opened.enter_context(answering())
                    yield response
            finally:
                await answer.close()


class ServerService(ServerServiceServicer):
    """What this node is, and the target as its verify node describes it."""

    def __init__(self, nodes: VerifyNodes | None, places: Places) -> None:
        """`nodes`: those that answer, where there are any."""
        self._nodes = nodes
        self._places = places
        self.loaded: LoadedDrafter | None = None
        """None while it is loading."""

    async def GetServerInfo(  # noqa: N802
        self, request: GetServerInfoRequest, context: Context
    ) -> GetServerInfoResponse:
        if self._nodes is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_LOOK_S):
                    await self._nodes.first_look()
        return GetServerInfoResponse(info=self._info())

    def _info(self) -> ServerInfo:
        info = ServerInfo()
        if self._nodes is not None:
            if self._nodes.info is not None:
                # The target is the same on both nodes.
                info.CopyFrom(self._nodes.info)
            info.verify_address = self._nodes.addresses
        info.role = NODE_ROLE_DRAFT
        info.version = VERSION
        info.protocol_revision = PROTOCOL_REVISION
        info.num_drafting_sessions = self._places.num_taken
        info.max_drafting_sessions = self._places.limit
        info.engine = "loading" if self.loaded is None else self.loaded.engine
        if self.loaded is not None:
            info.assistant = self.loaded.assistant
        return info
