import asyncio
import signal
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc._cython import cygrpc

from anydraft.errors import InvalidRequestError
from anydraft.rpc.address import parse_target
from anydraft.rpc.channel import KeepAlive, channel_options, dial, dial_sync, server_options
from anydraft.rpc.server import NodeServer
from anydraft.rpc.status import from_rpc_error
from anydraft.v1 import generation_pb2, generation_pb2_grpc

QUICK = KeepAlive(interval_s=1, timeout_s=1)


def test_grpc_knows_every_option() -> None:
    """An option that gRPC does not know is ignored without a word."""
    library = Path(cygrpc.__file__).read_bytes()
    options = dict(server_options()) | dict(channel_options(parse_target("a:1")))
    unknown = [name for name in options if name.encode() + b"\0" not in library]
    assert unknown == []
    assert b"grpc.no_such_option\0" not in library


def test_servers_accept_the_pings_that_clients_send() -> None:
    client, server = dict(channel_options(parse_target("a:1"))), dict(server_options())
    accepted_ms = server["grpc.http2.min_ping_interval_without_data_ms"]
    assert client["grpc.keepalive_time_ms"] >= 2 * accepted_ms
    assert server["grpc.keepalive_time_ms"] > 0


def test_a_silent_peer_is_noticed_within_40_s() -> None:
    for options in (dict(channel_options(parse_target("a:1"))), dict(server_options())):
        for timeout in ("grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"):
            assert options["grpc.keepalive_time_ms"] + options[timeout] == 40_000


class Silent(generation_pb2_grpc.GenerationServiceServicer):
    """Opens each answer at once, and goes on with it when told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        yield generation_pb2.GenerateResponse()
        await self.go_on.wait()
        yield generation_pb2.GenerateResponse()


async def test_a_stream_survives_many_silent_pings() -> None:
    """gRPC's own servers end the connection at the third ping without data in 300 s."""
    servicer, node = Silent(), NodeServer("127.0.0.1:0", keep_alive=QUICK)
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, node.server)
    async with dial(await node.start(), QUICK) as channel:
        stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
        call = stub.Generate(generation_pb2.GenerateRequest())
        await call.read()
        await asyncio.sleep(6 * QUICK.interval_s)
        servicer.go_on.set()
        assert await call.read() is not grpc.aio.EOF
        assert await call.read() is grpc.aio.EOF
    await node.stop(0)


NODE = """
    import asyncio, sys
    from anydraft.rpc.channel import KeepAlive
    from anydraft.rpc.server import NodeServer
    from anydraft.v1 import generation_pb2_grpc
    from tests.rpc.test_channel import QUICK, Silent

    async def main():
        node = NodeServer("127.0.0.1:0", keep_alive=QUICK)
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(Silent(), node.server)
        print(await node.start(), flush=True)
        await node.run_until_signal(0)

    asyncio.run(main())
"""


async def test_a_frozen_node_is_noticed() -> None:
    """Long before gRPC's own minute, which a ping that is not answered gets otherwise."""
    node = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(NODE), stdout=asyncio.subprocess.PIPE
    )
    assert node.stdout is not None
    try:
        async with dial((await node.stdout.readline()).decode().strip(), QUICK) as channel:
            stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
            call = stub.Generate(generation_pb2.GenerateRequest())
            await call.read()
            node.send_signal(signal.SIGSTOP)
            with pytest.raises(grpc.RpcError) as caught:
                await asyncio.wait_for(call.read(), timeout=20)
    finally:
        node.kill()
        await node.wait()
    assert from_rpc_error(caught.value).reason == "CONNECTION_LOST"


def test_sizes_are_finite_and_agree() -> None:
    client, server = dict(channel_options(parse_target("a:1"))), dict(server_options())
    for name in ("grpc.max_send_message_length", "grpc.max_receive_message_length"):
        assert client[name] == server[name] == 4 * 1024 * 1024


def test_a_bad_address_is_refused_when_dialling() -> None:
    for refuse in (dial, dial_sync):
        with pytest.raises(InvalidRequestError, match="no port"):
            refuse("nowhere")


async def test_loopback_ignores_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is made to the address itself, whatever http_proxy says."""
    connected = asyncio.Event()

    async def accept(reader: Any, writer: Any) -> None:
        connected.set()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    channel = dial(f"127.0.0.1:{port}")
    channel.get_state(try_to_connect=True)
    await asyncio.wait_for(connected.wait(), timeout=5)
    await channel.close()
    server.close()
    await server.wait_closed()


def test_dialling_connects_on_first_use_only() -> None:
    with dial_sync("127.0.0.1:1") as channel:
        assert isinstance(channel, grpc.Channel)
