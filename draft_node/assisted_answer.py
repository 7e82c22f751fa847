"""One answer, from the Verify stream that makes it: drafts up, verdicts down, text to the user."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc

from anydraft.errors import AnydraftError, UnavailableError
from anydraft.rpc.answer_log import CANCELLED, AnswerLog, error_word, finish_word
from anydraft.rpc.status import from_rpc_error
from anydraft.v1.generation_pb2 import GenerateResponse, TextDelta
from anydraft.v1.prompt_pb2 import GenerationSpec
from anydraft.v1.result_pb2 import Finished, Resume
from anydraft.v1.verification_pb2 import Close, Draft, Open, Verdict, VerifyRequest, VerifyResponse
from anydraft.version import PROTOCOL_REVISION
from draft_node.answer_progress import AnswerProgress
from draft_node.drafters.base import Drafter
from draft_node.drafting_loop import DEFAULT_MAX_DRAFT, DraftingLoop
from draft_node.drafting_thread import DraftingThread
from draft_node.failover import RECONNECT_S, Failover
from draft_node.response_buffer import ResponseBuffer
from draft_node.verify_call import VerifyCall
from draft_node.verify_nodes import VerifyNode, VerifyNodes

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
    """One session, on one verify node after the other if need be. `responses` once, then `close`,
    whatever happened."""

    def __init__(
        self,
        nodes: VerifyNodes,
        drafting: Drafting,
        *,
        timeout_s: float | None,
        reconnect_s: float = RECONNECT_S,
    ) -> None:
        """`reconnect_s`: see `Failover`."""
        self._nodes = nodes
        self._drafting = drafting
        self._ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        self._failover = Failover(nodes, reconnect_s)
        self._node: VerifyNode | None = None
        self._call: VerifyCall | None = None
        """Of the node that makes the answer now."""
        self._loop: DraftingLoop | None = None
        self._buffer = ResponseBuffer()
        self._log = AnswerLog()
        self._drafts: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_open = False
        """Whether the verify node may have a session that it must be told to end."""
        self._no_more_drafts = False
        self._half_closed = False
        self._closing = False
        self._finished = False
        self._num_opened = 0
        self._sent_bytes = 0
        self._received_bytes = 0

    async def responses(
        self, spec: GenerationSpec, resume: Resume | None = None
    ) -> AsyncIterator[GenerateResponse]:
        """Up to `finished`; `resume`: the answer was begun before it came here. Raises what a
        verify node raised, and UnavailableError when none is there to begin it or to go on."""
        self._progress = AnswerProgress(spec, resume)
        self._start_drafting(spec)
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
            if self._is_open and self._call is not None and not self._call.done:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                        await self._say_goodbye(self._call)
        finally:
            self._leave_call()
            self._end_log(CANCELLED)
            tasks = [task for task in (self._drafts, self._reading) if task is not None]
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _say_goodbye(self, call: VerifyCall) -> None:
        """Without a Close, the verify node would take the drafter for lost, and wait for it."""
        if self._half_closed or self._reading is None:
            return
        if await call.write(VerifyRequest(close=Close())):
            await asyncio.wait({self._reading})

    async def _read(self) -> None:
        """Moves what verify nodes say into the buffer, at their pace."""
        error: Exception | None = None
        try:
            node = self._failover.first(self._progress)
            while True:
                failure = await self._go_on_with(node)
                if self._finished or self._closing:
                    break
                node = await self._failover.next(self._progress, node, failure)
                _log.info("an answer goes on with the verify node %s", node.address)
        except Exception as fault:  # the reader must hear of it, whatever it is
            error = fault
        if error is not None and not self._closing:
            self._stop_drafting()
            self._end_log(error_word(error))
        self._buffer.end(error)

    async def _go_on_with(self, node: VerifyNode) -> AnydraftError | None:
        """The answer, from where it stands, as far as this node makes it. What cut that short; None
        when it is finished, and where another node that is there is to go on."""
        left_s = None if self._ends_at is None else max(self._ends_at - time.monotonic(), 0.0)
        call = self._call = VerifyCall(node.channel, left_s)
        self._node, self._half_closed = node, False
        node.num_answers += 1
        try:
            opening = Open(
                protocol_revision=PROTOCOL_REVISION,
                spec=self._progress.spec,
                resume=self._progress.resume,
                drafts_in_turn=self._drafting.in_turn,
            )
            self._is_open = await call.write(VerifyRequest(open=opening))
            if self._no_more_drafts:
                await self._half_close(call)
            while not self._finished and (response := await call.read()) is not None:
                if self._is_handed_over(node, response):
                    await call.write(VerifyRequest(close=Close()))
                    return None
                await self._take(response)
            return None if self._finished else _cut_short(node.address)
        except grpc.RpcError as failed:
            return _explain(failed, node.address)
        finally:
            if not self._closing:
                self._leave_call()

    def _leave_call(self) -> None:
        if self._call is not None and self._node is not None:
            self._call.cancel()
            self._sent_bytes += self._call.sent_bytes
            self._received_bytes += self._call.received_bytes
            self._node.num_answers -= 1
            self._call = self._node = None
            self._is_open = False

    def _is_handed_over(self, node: VerifyNode, response: VerifyResponse) -> bool:
        """Whether the node is going away, and another one is there to go on."""
        if not response.HasField("draining"):
            return False
        if self._nodes.other_good(node, self._progress.fingerprint):
            return True
        _log.info("the verify node %s is going away; this answer goes on", node.address)
        return False

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
                self._progress.opened(response.opened)
            case "verdict":
                self._log.num_tokens += len(response.verdict.token_ids)
                self._progress.committed(response.verdict)
                self._failover.grew()
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
        self._drafts = asyncio.create_task(self._draft())

    async def _draft(self) -> None:
        if self._loop is not None:
            await self._loop.run()
        if not self._closing:
            # No drafts will come any more: the verifier must not wait for them.
            self._no_more_drafts = True
            if self._call is not None and self._is_open:
                await self._half_close(self._call)

    async def _half_close(self, call: VerifyCall) -> None:
        self._half_closed = True
        await call.done_writing()

    async def _send(self, draft: Draft) -> bool:
        """What is lost between two verify nodes, the next is sent anew (`DraftingLoop.opened`)."""
        if self._call is not None and self._is_open:
            await self._call.write(VerifyRequest(draft=draft))
        return not (self._closing or self._finished)

    def _translate(self, response: VerifyResponse) -> GenerateResponse | None:
        match response.WhichOneof("message"):
            case "opened":
                opened, is_first = response.opened, not self._num_opened
                self._num_opened += 1
                if self._loop is not None:
                    begun = opened.committed_text if is_first else ""
                    self._loop.opened(opened.credit_pieces, opened.credit_bytes, begun)
                return GenerateResponse(opened=opened) if is_first else None
            case "verdict":
                if self._loop is not None:
                    self._loop.commit(response.verdict)
                return _delta(response.verdict)
            case "finished":
                return GenerateResponse(finished=self._with_own_stats(response.finished))
        return None

    def _with_own_stats(self, finished: Finished) -> Finished:
        stats = finished.stats
        if self._loop is not None:
            stats.sent_pieces = self._loop.sent_pieces
            stats.draft_ms = self._loop.draft_ms
        stats.sent_bytes, stats.received_bytes = self._sent_bytes, self._received_bytes
        if self._call is not None:
            stats.sent_bytes += self._call.sent_bytes
            stats.received_bytes += self._call.received_bytes
        stats.resumes = max(self._num_opened - 1, 0)
        return finished


def _cut_short(address: str) -> UnavailableError:
    return UnavailableError(
        f"The verify node {address} ended the answer before it was finished. Ask again.",
        reason="TRUNCATED_STREAM",
    )


def _explain(error: grpc.RpcError, address: str) -> AnydraftError:
    mine = from_rpc_error(error, address=f"the verify node {address}")
    if isinstance(mine, UnavailableError) and mine.reason == "UNREACHABLE":
        return UnavailableError(
            f"This draft node cannot reach the verify node {address}. Start one there, "
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
