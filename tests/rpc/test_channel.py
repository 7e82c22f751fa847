import asyncio
from typing import Any

import grpc
import pytest

from anydraft.errors import InvalidRequestError
from anydraft.rpc.address import parse_target
from anydraft.rpc.channel import channel_options, dial, dial_sync, server_options


def test_servers_accept_the_pings_that_clients_send() -> None:
    client, server = dict(channel_options(parse_target("a:1"))), dict(server_options())
    accepted_ms = server["grpc.http2.min_recv_ping_interval_without_data_ms"]
    assert client["grpc.keepalive_time_ms"] > accepted_ms
    assert server["grpc.keepalive_time_ms"] > 0


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
