"""What every call passes through, over real connections."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from anydraft.errors import InternalError, InvalidRequestError, UnavailableError
from anydraft.rpc.calls import answering
from anydraft.rpc.channel import dial
from anydraft.rpc.handler import handled
from anydraft.rpc.server import NodeServer
from anydraft.rpc.status import from_rpc_error
from anydraft.v1 import (
    generation_pb2,
    generation_pb2_grpc,
    server_pb2,
    server_pb2_grpc,
    verification_pb2,
    verification_pb2_grpc,
)

INFO = "anydraft.v1.ServerService/GetServerInfo"
GENERATE = "anydraft.v1.GenerationService/Generate"
VERIFY = "anydraft.v1.VerificationService/Verify"
CHECK = "grpc.health.v1.Health/Check"
WATCH = "grpc.health.v1.Health/Watch"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"

ONE_REQUEST = [INFO, GENERATE, CHECK, WATCH]
MANY_REQUESTS = [VERIFY, REFLECTION]

NO_MESSAGE = b"\xff\xff"


class Panic(BaseException):
    """What a panic of a Rust extension looks like from Python."""


class Services(
    generation_pb2_grpc.GenerationServiceServicer,
    server_pb2_grpc.ServerServiceServicer,
    verification_pb2_grpc.VerificationServiceServicer,
):
    """One method of each kind, without a decorator."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.go_on = asyncio.Event()
        self.is_flooding = False

    async def GetServerInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.error is not None:
            raise self.error
        return server_pb2.GetServerInfoResponse()

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """An answer that goes on when it is told to."""
        if self.error is not None:
            raise self.error
        with answering():
            yield generation_pb2.GenerateResponse()
            await self.go_on.wait()
            yield generation_pb2.GenerateResponse()

    async def Verify(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Answers from the second message on."""
        yield verification_pb2.VerifyResponse()
        while self.is_flooding:
            yield verification_pb2.VerifyResponse(
                verdict=verification_pb2.Verdict(text="x" * 100_000)
            )
        await anext(requests, None)
        if self.error is not None:
            raise self.error
        with answering():
            async for _ in requests:
                yield verification_pb2.VerifyResponse()


@pytest.fixture
async def services() -> Services:
    return Services()


@pytest.fixture
async def node(services: Services) -> AsyncIterator[NodeServer]:
    node = NodeServer("127.0.0.1:0")
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(services, node.server)
    server_pb2_grpc.add_ServerServiceServicer_to_server(services, node.server)
    verification_pb2_grpc.add_VerificationServiceServicer_to_server(services, node.server)
    yield node
    await node.stop(0)


@pytest.fixture
async def channel(node: NodeServer) -> AsyncIterator[grpc.aio.Channel]:
    async with dial(await node.start()) as channel:
        yield channel


def _call(channel: grpc.aio.Channel, method: str) -> Any:
    """A call that takes and gives bytes, as many as it likes."""
    return channel.stream_stream(f"/{method}", bytes, bytes)()


async def _rest(call: Any) -> list[bytes]:
    responses = []
    while (response := await call.read()) is not grpc.aio.EOF:
        responses.append(response)
    return responses


async def _send(channel: grpc.aio.Channel, method: str, *messages: bytes) -> list[bytes]:
    """The responses to these messages; without any, to the end of the stream."""
    call = _call(channel, method)
    for message in messages:
        await call.write(message)
    if not messages:
        await call.done_writing()
    return await _rest(call)


@pytest.mark.parametrize(
    ("method", "messages"),
    [
        *((method, [NO_MESSAGE]) for method in ONE_REQUEST + MANY_REQUESTS),
        *((method, [b"", NO_MESSAGE]) for method in MANY_REQUESTS),
    ],
)
async def test_bytes_that_are_no_request(channel, caplog, method: str, messages) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(grpc.RpcError) as caught:
        await asyncio.wait_for(_send(channel, method, *messages), timeout=5)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    error = from_rpc_error(caught.value)
    assert (type(error), error.reason) == (InvalidRequestError, "REQUEST_UNREADABLE")
    assert method in str(error)
    info = error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(info) for detail in rpc_status.from_call(caught.value).details)
    shown = [record for record in caplog.records if record.levelno >= logging.INFO]
    assert [(record.levelname, record.exc_info) for record in shown] == [("INFO", None)]


@pytest.mark.parametrize("method", ONE_REQUEST)
async def test_a_call_without_its_request(channel, method: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        await asyncio.wait_for(_send(channel, method), timeout=5)
    error = from_rpc_error(caught.value)
    assert (type(error), error.reason) == (InvalidRequestError, "REQUEST_MISSING")


@pytest.mark.parametrize(
    ("method", "messages"), [(INFO, [b""]), (GENERATE, [b""]), (VERIFY, [b""])]
)
async def test_a_panic_ends_its_call_only(channel, services, caplog, method, messages) -> None:
    services.error = Panic("index out of bounds")
    with caplog.at_level(logging.ERROR), pytest.raises(grpc.RpcError) as caught:
        await asyncio.wait_for(_send(channel, method, *messages), timeout=5)
    error = from_rpc_error(caught.value)
    assert (type(error), error.reason) == (InternalError, "UNEXPECTED_FAILURE")
    assert "bounds" not in str(error)
    assert caplog.text.count("index out of bounds") == 1
    services.error = None
    assert await _send(channel, INFO, b"") == [b""]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
async def test_what_ends_the_process_passes_through(kind: type[BaseException]) -> None:
    async def leave(request: Any, context: Any) -> Any:
        raise kind

    async def leave_stream(request: Any, context: Any) -> AsyncIterator[Any]:
        yield await leave(request, context)

    for method in (leave, leave_stream):
        with pytest.raises(kind):
            await handled(method)(None, None)


async def _opened(channel: grpc.aio.Channel, method: str, *messages: bytes) -> Any:
    """A call that has sent `messages`, and of which the first response has come."""
    call = _call(channel, method)
    for message in messages:
        await call.write(message)
    assert await call.read() is not grpc.aio.EOF
    return call


async def test_stopping_waits_for_answers_and_for_nothing_else(channel, node, services) -> None:
    answer = await _opened(channel, GENERATE, b"")
    others = [_call(channel, method) for method in (VERIFY, WATCH, REFLECTION)]
    for call in others[1:]:
        await call.write(b"")
    stopping = asyncio.create_task(node.stop(grace_s=60))
    for call in others:
        with pytest.raises(grpc.RpcError) as caught:
            await asyncio.wait_for(_rest(call), timeout=5)
        error = from_rpc_error(caught.value)
        assert (type(error), error.reason) == (UnavailableError, "SHUTTING_DOWN")
    assert not stopping.done()
    services.go_on.set()
    assert await answer.read() is not grpc.aio.EOF
    assert await answer.read() is grpc.aio.EOF
    await asyncio.wait_for(stopping, timeout=5)


async def test_no_answer_begins_once_the_node_stops(channel, node) -> None:
    """One that would begin while answers have their grace."""
    answer = await _opened(channel, GENERATE, b"")
    opening = await _opened(channel, VERIFY)
    stopping = asyncio.create_task(node.stop(grace_s=60))
    with pytest.raises(grpc.RpcError) as caught:
        await asyncio.wait_for(opening.read(), timeout=5)
    assert from_rpc_error(caught.value).reason == "SHUTTING_DOWN"
    answer.cancel()
    await asyncio.wait_for(stopping, timeout=5)


async def test_without_answers_the_grace_is_not_waited_for(channel, node) -> None:
    calls = [await _opened(channel, VERIFY) for _ in range(20)]
    await asyncio.wait_for(node.stop(grace_s=60), timeout=5)
    for call in calls:
        assert await call.code() is grpc.StatusCode.UNAVAILABLE


async def test_nobody_waits_for_a_reader_who_does_not_read(channel, node, services) -> None:
    """The status of such a call cannot be sent either."""
    services.is_flooding = True
    call = await _opened(channel, VERIFY, b"")
    await asyncio.sleep(0.2)
    await asyncio.wait_for(node.stop(grace_s=60), timeout=5)
    with pytest.raises(grpc.RpcError):
        await _rest(call)


async def test_callers_who_leave_while_the_node_stops(channel, node, caplog) -> None:
    calls = [await _opened(channel, VERIFY) for _ in range(20)]
    stopping = asyncio.create_task(node.stop(grace_s=60))
    for call in calls:
        await asyncio.sleep(0.02)  # some before the node ends their calls, some after
        call.cancel()
    await asyncio.wait_for(stopping, timeout=5)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_the_grace_ends_for_answers_too(channel, node) -> None:
    answer = await _opened(channel, GENERATE, b"")
    await asyncio.wait_for(node.stop(grace_s=0.3), timeout=5)
    with pytest.raises(grpc.RpcError):
        await answer.read()


async def test_outside_a_call_an_answer_is_nobodys_business() -> None:
    with answering():
        pass
