"""The other face of a draft node: drafts for answers that a verify node makes by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc.aio

from anydraft.errors import (
    UnavailableError,
)
from anydraft.rpc.opening import opening_request, require_our_revision
from anydraft.rpc.validation import validate_drafting
from anydraft.v1.drafting_pb2 import DraftingOpened, DraftRequest, DraftResponse, OpenDrafting
from anydraft.v1.drafting_pb2_grpc import DraftingServiceServicer
from draft_node.assisted_answer import Drafting
from draft_node.drafting_session import DraftingSession
from draft_node.places import Places

Context = grpc.aio.ServicerContext[object, object]


class DraftingService(DraftingServiceServicer):
    """A stream is no answer that a stopping node waits for: its caller goes on without."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self.drafting: Drafting | None = None
        """What new sessions are drafted with; None while it is loading."""

    async def Draft(  # noqa: N802
        self, request_iterator: AsyncIterator[DraftRequest], context: Context
    ) -> AsyncIterator[DraftResponse]:
        if self.drafting is None:
            raise UnavailableError(
                "this draft node is still loading its assistant. Try again shortly.",
                reason="MODEL_LOADING",
                retry_after_s=2.0,
            )
        requests = aiter(request_iterator)
        session = DraftingSession(self.drafting, await _opening(requests))
        try:
            yield DraftResponse(opened=self._opened())
            async with aclosing(session.drafts(requests)) as drafts:
                async for draft in drafts:
                    yield DraftResponse(draft=draft)
        finally:
            session.close()

    def _opened(self) -> DraftingOpened:
        return DraftingOpened(num_sessions=self._places.num_taken, max_sessions=self._places.limit)


async def _opening(requests: AsyncIterator[DraftRequest]) -> OpenDrafting:
    request = await opening_request(requests, "Draft")
    require_our_revision(request.open.protocol_revision)
    validate_drafting(request.open)
    return request.open
