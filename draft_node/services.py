"""The gRPC face of a draft node: answers that a verify node makes, helped by drafts made here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack

import grpc.aio

from anydraft.rpc.calls import answering
from anydraft.rpc.handler import stream_handler, unary_handler
from anydraft.v1.generation_pb2 import GenerateRequest, GenerateResponse
from anydraft.v1.generation_pb2_grpc import GenerationServiceServicer
from anydraft.v1.server_pb2 import GetServerInfoRequest, GetServerInfoResponse, ServerInfo
from anydraft.v1.server_pb2_grpc import ServerServiceServicer
from draft_node.assisted_answer import AssistedAnswer, Drafting

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
        with ExitStack() as opened:
            try:
                async for response in answer.responses(request.spec):
                    if response.HasField("opened"):
                        opened.enter_context(answering())
                    yield response
            finally:
                await answer.close()


class ServerService(ServerServiceServicer):
    def __init__(self, info: ServerInfo) -> None:
        self._info = info

    @unary_handler
    async def GetServerInfo(  # noqa: N802
        self, request: GetServerInfoRequest, context: Context
    ) -> GetServerInfoResponse:
        return GetServerInfoResponse(info=self._info)
