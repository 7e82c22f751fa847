"""Channels and the options that both ends agree on."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
import grpc.aio

from anydraft.rpc.address import Address, parse_target

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Ample for text, and finite: one caller cannot make a node hold gigabytes."""

Options = list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """How each end of a connection finds out that the other one is gone.

    A peer that is frozen, or behind a network that drops everything, is noticed within
    `interval_s + timeout_s`: calls end as UNAVAILABLE at the client, cancelled at the server. A
    call that is silent for longer lives on as long as its peer answers pings.
    """

    interval_s: float = 30.0
    """Silence on a connection after which a ping is sent; at least 1, as gRPC sends no faster."""
    timeout_s: float = 10.0
    """How long any ping waits for its answer."""

    @property
    def accepted_interval_s(self) -> float:
        """How often a peer may ping. Well below `interval_s`: a server that is pinged more often
        than it accepts ends the connection ("too many pings"; unless told otherwise, it accepts
        one in 300 s).
        """
        return self.interval_s / 3


KEEP_ALIVE = KeepAlive()
"""What nodes and clients use."""


def server_options(keep_alive: KeepAlive = KEEP_ALIVE) -> Options:
    """Options for `grpc.aio.server` and `grpc.server`."""
    accepted_ms = round(keep_alive.accepted_interval_s * 1000)
    return [
        *_shared(keep_alive),
        ("grpc.http2.min_ping_interval_without_data_ms", accepted_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        # Two nodes on one port would each get half of the connections; better an error at start.
        ("grpc.so_reuseport", 0),
    ]


def channel_options(target: Address, keep_alive: KeepAlive = KEEP_ALIVE) -> Options:
    """Options for a channel to `target`."""
    return [
        *_shared(keep_alive),
        # gRPC waits up to two minutes between attempts; a node that restarts is back sooner.
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        # An address that swallows everything is given up after this, by default after 20 s.
        ("grpc.min_reconnect_backoff_ms", 5_000),
        # gRPC obeys http_proxy even for this very machine.
        ("grpc.enable_http_proxy", 0 if target.is_loopback else 1),
    ]


def dial(address: str, keep_alive: KeepAlive = KEEP_ALIVE) -> grpc.aio.Channel:
    """A channel for asyncio; call it inside the loop that will use it. Connects on first use.

    Raises InvalidRequestError when `address` is not HOST:PORT.
    """
    target = parse_target(address)
    return grpc.aio.insecure_channel(str(target), options=channel_options(target, keep_alive))


def dial_sync(address: str, keep_alive: KeepAlive = KEEP_ALIVE) -> grpc.Channel:
    """The same for threads."""
    target = parse_target(address)
    return grpc.insecure_channel(str(target), options=channel_options(target, keep_alive))


def _shared(keep_alive: KeepAlive) -> Options:
    timeout_ms = round(keep_alive.timeout_s * 1000)
    return [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", round(keep_alive.interval_s * 1000)),
        ("grpc.keepalive_timeout_ms", timeout_ms),
        # Every ping has this limit, a minute unless told otherwise, and the one above does not
        # count before it.
        ("grpc.http2.ping_timeout_ms", timeout_ms),
        ("grpc.http2.max_pings_without_data", 0),
    ]
