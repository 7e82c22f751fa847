"""A verify node's life: listen, say so, serve until told to stop."""

from __future__ import annotations

import asyncio
import logging

from anydraft.rpc.server import NodeServer
from anydraft.v1 import generation_pb2, server_pb2, verification_pb2
from anydraft.v1.generation_pb2_grpc import add_GenerationServiceServicer_to_server
from anydraft.v1.server_pb2_grpc import add_ServerServiceServicer_to_server
from anydraft.v1.verification_pb2_grpc import add_VerificationServiceServicer_to_server
from verify_node.served_model import ServedModel
from verify_node.services import GenerationService, ServerService, VerificationService

_log = logging.getLogger(__name__)

SERVICES = (
    verification_pb2.DESCRIPTOR.services_by_name["VerificationService"].full_name,
    generation_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name,
    server_pb2.DESCRIPTOR.services_by_name["ServerService"].full_name,
)


class VerifyNode:
    """Build it inside the event loop that will run it. Owns the model from then on."""

    def __init__(self, model: ServedModel, listen: str) -> None:
        """Raises InvalidRequestError when `listen` is not HOST:PORT."""
        self._model = model
        self._node = NodeServer(listen)
        self._address = listen
        server = self._node.server
        add_VerificationServiceServicer_to_server(VerificationService(model), server)
        add_GenerationServiceServicer_to_server(GenerationService(model), server)
        add_ServerServiceServicer_to_server(ServerService(model), server)

    async def start(self) -> str:
        """Serves; returns the bound "host:port". FailedPreconditionError when it is taken."""
        self._address = await self._node.start()
        await self._node.set_ready(SERVICES)
        return self._address

    async def run_until_signal(self, grace_s: float) -> None:
        """Says that it is ready, and serves until SIGTERM or SIGINT; open answers then get
        `grace_s` seconds to finish."""
        serving = asyncio.create_task(self._node.run_until_signal(grace_s))
        # It has its signal handlers then: who reads "ready" may stop the node at once.
        await asyncio.sleep(0)
        _log.info(
            "anydraft-verify ready on %s (model %s, %s)",
            self._address,
            self._model.name,
            self._model.target.facts.description,
        )
        await serving

    async def stop(self, grace_s: float = 0.0) -> None:
        """Stops and frees everything. Idempotent."""
        await self._node.stop(grace_s)
        await asyncio.to_thread(self._model.target.close)
