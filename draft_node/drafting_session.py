"""One session that somebody else's answer drives: committed text comes in, drafts go out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from anydraft.errors import AnydraftError, InvalidRequestError
from anydraft.rpc.validation import validate_commit
from anydraft.v1.drafting_pb2 import Commit, DraftRequest, OpenDrafting
from anydraft.v1.verification_pb2 import Draft
from draft_node.assisted_answer import Drafting
from draft_node.drafting_loop import DraftingLoop

_MOST_UNHEARD = 1024
"""Commits that wait for a pass. More are left in gRPC's flow control, at the caller's expense."""
_UNHEARD_POLL_S = 0.02


class DraftingSession:
    """`drafts` once, then `close`, whatever happened. Belongs to one event loop."""

    def __init__(self, drafting: Drafting, opening: OpenDrafting) -> None:
        """Raises what opening the drafter raises: ResourceExhaustedError when the node is full."""
        stream = drafting.drafter.open(
            opening.prompt, in_turn=opening.drafts_in_turn, tenant=opening.tenant
        )
        self._loop = DraftingLoop(
            stream,
            drafting.worker,
            self._send,
            max_draft=drafting.max_draft,
            in_turn=opening.drafts_in_turn,
        )
        begun = opening.committed_text
        self._loop.opened(opening.credit_pieces, opening.credit_bytes, begun)
        self._committed_bytes = len(begun.encode())
        self._drafts: asyncio.Queue[Draft | None] = asyncio.Queue()
        self._may_send = asyncio.Semaphore(1)
        self._error: AnydraftError | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def drafts(self, requests: AsyncIterator[DraftRequest]) -> AsyncGenerator[Draft, None]:
        """As they are made, while `requests` says what was committed. Ends with `requests`, or when
        drafting failed. Raises InvalidRequestError for requests that make no sense."""
        self._tasks = [
            asyncio.create_task(self._draft()),
            asyncio.create_task(self._read(requests)),
        ]
        while (draft := await self._drafts.get()) is not None:
            yield draft
            # The next one is made of what is known by then: behind a slow reader, later.
            self._may_send.release()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Frees everything soon, behind the pass at hand. Waits for nothing, and is idempotent."""
        self._loop.close()
        for task in self._tasks:
            task.cancel()

    async def _draft(self) -> None:
        try:
            await self._loop.run()
        finally:
            self._drafts.put_nowait(None)

    async def _send(self, draft: Draft) -> bool:
        await self._may_send.acquire()
        self._drafts.put_nowait(draft)
        return True

    async def _read(self, requests: AsyncIterator[DraftRequest]) -> None:
        try:
            async for request in requests:
                if request.WhichOneof("message") != "commit":
                    raise InvalidRequestError(
                        "after `open`, a Draft stream takes `commit` only.",
                        reason="COMMIT_EXPECTED",
                    )
                self._commit(request.commit)
                while self._loop.num_unheard >= _MOST_UNHEARD:  # noqa: ASYNC110 - a thread hears
                    await asyncio.sleep(_UNHEARD_POLL_S)
        except AnydraftError as error:
            self._error = error
        finally:
            self._drafts.put_nowait(None)

    def _commit(self, commit: Commit) -> None:
        validate_commit(commit, self._committed_bytes)
        self._committed_bytes += len(commit.text.encode())
        self._loop.commit(commit)
