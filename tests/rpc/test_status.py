"""Errors over a real connection, and the statuses that gRPC makes itself."""

import logging
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from anydraft.errors import (
    AnydraftError,
    ContextFullError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidFieldError,
    InvalidRequestError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
    UnsupportedModelError,
)
from anydraft.rpc.channel import MAX_MESSAGE_BYTES, dial
from anydraft.rpc.handler import stream_handler, unary_handler
from anydraft.rpc.server import NodeServer
from anydraft.rpc.status import from_rpc_error
from anydraft.v1 import generation_pb2, generation_pb2_grpc, server_pb2, server_pb2_grpc

Response = generation_pb2.GenerateResponse
Context = grpc.aio.ServicerContext[Any, Any]


class Failing(generation_pb2_grpc.GenerationServiceServicer, server_pb2_grpc.ServerServiceServicer):
    """Raises `error` after one response."""

    def __init__(self) -> None:
        self.error: Exception = RuntimeError()

    @stream_handler
    async def Generate(self, request: Any, context: Context) -> AsyncIterator[Response]:  # noqa: N802
        yield Response()
        raise self.error

    @unary_handler
    async def GetServerInfo(self, request: Any, context: Context) -> Any:  # noqa: N802
        raise self.error


@pytest.fixture
async def failing() -> AsyncIterator[tuple[Failing, grpc.aio.Channel]]:
    servicer, node = Failing(), NodeServer("127.0.0.1:0")
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, node.server)
    server_pb2_grpc.add_ServerServiceServicer_to_server(servicer, node.server)
    async with dial(await node.start()) as channel:
        yield servicer, channel
    await node.stop(0)


async def _call_streaming(channel: grpc.aio.Channel) -> list[Any]:
    stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
    return [response async for response in stub.Generate(generation_pb2.GenerateRequest())]


async def _call_unary(channel: grpc.aio.Channel) -> Any:
    stub: Any = server_pb2_grpc.ServerServiceStub(channel)
    return await stub.GetServerInfo(server_pb2.GetServerInfoRequest())


CALLS = pytest.mark.parametrize("call", [_call_streaming, _call_unary])

ERRORS = [
    AnydraftError,
    ContextFullError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
    UnsupportedModelError,
]


@CALLS
@pytest.mark.parametrize("cls", ERRORS)
@pytest.mark.parametrize("retry_after_s", [None, 2.5])
async def test_round_trip(failing, call, cls: type[AnydraftError], retry_after_s) -> None:
    servicer, channel = failing
    servicer.error = cls("wörld: mend it", reason="SOME_REASON", retry_after_s=retry_after_s)
    with pytest.raises(grpc.RpcError) as caught:
        await call(channel)
    error = from_rpc_error(caught.value)
    assert type(error) is cls
    assert str(error) == "wörld: mend it"
    assert (error.reason, error.retry_after_s) == ("SOME_REASON", retry_after_s)


@CALLS
async def test_a_field_travels_as_bad_request(failing, call) -> None:
    servicer, channel = failing
    servicer.error = InvalidFieldError("top_p is 2: lower it", field="top_p", reason="FIELD_BAD")
    with pytest.raises(grpc.RpcError) as caught:
        await call(channel)
    error = from_rpc_error(caught.value)
    assert isinstance(error, InvalidFieldError)
    assert (error.field, error.reason) == ("top_p", "FIELD_BAD")
    details = rpc_status.from_call(caught.value).details
    bad_request = error_details_pb2.BadRequest()
    assert any(detail.Unpack(bad_request) for detail in details)
    assert bad_request.field_violations[0].field == "top_p"


@CALLS
async def test_a_fault_of_ours_is_logged_and_not_sent(failing, call, caplog) -> None:
    servicer, channel = failing
    servicer.error = ValueError("/secret/path")
    with caplog.at_level(logging.ERROR), pytest.raises(grpc.RpcError) as caught:
        await call(channel)
    error = from_rpc_error(caught.value)
    assert type(error) is InternalError
    assert "secret" not in str(caught.value)
    assert "ValueError" in str(error)
    assert "Traceback" in caplog.text
    assert "/secret/path" in caplog.text


@CALLS
async def test_the_status_of_a_node_behind_is_passed_on(failing, call) -> None:
    servicer, channel = failing
    servicer.error = NotFoundError("no session: open one", reason="SESSION_NOT_FOUND")
    with pytest.raises(grpc.RpcError) as behind:
        await call(channel)
    servicer.error = behind.value
    with pytest.raises(grpc.RpcError) as caught:
        await call(channel)
    error = from_rpc_error(caught.value)
    assert (type(error), error.reason) == (NotFoundError, "SESSION_NOT_FOUND")


