"""Servers that answer, and not as ours do."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from anydraft.client import AsyncClient, Client
from anydraft.errors import AnydraftError, DeadlineExceededError, InternalError
from anydraft.v1.server_pb2 import GetServerInfoResponse, ServerInfo
from anydraft.version import PROTOCOL_REVISION

NO_MESSAGE = b"\xff\xff"
INFO = GetServerInfoResponse(info=ServerInfo(protocol_revision=PROTOCOL_REVISION))


class Foreign(grpc.GenericRpcHandler):
    """Answers each call with the bytes that `responses` has for its method, or with no message."""

    def __init__(self) -> None:
        self.responses: dict[str, bytes] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        name = handler_call_details.method.rpartition("/")[2]

        def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            next(requests)
            yield self.responses.get(name, NO_MESSAGE)

        return grpc.stream_stream_rpc_method_handler(answer, bytes, bytes)


@pytest.fixture
def foreign() -> Iterator[tuple[Foreign, str]]:
    handler, server = Foreign(), grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield handler, f"127.0.0.1:{port}"
    server.stop(0).wait()


def _ask(address: str, is_async: bool, question: Callable[[Any], Any]) -> AnydraftError:
    async def ask_async() -> None:
        async with AsyncClient(address) as client:
            await question(client)

    def ask() -> None:
        with Client(address) as client:
            question(client)

    with pytest.raises(AnydraftError) as caught:
        asyncio.run(ask_async()) if is_async else ask()
    return caught.value


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "question",
    [
        lambda client: client.server_info(),
        lambda client: client.generate("Hi").result(),
        lambda client: client.wait_until_ready(timeout=5),
    ],
)
def test_responses_that_cannot_be_read(foreign, is_async: bool, question) -> None:
    handler, address = foreign
    error = _ask(address, is_async, question)
    assert (type(error), error.reason) == (InternalError, "RESPONSE_UNREADABLE")
    handler.responses["GetServerInfo"] = INFO.SerializeToString()
    assert _ask(address, is_async, lambda client: client.generate("Hi").result()).reason == (
        "RESPONSE_UNREADABLE"
    )


@pytest.mark.parametrize("is_async", [False, True])
def test_a_health_that_is_unknown_is_waited_for(foreign, is_async: bool) -> None:
    handler, address = foreign
    handler.responses["Check"] = b"\x08\x63"  # status 99
    error = _ask(address, is_async, lambda client: client.wait_until_ready(timeout=0.3))
    assert (type(error), error.reason) == (DeadlineExceededError, "NOT_READY")
