"""When the caller leaves, the servicer's generator is closed at once."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from anydraft.errors import NotFoundError
from anydraft.rpc.channel import dial
from anydraft.rpc.handler import handled, stream_handler
from anydraft.rpc.server import NodeServer
from anydraft.v1 import generation_pb2, generation_pb2_grpc


class Endless(generation_pb2_grpc.GenerationServiceServicer):
    """Sends as fast as it can, or sleeps after the first response when `is_slow`."""

    def __init__(self) -> None:
        self.is_slow = False
        self.ending: asyncio.Future[tuple[type[BaseException], bool]] = asyncio.Future()

    @stream_handler
    async def Generate(  # noqa: N802
        self, request: Any, context: Any
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        task = asyncio.current_task()
        try:
            while True:
                yield generation_pb2.GenerateResponse()
                if self.is_slow:
                    await asyncio.sleep(30)
        except BaseException as exc:
            self.ending.set_result((type(exc), asyncio.current_task() is task))
            raise


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("leaves_by", ["cancel", "deadline", "close"])
async def test_the_caller_leaves(is_slow: bool, leaves_by: str, caplog) -> None:
    servicer, node = Endless(), NodeServer("127.0.0.1:0")
    servicer.is_slow = is_slow
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, node.server)
    channel = dial(await node.start())
    stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
    timeout_s = 1 if leaves_by == "deadline" else None
    with caplog.at_level(logging.WARNING):
        call = stub.Generate(generation_pb2.GenerateRequest(), timeout=timeout_s)
        assert await call.read() is not grpc.aio.EOF
        if leaves_by == "cancel":
            call.cancel()
        elif leaves_by == "close":
            await channel.close()
        cause, is_same_task = await asyncio.wait_for(servicer.ending, timeout=5)
        await channel.close()
        await node.stop(0)
    assert cause in (asyncio.CancelledError, GeneratorExit)
    assert is_same_task
    assert caplog.text == ""


async def test_a_failed_status_counts_as_the_caller_leaving() -> None:
    class BrokenContext:
        async def abort(self, *args: Any) -> None:
            raise grpc.aio.InternalError("execute_batch")

    async def refuse(request: Any, context: Any) -> Any:
        raise NotFoundError("no session: open one", reason="MODEL_NOT_FOUND")

    with pytest.raises(asyncio.CancelledError):
        await handled(refuse)(None, BrokenContext())


async def test_a_failed_write_counts_as_the_caller_leaving() -> None:
    """gRPC sometimes fails the write of a call before it cancels the task of that call."""

    class BrokenContext:
        async def write(self, response: Any) -> None:
            raise grpc.aio.InternalError("execute_batch")

    servicer: Any = Endless()
    with pytest.raises(asyncio.CancelledError):
        await servicer.Generate(generation_pb2.GenerateRequest(), BrokenContext())
    assert servicer.ending.result() == (GeneratorExit, True)
