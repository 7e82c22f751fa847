"""A draft node's life: listen, load the assistant, say so, serve until told to stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from anydraft.rpc.answer_table import SESSION_TTL_S
from anydraft.rpc.channel import KEEP_ALIVE, KeepAlive
from anydraft.rpc.loading import load_aside
from anydraft.rpc.server import NodeServer
from anydraft.v1 import drafting_pb2, generation_pb2, server_pb2
from anydraft.v1.drafting_pb2_grpc import add_DraftingServiceServicer_to_server
from anydraft.v1.generation_pb2_grpc import add_GenerationServiceServicer_to_server
from anydraft.v1.server_pb2_grpc import add_ServerServiceServicer_to_server
from draft_node.assisted_answer import Drafting
from draft_node.drafting_loop import DEFAULT_MAX_DRAFT
from draft_node.drafting_service import DraftingService
from draft_node.drafting_thread import DraftingThread
from draft_node.failover import RECONNECT_S
from draft_node.load import LoadedDrafter
from draft_node.places import DEFAULT_MAX_SESSIONS, BoundedDrafter, Places
from draft_node.services import GenerationService, ServerService
from draft_node.verify_nodes import VerifyNodes

_log = logging.getLogger(__name__)

_GENERATION = generation_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name
_DRAFTING = drafting_pb2.DESCRIPTOR.services_by_name["DraftingService"].full_name
_SERVER = server_pb2.DESCRIPTOR.services_by_name["ServerService"].full_name


class DraftNode:
    """Build it inside the event loop that will run it. Drafter and verify node may come later;
    health of `GenerationService` says when both are there, that of `DraftingService` when the
    drafter is."""

    def __init__(
        self,
        verify: str | Sequence[str] | None,
        listen: str,
        *,
        max_draft: int = DEFAULT_MAX_DRAFT,
        max_sessions: int = DEFAULT_MAX_SESSIONS,
        reconnect_s: float = RECONNECT_S,
        session_ttl_s: float = SESSION_TTL_S,
        keep_alive: KeepAlive = KEEP_ALIVE,
    ) -> None:
        """`verify`: one or several, of which another one goes on with an answer when one is lost,
        if it comes within `reconnect_s`. Without `verify` it only drafts, for verify nodes that
        dial it. Beyond `max_sessions` at once those are refused; answers of its own go on without
        drafts. `session_ttl_s`: see `AnswerTable`.

        Raises InvalidRequestError when `verify` or `listen` is not HOST:PORT.
        """
        self._address = listen
        self._max_draft = max_draft
        self._server = NodeServer(listen, keep_alive=keep_alive)
        self._worker = DraftingThread()
        self._places = Places(max_sessions)
        addresses = [verify] if isinstance(verify, str) else list(verify or ())
        self._nodes: VerifyNodes | None = None
        if addresses:
            self._nodes = VerifyNodes(addresses, keep_alive, self._tell_health)
        self._watching: asyncio.Task[None] | None = None
        self._generation = GenerationService(
            self._nodes, reconnect_s=reconnect_s, session_ttl_s=session_ttl_s
        )
        self._drafting = DraftingService(self._places)
        self._about = ServerService(self._nodes, self._places)
        add_GenerationServiceServicer_to_server(self._generation, self._server.server)
        add_DraftingServiceServicer_to_server(self._drafting, self._server.server)
        add_ServerServiceServicer_to_server(self._about, self._server.server)

    async def start(self) -> str:
        """Listens and looks for the verify node; returns the bound "host:port".
        FailedPreconditionError when it is taken."""
        self._address = await self._server.start()
        await self._server.set_ready([_SERVER])
        if self._nodes is not None:
            self._watching = asyncio.create_task(self._nodes.run())
        return self._address

    async def serve(self, loaded: LoadedDrafter) -> None:
        """New answers are drafted by this one from now on."""
        drafter = BoundedDrafter(loaded.drafter, self._places)
        drafting = Drafting(drafter, self._worker, self._max_draft, loaded.in_turn)
        self._generation.drafting = self._drafting.drafting = drafting
        self._about.loaded = loaded
        await self._tell_health()

    async def run_until_signal(
        self,
        load: Callable[[], LoadedDrafter],
        grace_s: float,
        *,
        meanwhile: LoadedDrafter | None = None,
    ) -> None:
        """Loads, says that it is ready, and serves until SIGTERM or SIGINT; open answers then get
        `grace_s` seconds to finish. A signal does not wait for `load`.

        Raises what `load` raises. With `meanwhile`, that one drafts until `load` is done, and for
        good when it fails.
        """
        serving = asyncio.create_task(self._server.run_until_signal(grace_s))
        # It has its signal handlers then: who reads "ready" may stop the node at once.
        await asyncio.sleep(0)
        try:
            if meanwhile is not None:
                await self._serve_and_say(meanwhile)
            _log.info("listening on %s, loading the assistant", self._address)
            loading = load_aside(load)
            first: set[asyncio.Future[Any]] = {serving, loading}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                await self._take(loading, meanwhile)
            await serving
        finally:
            # Ends `serving` as well, which cannot be cancelled: it waits inside gRPC.
            await self._server.stop(0.0)
            await serving

    async def stop(self, grace_s: float = 0.0) -> None:
        """Stops and frees everything. Idempotent."""
        if self._watching is not None:
            self._watching.cancel()
        await self._server.stop(grace_s)
        if self._nodes is not None:
            await self._nodes.close()
        self._worker.close()

    async def _take(
        self, loading: asyncio.Future[LoadedDrafter], meanwhile: LoadedDrafter | None
    ) -> None:
        try:
            loaded = loading.result()
        except Exception as error:
            if meanwhile is None:
                raise
            _log.warning("this node goes on with %s alone: %s", meanwhile.assistant, error)
        else:
            await self._serve_and_say(loaded)

    async def _serve_and_say(self, loaded: LoadedDrafter) -> None:
        await self.serve(loaded)
        _log.info(
            "anydraft-draft ready on %s (assistant %s, engine %s, %s)",
            self._address,
            loaded.assistant,
            loaded.engine,
            "drafts only" if self._nodes is None else f"verify {self._nodes.addresses}",
        )

    async def _tell_health(self) -> None:
        drafts = self._drafting.drafting is not None
        answers = drafts and self._nodes is not None and self._nodes.is_good
        await self._server.set_ready([_DRAFTING], drafts)
        await self._server.set_ready([_GENERATION], answers)
