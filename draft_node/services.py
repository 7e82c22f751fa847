"""The gRPC face of a draft node: answers that a verify node makes, helped by drafts made here."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, cast

import grpc
import grpc.aio

from anydraft.rpc.handler import stream_handler, unary_handler
from anydraft.v1.generation_pb2 import GenerateRequest, GenerateResponse
from anydraft.v1.generation_pb2_grpc import GenerationServiceServicer
from anydraft.v1.server_pb2 import GetServerInfoRequest, GetServerInfoResponse, ServerInfo
from anydraft.v1.server_pb2_grpc import ServerServiceServicer, ServerServiceStub
from draft_node.assisted_answer import AssistedAnswer, Drafting

if TYPE_CHECKING:
    from anydraft.v1.server_pb2_grpc import ServerServiceAsyncStub

_ASK_TIMEOUT_S = 2.0

Context = grpc.aio.ServicerContext[object, object]


class GenerationService(GenerationServiceServicer):
    """`Generate`, by way of one Verify stream for each answer."""

    def __init__(self, channel: grpc.aio.Channel, address: str, drafting: Drafting) -> None:
        """`address` is where `channel` leads, for error messages."""
        self._channel = channel
        self._address = address
        self._drafting = drafting

    @stream_handler
    async def Generate(  # noqa: N802
        self, request: GenerateRequest, context: Context
    ) -> AsyncIterator[GenerateResponse]:
        answer = AssistedAnswer(
            self._channel, self._address, self._drafting, timeout_s=context.time_remaining()
        )
        try:
            async for response in answer.responses(request.spec):
                yield response
        finally:
            await answer.close()


class ServerService(ServerServiceServicer):
    """What this node is, and the target as its verify node describes it."""

    def __init__(self, channel: grpc.aio.Channel, mine: ServerInfo) -> None:
        """`mine` is all that the verify node need not be asked for."""
        self._verify_node = cast("ServerServiceAsyncStub", ServerServiceStub(channel))
        self._mine = mine
        self._target: ServerInfo | None = None

    @unary_handler
    async def GetServerInfo(  # noqa: N802
        self, request: GetServerInfoRequest, context: Context
    ) -> GetServerInfoResponse:
        with contextlib.suppress(grpc.RpcError):
            response = await self._verify_node.GetServerInfo(
                GetServerInfoRequest(), timeout=_ASK_TIMEOUT_S
            )
            self._target = response.info
        return GetServerInfoResponse(info=describe(self._mine, self._target))


def describe(mine: ServerInfo, target: ServerInfo | None) -> ServerInfo:
    """`mine` with what is said about the target; `target` None is not known."""
    info = ServerInfo()
    if target is not None:
        info.CopyFrom(target)
        for field in ("assistant", "verify_address"):
            info.ClearField(field)
    info.MergeFrom(mine)
    return info
