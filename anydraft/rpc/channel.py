"""Channels and the options that both ends agree on."""

from __future__ import annotations

import grpc
import grpc.aio

from anydraft.rpc.address import Address, parse_target

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Ample for text, and finite: one caller cannot make a node hold gigabytes."""

# A server refuses a peer that pings more often than once in 300 s unless told otherwise, and ends
# the connection with "too many pings", so what clients send and servers accept is set together.
_PING_INTERVAL_MS = 30_000
_PING_TIMEOUT_MS = 10_000
_ACCEPTED_PING_INTERVAL_MS = 10_000

Options = list[tuple[str, int]]

_SHARED: Options = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", _PING_INTERVAL_MS),
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
]


def server_options() -> Options:
    """Options for `grpc.aio.server` and `grpc.server`."""
    return [
        *_SHARED,
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _ACCEPTED_PING_INTERVAL_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        # Two nodes on one port would each get half of the connections; better an error at start.
        ("grpc.so_reuseport", 0),
    ]


def channel_options(target: Address) -> Options:
    """Options for a channel to `target`."""
    return [
        *_SHARED,
        # gRPC waits up to two minutes between attempts; a node that restarts is back sooner.
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        # gRPC obeys http_proxy even for this very machine.
        ("grpc.enable_http_proxy", 0 if target.is_loopback else 1),
    ]


def dial(address: str) -> grpc.aio.Channel:
    """A channel for asyncio; call it inside the loop that will use it. Connects on first use.

    Raises InvalidRequestError when `address` is not HOST:PORT.
    """
    target = parse_target(address)
    return grpc.aio.insecure_channel(str(target), options=channel_options(target))


def dial_sync(address: str) -> grpc.Channel:
    """The same for threads."""
    target = parse_target(address)
    return grpc.insecure_channel(str(target), options=channel_options(target))
