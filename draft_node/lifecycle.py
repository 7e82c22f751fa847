"""A draft node's life: listen, say so, serve until told to stop."""

from __future__ import annotations

import asyncio
import logging

import grpc.aio

from anydraft.rpc.channel import dial
from anydraft.rpc.server import NodeServer
from anydraft.v1 import generation_pb2, server_pb2
from anydraft.v1.generation_pb2_grpc import add_GenerationServiceServicer_to_server
from anydraft.v1.server_pb2 import NODE_ROLE_DRAFT, ServerInfo
from anydraft.v1.server_pb2_grpc import add_ServerServiceServicer_to_server
from anydraft.version import PROTOCOL_REVISION, VERSION
from draft_node.assisted_answer import Drafting
from draft_node.drafting_loop import DEFAULT_MAX_DRAFT
from draft_node.drafting_thread import DraftingThread
from draft_node.load import LoadedDrafter
from draft_node.services import GenerationService, ServerService

_log = logging.getLogger(__name__)

SERVICES = (
    generation_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name,
    server_pb2.DESCRIPTOR.services_by_name["ServerService"].full_name,
)


class DraftNode:
    """Build it inside the event loop that will run it. The verify node may come later."""

    def __init__(
        self,
        loaded: LoadedDrafter,
        verify: str,
        listen: str,
        *,
        max_draft: int = DEFAULT_MAX_DRAFT,
    ) -> None:
        """Raises InvalidRequestError when `verify` or `listen` is not HOST:PORT."""
        self._loaded = loaded
        self._verify = verify
        self._address = listen
        self._server = NodeServer(listen)
        self._channel: grpc.aio.Channel = dial(verify)
        self._worker = DraftingThread()
        drafting = Drafting(loaded.drafter, self._worker, max_draft)
        generation = GenerationService(self._channel, verify, drafting)
        add_GenerationServiceServicer_to_server(generation, self._server.server)
        about = ServerService(self._channel, self._info())
        add_ServerServiceServicer_to_server(about, self._server.server)

    async def start(self) -> str:
        """Serves; returns the bound "host:port". FailedPreconditionError when it is taken."""
        self._address = await self._server.start()
        await self._server.set_ready(SERVICES)
        return self._address

    async def run_until_signal(self, grace_s: float) -> None:
        """Says that it is ready, and serves until SIGTERM or SIGINT; open answers then get
        `grace_s` seconds to finish."""
        serving = asyncio.create_task(self._server.run_until_signal(grace_s))
        # It has its signal handlers then: who reads "ready" may stop the node at once.
        await asyncio.sleep(0)
        _log.info(
            "anydraft-draft ready on %s (assistant %s, engine %s, verify %s)",
            self._address,
            self._loaded.assistant,
            self._loaded.engine,
            self._verify,
        )
        await serving

    async def stop(self, grace_s: float = 0.0) -> None:
        """Stops and frees everything. Idempotent."""
        await self._server.stop(grace_s)
        await self._channel.close()
        self._worker.close()

    def _info(self) -> ServerInfo:
        return ServerInfo(
            role=NODE_ROLE_DRAFT,
            version=VERSION,
            protocol_revision=PROTOCOL_REVISION,
            engine=self._loaded.engine,
            verify_address=self._verify,
            assistant=self._loaded.assistant,
        )
