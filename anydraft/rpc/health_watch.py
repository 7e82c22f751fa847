"""One health watch on another node, for nodes that depend on it. Needs gRPC's health package."""

from __future__ import annotations

import grpc
import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckResponse


async def next_status(call: grpc.aio.UnaryStreamCall[object, object]) -> int | None:
    """The next `HealthCheckResponse.ServingStatus` of a `Watch`. None where nobody tells: no health
    service, or the end of the stream. Raises grpc.RpcError."""
    try:
        response = await call.read()
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return None
        raise
    return response.status if isinstance(response, HealthCheckResponse) else None
