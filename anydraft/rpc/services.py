"""A server that remembers which services were registered on it.

Reflection and health need the names, and gRPC does not tell them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import grpc
import grpc.aio


class RecordingServer(grpc.aio.Server):
    """Passes everything on to `inner`; `service_names` are the full names, in order."""

    def __init__(self, inner: grpc.aio.Server) -> None:
        self._inner = inner
        self.service_names: list[str] = []

    def add_generic_rpc_handlers(
        self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]
    ) -> None:
        handlers = tuple(generic_rpc_handlers)
        for handler in handlers:
            if isinstance(handler, grpc.ServiceRpcHandler):
                self._record(str(handler.service_name()))
        self._inner.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        self._record(service_name)
        self._inner.add_registered_method_handlers(service_name, method_handlers)

    def _record(self, name: str) -> None:
        if name not in self.service_names:
            self.service_names.append(name)

    def add_insecure_port(self, address: str) -> int:
        return self._inner.add_insecure_port(address)

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        return self._inner.add_secure_port(address, server_credentials)

    async def start(self) -> None:
        await self._inner.start()

    async def stop(self, grace: float | None) -> None:
        await self._inner.stop(grace)

    async def wait_for_termination(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        return await self._inner.wait_for_termination(timeout)
