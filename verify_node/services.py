"""The gRPC face of a verify node: sessions with drafts, answers without, and who we are."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator

import grpc

from anydraft.errors import FailedPreconditionError, InvalidRequestError
from anydraft.rpc.handler import stream_handler, unary_handler
from anydraft.v1 import generation_pb2 as generation
from anydraft.v1 import server_pb2 as server
from anydraft.v1 import verification_pb2 as verification
from anydraft.v1.generation_pb2_grpc import GenerationServiceServicer
from anydraft.v1.prompt_pb2 import GenerationSpec
from anydraft.v1.result_pb2 import Opened
from anydraft.v1.server_pb2_grpc import ServerServiceServicer
from anydraft.v1.verification_pb2_grpc import VerificationServiceServicer
from anydraft.version import PROTOCOL_REVISION, VERSION
from verify_node.served_model import OpenSession, ServedModel
from verify_node.session_text import MAX_CREDIT_PIECES, Block

_log = logging.getLogger(__name__)

_LINGER_S = 2.0
"""How long the node waits for a client to end its side of a finished session."""

Context = grpc.aio.ServicerContext[object, object]


class Answer:
    """One open session as seen from the event loop: an iterator of blocks that cleans up."""

    def __init__(self, model: ServedModel, spec: GenerationSpec, *, expects_drafts: bool) -> None:
        self._model = model
        self._spec = spec
        self._expects_drafts = expects_drafts
        self._events: asyncio.Queue[Block | Exception] = asyncio.Queue()
        self.session: OpenSession

    async def __aenter__(self) -> Answer:
        loop = asyncio.get_running_loop()

        def on_event(event: Block | Exception) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is gone: the node is stopping
                loop.call_soon_threadsafe(self._events.put_nowait, event)

        # Off the event loop: a long prompt takes its time to encode.
        self.session = await asyncio.to_thread(
            self._model.open, self._spec, on_event, expects_drafts=self._expects_drafts
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self.session.target.close()

    async def blocks(self) -> AsyncIterator[Block]:
        """Until the answer is finished; raises what ended it otherwise."""
        while True:
            event = await self._events.get()
            if isinstance(event, Exception):
                raise event
            yield event
            if event.finished is not None:
                return

    def opened(self, session_id: str, credit_pieces: int) -> Opened:
        return Opened(
            session_id=session_id,
            model=self._model.name,
            seed=self.session.seed,
            prompt_tokens=self.session.prompt_tokens,
            max_new_tokens=self.session.max_new_tokens,
            credit_pieces=credit_pieces,
        )


class VerificationService(VerificationServiceServicer):
    def __init__(self, model: ServedModel) -> None:
        self._model = model

    @stream_handler
    async def Verify(  # noqa: N802
        self, request_iterator: AsyncIterator[verification.VerifyRequest], context: Context
    ) -> AsyncIterator[verification.VerifyResponse]:
        requests = aiter(request_iterator)
        opening = await _opening(requests)
        session_id = opening.session_id or uuid.uuid4().hex
        async with Answer(self._model, opening.spec, expects_drafts=True) as answer:
            yield verification.VerifyResponse(opened=answer.opened(session_id, MAX_CREDIT_PIECES))
            reader = asyncio.create_task(_read_drafts(requests, answer.session))
            try:
                async for response in _until_closed(answer, reader):
                    yield response
            finally:
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)


async def _opening(requests: AsyncIterator[verification.VerifyRequest]) -> verification.Open:
    request = await anext(requests, None)
    if request is None or request.WhichOneof("message") != "open":
        raise InvalidRequestError(
            "the first message of a Verify stream must be `open`.", reason="OPEN_EXPECTED"
        )
    revision = request.open.protocol_revision
    if revision != PROTOCOL_REVISION:
        raise FailedPreconditionError(
            f"this node speaks revision {PROTOCOL_REVISION} of the protocol, the client "
            f"{revision}. Install the same anydraft release on both sides.",
            reason="PROTOCOL_REVISION_MISMATCH",
        )
    return request.open


async def _read_drafts(
    requests: AsyncIterator[verification.VerifyRequest], session: OpenSession
) -> bool:
    """Feeds drafts to the session. True when the client closed it; False at the end of the stream,
    which only means that no more drafts will come.
    """
    try:
        async for request in requests:
            match request.WhichOneof("message"):
                case "draft":
                    draft = request.draft
                    pieces = [(piece.text, piece.logprob) for piece in draft.pieces]
                    session.text.draft(draft.seq, draft.base_bytes, pieces, draft.ends)
                case "close":
                    return True
                case _:
                    raise InvalidRequestError(
                        "after `open`, a Verify stream takes `draft` and `close` only.",
                        reason="DRAFT_EXPECTED",
                    )
        return False
    finally:
        session.target.expect_drafts(False)


async def _until_closed(
    answer: Answer, reader: asyncio.Task[bool]
) -> AsyncIterator[verification.VerifyResponse]:
    """Verdicts, until the answer is finished or the client closes the session."""
    blocks = answer.blocks()
    while (block := await _next_block(blocks, reader)) is not None:
        yield verification.VerifyResponse(verdict=_verdict(block))
        if block.finished is not None:
            yield verification.VerifyResponse(finished=block.finished)
            # A draft may be on its way. Ending the call under it would cost the client the status,
            # and what it has not read yet, so the client gets to end its side first.
            await asyncio.wait({reader}, timeout=_LINGER_S)
            return


async def _next_block(blocks: AsyncIterator[Block], reader: asyncio.Task[bool]) -> Block | None:
    """None when the client closed the session first; raises what it did wrong."""
    upcoming = asyncio.ensure_future(anext(blocks))
    try:
        await asyncio.wait({upcoming, reader}, return_when=asyncio.FIRST_COMPLETED)
        if not upcoming.done() and reader.result():
            return None
        return await upcoming
    finally:
        if not upcoming.done():
            upcoming.cancel()
            await asyncio.gather(upcoming, return_exceptions=True)


def _verdict(block: Block) -> verification.Verdict:
    return verification.Verdict(
        draft_seq=block.draft_seq,
        base_bytes=block.base_bytes,
        text=block.text,
        token_ids=block.token_ids,
        drafted_bytes=block.drafted_bytes,
        user_text=None if block.user_text == block.text else block.user_text,
        logprobs=block.logprobs,
        credit_pieces=block.credit_pieces,
        step_ms=block.step_ms,
        held_bytes=block.held_bytes,
    )


class GenerationService(GenerationServiceServicer):
    """The target alone, on the same engine."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    @stream_handler
    async def Generate(  # noqa: N802
        self, request: generation.GenerateRequest, context: Context
    ) -> AsyncIterator[generation.GenerateResponse]:
        async with Answer(self._model, request.spec, expects_drafts=False) as answer:
            yield generation.GenerateResponse(opened=answer.opened(uuid.uuid4().hex, 0))
            async for block in answer.blocks():
                delta = generation.TextDelta(
                    text=block.user_text, token_ids=block.token_ids, logprobs=block.logprobs
                )
                yield generation.GenerateResponse(delta=delta)
                if block.finished is not None:
                    yield generation.GenerateResponse(finished=block.finished)


class ServerService(ServerServiceServicer):
    def __init__(self, model: ServedModel) -> None:
        self._model = model

    @unary_handler
    async def GetServerInfo(  # noqa: N802
        self, request: server.GetServerInfoRequest, context: Context
    ) -> server.GetServerInfoResponse:
        facts = self._model.target.facts
        return server.GetServerInfoResponse(
            info=server.ServerInfo(
                role=server.NODE_ROLE_VERIFY,
                model=self._model.name,
                version=VERSION,
                protocol_revision=PROTOCOL_REVISION,
                engine=facts.description,
                context_tokens=facts.context_tokens,
                has_chat_template=self._model.tokenizer.chat_template is not None,
                vocabulary_size=facts.vocabulary_size,
            )
        )