async def test_a_long_message_does_not_break_the_trailers(failing) -> None:
    servicer, channel = failing
    servicer.error = InvalidFieldError("ö" * 50_000, field="prompt.text", reason="LONG")
    with pytest.raises(grpc.RpcError) as caught:
        await _call_unary(channel)
    error = from_rpc_error(caught.value)
    assert (type(error), error.reason, str(error)) == (InvalidFieldError, "LONG", "ö" * 500)
    trailers = caught.value.trailing_metadata()
    num_bytes = sum(len(value) for _, value in trailers) + len(quote(caught.value.details()))
    assert num_bytes < 8 * 1024


async def test_a_message_beyond_the_limit(failing) -> None:
    _, channel = failing
    stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
    request = generation_pb2.GenerateRequest()
    request.spec.prompt.text = "x" * (MAX_MESSAGE_BYTES + 1)
    with pytest.raises(grpc.RpcError) as caught:
        await stub.Generate(request).read()
    error = from_rpc_error(caught.value)
    assert (type(error), error.reason) == (ResourceExhaustedError, "MESSAGE_TOO_LARGE")


async def test_nobody_there() -> None:
    async with dial("127.0.0.1:1") as channel:
        with pytest.raises(grpc.RpcError) as caught:
            await _call_unary(channel)
    error = from_rpc_error(caught.value, address="127.0.0.1:1")
    assert (type(error), error.reason) == (UnavailableError, "UNREACHABLE")
    assert "cannot connect to 127.0.0.1:1" in str(error)
    assert "start a node" in str(error)


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (
            "errors resolving nohost:5: [field:hostname lookup error:address lookup failed for "
            "nohost:5: Domain name not found]",
            "Domain name not found",
        ),
        ("DNS resolution failed for nohost:5: C-ares status is not ARES_SUCCESS", "C-ares status"),
        ("Address lookup failed for nohost:5 os_error: Name unknown", "Name unknown"),
    ],
)
def test_a_host_name_without_an_address(message: str, cause: str) -> None:
    """What gRPC says with each of its resolvers."""
    error = from_rpc_error(_bare(grpc.StatusCode.UNAVAILABLE, message), address="nohost:5")
    assert (type(error), error.reason) == (UnavailableError, "NAME_UNRESOLVED")
    assert f"nohost:5 cannot be found: its host name does not resolve ({cause}" in str(error)
    assert "spelling" in str(error)


async def test_a_host_name_that_nobody_can_have() -> None:
    """What the installed gRPC says; no network is asked about such a name."""
    async with dial("two..dots:50051") as channel:
        with pytest.raises(grpc.RpcError) as caught:
            await _call_unary(channel)
    assert from_rpc_error(caught.value).reason == "NAME_UNRESOLVED"


def _bare(code: grpc.StatusCode, details: str = "oh") -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, details)


@pytest.mark.parametrize(
    ("code", "cls", "reason"),
    [
        (grpc.StatusCode.OK, UnavailableError, "TRUNCATED_STREAM"),
        (grpc.StatusCode.UNAVAILABLE, UnavailableError, "CONNECTION_LOST"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceededError, "DEADLINE_EXCEEDED"),
        (grpc.StatusCode.UNIMPLEMENTED, FailedPreconditionError, "UNIMPLEMENTED"),
        (grpc.StatusCode.UNAUTHENTICATED, FailedPreconditionError, "UNAUTHENTICATED"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ResourceExhaustedError, "RESOURCE_EXHAUSTED"),
        (grpc.StatusCode.UNKNOWN, InternalError, "UNKNOWN"),
        (grpc.StatusCode.CANCELLED, AnydraftError, "CANCELLED"),
    ],
)
def test_statuses_that_are_not_ours(code: grpc.StatusCode, cls: type, reason: str) -> None:
    error = from_rpc_error(_bare(code), address="10.0.0.1:5")
    assert (type(error), error.reason) == (cls, reason)


def test_every_status_has_an_error() -> None:
    for code in grpc.StatusCode:
        error = from_rpc_error(_bare(code))
        assert error.reason.replace("_", "").isupper()
        # A call cannot be aborted with OK: it would never end.
        assert error.status is not grpc.StatusCode.OK


def test_details_that_are_no_details() -> None:
    broken = grpc.aio.Metadata(("grpc-status-details-bin", b"\xff\xff"))
    exc = grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, grpc.aio.Metadata(), broken, "gone")
    assert type(from_rpc_error(exc)) is NotFoundError
