"""A verify node's life: listen, load, say so, serve until told to stop or the target fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from anydraft.rpc.answer_table import SESSION_TTL_S
from anydraft.rpc.loading import load_aside
from anydraft.rpc.server import NodeServer
from anydraft.v1 import generation_pb2, server_pb2, verification_pb2
from anydraft.v1.generation_pb2_grpc import add_GenerationServiceServicer_to_server
from anydraft.v1.server_pb2_grpc import add_ServerServiceServicer_to_server
from anydraft.v1.verification_pb2_grpc import add_VerificationServiceServicer_to_server
from verify_node.drafter_pool import DrafterPool
from verify_node.served_model import ServedModel
from verify_node.services import (
    GenerationService,
    ModelSlot,
    ServerService,
    VerificationService,
)

_log = logging.getLogger(__name__)

SERVICES = (
    verification_pb2.DESCRIPTOR.services_by_name["VerificationService"].full_name,
    generation_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name,
    server_pb2.DESCRIPTOR.services_by_name["ServerService"].full_name,
)
_SWITCH_INTERVAL_S = 0.0005
"""How long a thread may hold the interpreter while another one waits for it. The target's thread
lets go of it many times in a forward, and with Python's 5 ms may wait a step's sixth each time:
for messages of other sessions, which can wait themselves."""
_LAST_WORDS_S = 2.0
"""For the errors of sessions to reach their clients when the target has failed."""


class VerifyNode:
    """Build it inside the event loop that will run it."""

    def __init__(
        self,
        listen: str,
        *,
        pool: DrafterPool | None = None,
        session_ttl_s: float = SESSION_TTL_S,
    ) -> None:
        """Owns `pool`, which drafts for its own answers. `session_ttl_s`: see `AnswerTable`.

        Raises InvalidRequestError when `listen` is not HOST:PORT.
        """
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._slot = ModelSlot()
        self._node = NodeServer(listen)
        self._address = listen
        self._pool = pool
        self._pooling: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None
        """Why the target serves no more, when nobody told it to stop."""
        server = self._node.server
        verification = VerificationService(self._slot)
        self._node.on_draining = verification.drain
        add_VerificationServiceServicer_to_server(verification, server)
        add_GenerationServiceServicer_to_server(
            GenerationService(self._slot, pool, session_ttl_s=session_ttl_s), server
        )
        add_ServerServiceServicer_to_server(ServerService(self._slot), server)

    async def start(self) -> str:
        """Listens, before there is a model: returns the bound "host:port" and is alive, but not
        ready. FailedPreconditionError when the address is taken."""
        self._address = await self._node.start()
        if self._pool is not None:
            self._pooling = asyncio.create_task(self._pool.run())
        return self._address

    async def serve(self, model: ServedModel) -> None:
        """Is ready from now on. Owns the model."""
        self._slot.model = model
        loop = asyncio.get_running_loop()

        def tell(stopped: Future[None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is gone: so is the node
                loop.call_soon_threadsafe(self._target_stopped, stopped.exception())

        model.target.stopped.add_done_callback(tell)
        await self._node.set_ready(SERVICES)

    async def run_until_signal(self, load: Callable[[], ServedModel], grace_s: float) -> None:
        """Loads, says that it is ready, and serves until SIGTERM or SIGINT; open answers then get
        `grace_s` seconds to finish. A signal does not wait for `load`.

        Raises what `load` raises. Also returns when the target fails: see `failure`.
        """
        serving = asyncio.create_task(self._node.run_until_signal(grace_s))
        # It has its signal handlers then: who reads "ready" may stop the node at once.
        await asyncio.sleep(0)
        try:
            _log.info("listening on %s, loading the target", self._address)
            loading = load_aside(load)
            first: set[asyncio.Future[Any]] = {serving, loading}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                await self._serve_and_say(loading.result())
            await serving
        finally:
            # Ends `serving` as well, which cannot be cancelled: it waits inside gRPC.
            await self._node.stop(0.0)
            await serving

    async def _serve_and_say(self, model: ServedModel) -> None:
        await self.serve(model)
        _log.info(
            "anydraft-verify ready on %s (model %s, %s)",
            self._address,
            model.name,
            model.target.facts.description,
        )

    async def stop(self, grace_s: float = 0.0) -> None:
        """Stops and frees everything. Idempotent."""
        await self._node.stop(grace_s)
        if self._pooling is not None:
            self._pooling.cancel()
        if self._pool is not None:
            await self._pool.close()
        if self._slot.model is not None:
            await asyncio.to_thread(self._slot.model.close)

    def _target_stopped(self, failure: BaseException | None) -> None:
        if failure is not None:
            _log.critical("the node stops: %s", failure)
            self.failure = failure
            # Turns health to NOT_SERVING first.
            self._ending = asyncio.create_task(self._node.stop(_LAST_WORDS_S))
