"""One answer, from the Verify stream that makes it: drafts up, verdicts down, text to the user."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc
import grpc.aio

from anydraft.errors import AnydraftError, UnavailableError
from anydraft.rpc.answer_log import CANCELLED, AnswerLog, error_word, finish_word
from anydraft.rpc.status import from_rpc_error
from anydraft.v1.generation_pb2 import GenerateResponse, TextDelta
from anydraft.v1.prompt_pb2 import GenerationSpec
from anydraft.v1.result_pb2 import Finished
from anydraft.v1.verification_pb2 import Close, Draft, Open, Verdict, VerifyRequest, VerifyResponse
from anydraft.version import PROTOCOL_REVISION
from draft_node.drafters.base import Drafter
from draft_node.drafting_loop import DEFAULT_MAX_DRAFT, DraftingLoop
from draft_node.drafting_thread import DraftingThread
from draft_node.response_buffer import ResponseBuffer
from draft_node.verify_call import VerifyCall

_log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class Drafting:
    """What all sessions of a node share."""

    drafter: Drafter
    worker: DraftingThread
    max_draft: int = DEFAULT_MAX_DRAFT
    in_turn: bool = False
    """See `DraftingLoop`."""


class AssistedAnswer:
    """One session. `responses` once, then `close`, whatever happened."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        address: str,
        drafting: Drafting,
        *,
        timeout_s: float | None,
    ) -> None:
        self._address = address
        self._drafting = drafting
        self._call = VerifyCall(channel, timeout_s)
        self._loop: DraftingLoop | None = None
        self._buffer = ResponseBuffer()
        self._log = AnswerLog()
        self._drafts: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_open = False
        """Whether the verify node may have a session that it must be told to end."""
        self._half_closed = False
        self._closing = False
        self._finished = False

    async def responses(self, spec: GenerationSpec) -> AsyncIterator[GenerateResponse]:
        """Up to `finished`. Raises what the verify node raised, and UnavailableError when it is not
        there or goes away."""
        self._start_drafting(spec)
        self._drafts = asyncio.create_task(self._draft(spec))
        self._reading = asyncio.create_task(self._read())
        while (response := await self._buffer.get()) is not None:
            yield response

    async def close(self) -> None:
        """Ends the session on the verify node as well. Idempotent.

        What the session holds here is given back even when this is cancelled.
        """
        self._closing = True
        self._buffer.discard()
        self._stop_drafting()
        try:
            if self._is_open and not self._call.done:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                        await self._say_goodbye()
        finally:
            self._call.cancel()
            self._end_log(CANCELLED)
            tasks = [task for task in (self._drafts, self._reading) if task is not None]
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _say_goodbye(self) -> None:
        """Without a Close, the verify node would take the drafter for lost, and wait for it."""
        if self._half_closed or self._reading is None:
            return
        if await self._call.write(VerifyRequest(close=Close())):
            await asyncio.wait({self._reading})

    async def _read(self) -> None:
        """Moves what the verify node says into the buffer, at the verify node's pace."""
        error: Exception | None = None
        try:
            while not self._finished and (response := await self._call.read()) is not None:
                await self._take(response)
            if not self._finished:
                error = self._cut_short()
        except grpc.RpcError as failed:
            error = self._explain(failed)
        except Exception as fault:  # the reader must hear of it, whatever it is
            error = fault
        if error is not None and not self._closing:
            self._stop_drafting()
            self._end_log(error_word(error))
        self._buffer.end(error)

    async def _take(self, response: VerifyResponse) -> None:
        self._note(response)
        if response.HasField("finished"):
            self._finished, self._is_open = True, False
            # Nothing is left to draft, however long the reader takes with what is in the buffer.
            self._stop_drafting()
            self._end_log(finish_word(response.finished.reason))
        if (mine := self._translate(response)) is not None:
            await self._buffer.put(mine)

    def _stop_drafting(self) -> None:
        if self._loop is not None:
            self._loop.close()

    def _note(self, response: VerifyResponse) -> None:
        match response.WhichOneof("message"):
            case "opened":
                self._log.session_id = response.opened.session_id
            case "verdict":
                self._log.num_tokens += len(response.verdict.token_ids)
            case "finished":
                self._log.stats = response.finished.stats

    def _end_log(self, how: str) -> None:
        sent = self._loop.sent_pieces if self._loop else 0
        self._log.end(how, f"{sent} pieces sent")

    def _start_drafting(self, spec: GenerationSpec) -> None:
        try:
            self._loop = DraftingLoop(
                self._drafting.drafter.open(spec.prompt, in_turn=self._drafting.in_turn),
                self._drafting.worker,
                self._send,
                max_draft=self._drafting.max_draft,
                in_turn=self._drafting.in_turn,
            )
        except AnydraftError as error:
            _log.warning("no drafts for this answer: %s", error)
        except Exception:  # whatever a drafter dies of, the answer does not need it
            _log.warning("no drafts for this answer: the drafter failed", exc_info=True)

    async def _draft(self, spec: GenerationSpec) -> None:
        opening = Open(
            protocol_revision=PROTOCOL_REVISION,
            spec=spec,
            drafts_in_turn=self._drafting.in_turn,
        )
        self._is_open = await self._call.write(VerifyRequest(open=opening))
        if self._is_open and self._loop is not None:
            await self._loop.run()
        if not self._closing:
            # No drafts will come any more: the verifier must not wait for them.
            self._half_closed = True
            await self._call.done_writing()

    async def _send(self, draft: Draft) -> bool:
        return await self._call.write(VerifyRequest(draft=draft))

    def _translate(self, response: VerifyResponse) -> GenerateResponse | None:
        match response.WhichOneof("message"):
            case "opened":
                if self._loop is not None:
                    opened = response.opened
                    self._loop.opened(opened.credit_pieces, opened.credit_bytes)
                return GenerateResponse(opened=response.opened)
            case "verdict":
                if self._loop is not None:
                    self._loop.commit(response.verdict)
                return _delta(response.verdict)
            case "finished":
                return GenerateResponse(finished=self._with_own_stats(response.finished))
            case "draining":
                _log.info("the verify node %s is going away; this answer goes on", self._address)
        return None

    def _with_own_stats(self, finished: Finished) -> Finished:
        stats = finished.stats
        if self._loop is not None:
            stats.sent_pieces = self._loop.sent_pieces
            stats.draft_ms = self._loop.draft_ms
        stats.sent_bytes = self._call.sent_bytes
        stats.received_bytes = self._call.received_bytes
        return finished

    def _cut_short(self) -> UnavailableError:
        return UnavailableError(
            f"The verify node {self._address} ended the answer before it was finished. Ask again.",
            reason="TRUNCATED_STREAM",
        )

    def _explain(self, error: grpc.RpcError) -> AnydraftError:
        mine = from_rpc_error(error, address=f"the verify node {self._address}")
        if isinstance(mine, UnavailableError) and mine.reason == "UNREACHABLE":
            return UnavailableError(
                f"This draft node cannot reach the verify node {self._address}. Start one there, "
                "or restart the draft node with another --verify.",
                reason="VERIFY_NODE_UNREACHABLE",
            )
        return mine


def _delta(verdict: Verdict) -> GenerateResponse | None:
    """What a user gets of a verdict; None when that is nothing."""
    text = verdict.user_text if verdict.HasField("user_text") else verdict.text
    if not text and not verdict.token_ids:
        return None
    return GenerateResponse(
        delta=TextDelta(
            text=text,
            token_ids=verdict.token_ids,
            # Where the user's text differs, it is by a few bytes at its end.
            drafted_bytes=min(verdict.drafted_bytes, len(text.encode())),
            logprobs=verdict.logprobs,
        )
    )
