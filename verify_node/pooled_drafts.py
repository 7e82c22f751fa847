"""The drafting of one answer by members of a pool, one after the other.

The answer needs none of it: whatever a member does, or fails to do, is drafts that do not come.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from anydraft.errors import AnydraftError, InvalidRequestError, UnavailableError
from anydraft.rpc.status import from_rpc_error
from anydraft.rpc.validation import validate_draft
from anydraft.v1.drafting_pb2 import Commit, DraftRequest, DraftResponse, OpenDrafting
from anydraft.v1.prompt_pb2 import Prompt
from anydraft.v1.verification_pb2 import Draft
from anydraft.version import PROTOCOL_REVISION
from verify_node.drafter_pool import DrafterPool
from verify_node.open_answer import OpenAnswer
from verify_node.pool_member import PoolMember
from verify_node.session_draft import MAX_CREDIT_BYTES, MAX_CREDIT_PIECES
from verify_node.session_text import TextBlock

_log = logging.getLogger(__name__)

_OPEN_S = 5.0
"""How long a member may take to accept a session."""
_SOUND_S = 1.0
"""A session that lasts longer with a member was worth having with it, however it ends."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 5.0
_MOST_PIECES = 2**32
"""Ids of a member. No answer has as many, and ids of all members together stay far from 2^64."""


@asynccontextmanager
async def drafted(
    answer: OpenAnswer, prompt: Prompt, pool: DrafterPool | None
) -> AsyncIterator[Callable[[TextBlock], None]]:
    """Has `answer` drafted while it goes on; yields what must be told of each of its blocks. With
    no pool nothing happens, and nothing is left behind wherever this is cancelled."""
    if pool is None:
        yield lambda block: None
        return
    drafts = PooledDrafts(answer, prompt, pool)
    drafting = asyncio.create_task(drafts.run())
    try:
        yield drafts.committed
    finally:
        drafting.cancel()
        await asyncio.gather(drafting, return_exceptions=True)


class PooledDrafts:
    """`run` until cancelled. `committed` is told of every block of the answer."""

    def __init__(self, answer: OpenAnswer, prompt: Prompt, pool: DrafterPool) -> None:
        self._answer = answer
        self._prompt = prompt
        self._pool = pool
        self._text = [answer.begun_text] if answer.begun_text else []
        """What is committed, block by block."""
        self._credit_pieces = MAX_CREDIT_PIECES
        self._turn_ms = 0.0
        self._has_grown = asyncio.Event()
        self._newest_piece = 0
        """Of all members so far: each counts from 1."""

    def committed(self, block: TextBlock) -> None:
        self._text.append(block.text)
        self._credit_pieces, self._turn_ms = block.credit_pieces, block.turn_ms
        self._has_grown.set()

    async def run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        self._expect_drafts(False)
        while True:
            member = await self._pool.take()
            began_at = time.monotonic()
            has_failed = False
            try:
                await self._draft_with(member)
            except (grpc.RpcError, AnydraftError, TimeoutError) as error:
                has_failed = True
                _log.info(
                    "an answer goes on without the drafter %s: %s", member.address, _why(error)
                )
            except asyncio.CancelledError:
                # grpc.aio raises it also where the member ends the stream with that status.
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                has_failed = True
            except Exception:
                has_failed = True
                _log.warning("drafting with %s failed", member.address, exc_info=True)
            finally:
                self._expect_drafts(False)
                is_sound = time.monotonic() - began_at >= _SOUND_S
                member.is_done(has_failed=has_failed and not is_sound)
            # The first move is at once. What goes wrong again and again may be this session's own.
            await asyncio.sleep(0.0 if is_sound else pause_s)
            pause_s = _FIRST_PAUSE_S if is_sound else min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _draft_with(self, member: PoolMember) -> None:
        """Until the member ends it. Raises what went wrong."""
        call: Any = member.drafting.Draft()
        telling: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(_OPEN_S):
                told = len(self._text)
                await call.write(DraftRequest(open=self._opening()))
                response = await call.read()
            if not isinstance(response, DraftResponse) or not response.HasField("opened"):
                raise UnavailableError("it did not open the session", reason="TRUNCATED_STREAM")
            member.hear_load(response.opened.num_sessions, response.opened.max_sessions)
            self._expect_drafts(True)
            telling = asyncio.create_task(self._tell(call, told))
            before = self._newest_piece
            while isinstance(response := await call.read(), DraftResponse):
                await self._take(response.draft, before)
        finally:
            call.cancel()
            if telling is not None:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)

    def _opening(self) -> OpenDrafting:
        return OpenDrafting(
            protocol_revision=PROTOCOL_REVISION,
            prompt=self._prompt,
            credit_pieces=self._credit_pieces,
            credit_bytes=MAX_CREDIT_BYTES,
            committed_text="".join(self._text),
            drafts_in_turn=self._pool.in_turn,
        )

    async def _tell(self, call: Any, told: int) -> None:
        """What is committed beyond the first `told` blocks, together where the member is slow."""
        base_bytes = len("".join(self._text[:told]).encode())
        while True:
            await self._has_grown.wait()
            self._has_grown.clear()
            text = "".join(self._text[told:])
            told = len(self._text)
            commit = Commit(
                base_bytes=base_bytes,
                text=text,
                credit_pieces=self._credit_pieces,
                turn_ms=self._turn_ms,
            )
            base_bytes += len(text.encode())
            await call.write(DraftRequest(commit=commit))

    async def _take(self, draft: Draft, before: int) -> None:
        """The session's text rule decides what it is worth; here only its ids are moved, behind
        the first `before`."""
        validate_draft(draft)
        newest = draft.first_piece + len(draft.pieces) - 1
        if newest > _MOST_PIECES or any(piece.parent > newest for piece in draft.pieces):
            raise InvalidRequestError(
                "the draft numbers its pieces as no session does", reason="FIELD_OUT_OF_RANGE"
            )
        draft.first_piece += before
        for piece in draft.pieces:
            piece.parent += before if piece.parent else 0
        if draft.pieces:
            self._newest_piece = max(self._newest_piece, newest + before)
        await self._answer.draft(draft)

    def _expect_drafts(self, expected: bool) -> None:
        self._answer.session.target.expect_drafts(expected)


def _why(error: Exception) -> str:
    if isinstance(error, grpc.RpcError):
        return str(from_rpc_error(error, address="the drafter"))
    return str(error) or "it does not answer"
