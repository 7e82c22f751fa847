"""Asking `grpc.health.v1`, for clients that do not install its package.

Its two messages have one field each, numbered 1: a string and an enum. The wrapper types of
protobuf look the same on the wire, so they stand in for them.
"""

from __future__ import annotations

from enum import IntEnum

import grpc
import grpc.aio
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from anydraft.rpc.status import unreadable_response

_CHECK = "/grpc.health.v1.Health/Check"


class Health(IntEnum):
    """`HealthCheckResponse.ServingStatus`."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


async def check(channel: grpc.aio.Channel, service: str, *, timeout_s: float | None) -> Health:
    """How `service` (full name; "" for the process) does.

    A service that the server never heard of is SERVICE_UNKNOWN. Raises grpc.RpcError, and
    InternalError for an answer that is none.
    """
    call = channel.unary_unary(_CHECK, StringValue.SerializeToString, Int32Value.FromString)
    try:
        response = await call(StringValue(value=service), timeout=timeout_s)
    except grpc.RpcError as exc:
        return _unless_not_found(exc)
    if response is None:
        raise unreadable_response()
    return _health(response)


def check_sync(channel: grpc.Channel, service: str, *, timeout_s: float | None) -> Health:
    """The same for threads."""
    call = channel.unary_unary(_CHECK, StringValue.SerializeToString, Int32Value.FromString)
    try:
        response = call(StringValue(value=service), timeout=timeout_s)
    except grpc.RpcError as exc:
        return _unless_not_found(exc)
    return _health(response)


def _health(response: Int32Value) -> Health:
    """A status that this client does not know counts as UNKNOWN."""
    try:
        return Health(response.value)
    except ValueError:
        return Health.UNKNOWN


def _unless_not_found(exc: grpc.RpcError) -> Health:
    if exc.code() is grpc.StatusCode.NOT_FOUND:
        return Health.SERVICE_UNKNOWN
    raise exc
