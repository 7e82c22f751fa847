"""A verify node's life: listen, say so, serve until told to stop."""

from __future__ import annotations

import logging

from anydraft.rpc.server import NodeServer
from anydraft.v1 import generation_pb2, server_pb2, verification_pb2
from anydraft.v1.generation_pb2_grpc import add_GenerationServiceServicer_to_server
from anydraft.v1.server_pb2_grpc import add_ServerServiceServicer_to_server
from anydraft.v1.verification_pb2_grpc import add_VerificationServiceServicer_to_server
from verify_node.served import ServedModel
from verify_node.service import GenerationService, ServerService, VerificationService

_log = logging.getLogger(__name__)

SERVICES = (
    verification_pb2.DESCRIPTOR.services_by_name["VerificationService"].full_name,
    generation_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name,
    server_pb2.DESCRIPTOR.services_by_name["ServerService"].full_name,
)


async def serve(model: ServedModel, listen: str, grace_s: float) -> int:
    """Runs until SIGTERM or SIGINT; open answers get `grace_s` seconds to finish."""
    node = NodeServer(listen)
    add_VerificationServiceServicer_to_server(VerificationService(model), node.server)
    add_GenerationServiceServicer_to_server(GenerationService(model), node.server)
    add_ServerServiceServicer_to_server(ServerService(model), node.server)
    try:
        address = await node.start()
        await node.set_ready(SERVICES)
        _log.info(
            "anydraft-verify ready on %s (model %s, %s)",
            address,
            model.name,
            model.target.facts.description,
        )
        await node.run_until_signal(grace_s)
    finally:
        model.target.close()
    return 0
