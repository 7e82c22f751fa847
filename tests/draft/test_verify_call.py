"""What grpc.aio gets wrong when a call ends while it is written to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from anydraft.rpc.channel import dial
from anydraft.rpc.server import NodeServer
from anydraft.v1.verification_pb2 import Close, Draft, Verdict, VerifyRequest, VerifyResponse
from anydraft.v1.verification_pb2_grpc import (
    VerificationServiceServicer,
    add_VerificationServiceServicer_to_server,
)
from draft_node.verify_call import VerifyCall

DRAFT = VerifyRequest(draft=Draft(first_piece=1))
CLOSE = VerifyRequest(close=Close())
NUM_VERDICTS = 5


class GivesUp(VerificationServiceServicer):
    """Answers a few drafts and fails; finishes at `close`."""

    async def Verify(  # noqa: N802
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[VerifyResponse]:
        count = 0
        async for request in request_iterator:
            if request.HasField("close"):
                return
            count += 1
            yield VerifyResponse(verdict=Verdict(newest_piece=count))
            if count == NUM_VERDICTS:
                metadata = (("why", "test"),)
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", metadata)


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    node = NodeServer("127.0.0.1:0")
    add_VerificationServiceServicer_to_server(GivesUp(), node.server)
    async with dial(await node.start()) as channel:
        yield channel
    await node.stop(0)


async def write_on(call: VerifyCall) -> None:
    while await call.write(DRAFT):
        pass


async def read_on(call: VerifyCall, seen: list[int]) -> None:
    while (response := await call.read()) is not None:
        seen.append(response.verdict.newest_piece)


async def test_neither_message_nor_status_is_lost(channel: grpc.aio.Channel) -> None:
    for _ in range(60):
        call = VerifyCall(channel, timeout_s=10)
        writing = asyncio.create_task(write_on(call))
        seen: list[int] = []
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_on(call, seen)
        assert seen == list(range(1, NUM_VERDICTS + 1))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.details() == "full"
        assert caught.value.trailing_metadata()["why"] == "test"
        await writing
        assert call.sent_bytes >= NUM_VERDICTS * DRAFT.ByteSize()
        call.cancel()


async def test_a_read_that_is_cancelled_loses_nothing(channel: grpc.aio.Channel) -> None:
    call = VerifyCall(channel, timeout_s=10)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await call.read()
    assert not call.done
    assert await call.write(DRAFT)
    response = await call.read()
    assert response is not None
    assert response.verdict.newest_piece == 1
    assert call.received_bytes == response.ByteSize()
    assert await call.write(CLOSE)
    assert await call.read() is None
    call.cancel()


async def test_a_call_can_be_left_while_it_is_read(channel: grpc.aio.Channel) -> None:
    call = VerifyCall(channel, timeout_s=10)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await call.read()
    call.cancel()
    call.cancel()
    assert call.done
    assert not await call.write(DRAFT)
