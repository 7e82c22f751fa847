"""Asking `grpc.health.v1`, for clients that do not install its package.

Its two messages have one field each, numbered 1: a string and an enum. The wrapper types of
protobuf look the same on the wire, so they stand in for them.
"""

from __future__ import annotations

from enum import IntEnum

import grpc
import grpc.aio
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

_CHECK = "/grpc.health.v1.Health/Check"


class Health(IntEnum):
    """`HealthCheckResponse.ServingStatus`."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


async def check(channel: grpc.aio.Channel, service: str, *, timeout_s: float | None) -> Health:
    """How `service` (full name; "" for the process) does. Raises grpc.RpcError.

    A service that the server never heard of is SERVICE_UNKNOWN.
    """
    call = channel.unary_unary(_CHECK, StringValue.SerializeToString, Int32Value.FromString)
    try:
        response = await call(StringValue(value=service), timeout=timeout_s)
    except grpc.RpcError as exc:
        return _unless_not_found(exc)
    return Health(response.value)


def check_sync(channel: grpc.Channel, service: str, *, timeout_s: float | None) -> Health:
    """The same for threads."""
    call = channel.unary_unary(_CHECK, StringValue.SerializeToString, Int32Value.FromString)
    try:
        response = call(StringValue(value=service), timeout=timeout_s)
    except grpc.RpcError as exc:
        return _unless_not_found(exc)
    return Health(response.value)


def _unless_not_found(exc: grpc.RpcError) -> Health:
    if exc.code() is grpc.StatusCode.NOT_FOUND:
        return Health.SERVICE_UNKNOWN
    raise exc
