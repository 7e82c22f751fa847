"""The gRPC face of a verify node: sessions with drafts, answers without, and who we are."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager

import grpc

from anydraft.errors import (
    AnydraftError,
    InvalidRequestError,
    UnavailableError,
)
from anydraft.rpc.answer_table import SESSION_TTL_S, AnswerTable
from anydraft.rpc.calls import answering
from anydraft.rpc.opening import opening_request, require_our_revision
from anydraft.rpc.validation import validate_draft, validate_session_id
from anydraft.v1 import generation_pb2 as generation
from anydraft.v1 import server_pb2 as server
from anydraft.v1 import verification_pb2 as verification
from anydraft.v1.generation_pb2_grpc import GenerationServiceServicer
from anydraft.v1.server_pb2_grpc import ServerServiceServicer
from anydraft.v1.verification_pb2_grpc import VerificationServiceServicer
from anydraft.version import PROTOCOL_REVISION, VERSION
from verify_node.drafter_pool import DrafterPool
from verify_node.open_answer import Draining, OpenAnswer, open_answer
from verify_node.pooled_drafts import drafted
from verify_node.served_model import ServedModel
from verify_node.session_text import TextBlock

_LINGER_S = 2.0
"""How long the node waits for a client to end its side of a finished session."""

Context = grpc.aio.ServicerContext[object, object]


class ModelSlot:
    """Where the services find the model, once it is loaded."""

    def __init__(self) -> None:
        self.model: ServedModel | None = None

    def require(self) -> ServedModel:
        """Raises UnavailableError while there is none."""
        if self.model is None:
            raise UnavailableError(
                "this verify node is still loading its model. Try again shortly.",
                reason="MODEL_LOADING",
                retry_after_s=2.0,
            )
        return self.model


class VerificationService(VerificationServiceServicer):
    def __init__(self, slot: ModelSlot) -> None:
        self._slot = slot
        self._answers: set[OpenAnswer] = set()
        self._is_draining = False

    def drain(self) -> None:
        """Tells all sessions that they should go on elsewhere, and those that come late."""
        self._is_draining = True
        for answer in self._answers:
            answer.drain()

    async def Verify(  # noqa: N802
        self, request_iterator: AsyncIterator[verification.VerifyRequest], context: Context
    ) -> AsyncIterator[verification.VerifyResponse]:
        model = self._slot.require()
        requests = aiter(request_iterator)
        opening = await _opening(requests)
        session_id = opening.session_id or uuid.uuid4().hex
        async with open_answer(
            model,
            opening.spec,
            session_id,
            resume=opening.resume if opening.HasField("resume") else None,
            expects_drafts=True,
            drafts_in_turn=opening.drafts_in_turn,
        ) as answer:
            with answering(), self._listed(answer):
                yield verification.VerifyResponse(opened=answer.opened())
                reader = asyncio.create_task(_read_drafts(requests, answer))
                try:
                    async for block in answer.blocks():
                        if isinstance(block, Draining):
                            yield verification.VerifyResponse(draining=verification.Draining())
                            continue
                        yield verification.VerifyResponse(verdict=_verdict(block))
                        if block.finished is not None:
                            yield verification.VerifyResponse(finished=block.finished)
                            # A draft may be on its way. Ending the call under it would cost the
                            # client the status, and what it has not read yet: it may end first.
                            await asyncio.wait({reader}, timeout=_LINGER_S)
                finally:
                    reader.cancel()
                    await asyncio.gather(reader, return_exceptions=True)

    @contextmanager
    def _listed(self, answer: OpenAnswer) -> Iterator[None]:
        self._answers.add(answer)
        if self._is_draining:
            answer.drain()
        try:
            yield
        finally:
            self._answers.discard(answer)


async def _opening(requests: AsyncIterator[verification.VerifyRequest]) -> verification.Open:
    request = await opening_request(requests, "Verify")
    validate_session_id(request.open.session_id)
    require_our_revision(request.open.protocol_revision)
    return request.open


async def _read_drafts(
    requests: AsyncIterator[verification.VerifyRequest], answer: OpenAnswer
) -> None:
    """Feeds drafts to the session. The end of the stream only means that no more will come; what a
    client does wrong ends its answer."""
    try:
        async for request in requests:
            match request.WhichOneof("message"):
                case "draft":
                    validate_draft(request.draft)
                    await answer.draft(request.draft)
                case "close":
                    answer.leave()
                    return
                case _:
                    raise InvalidRequestError(
                        "after `open`, a Verify stream takes `draft` and `close` only.",
                        reason="DRAFT_EXPECTED",
                    )
    except AnydraftError as error:
        answer.leave(error)
    finally:
        answer.session.target.expect_drafts(False)


def _verdict(block: TextBlock) -> verification.Verdict:
    return verification.Verdict(
        newest_piece=block.newest_piece,
        base_bytes=block.base_bytes,
        text=block.text,
        token_ids=block.token_ids,
        drafted_bytes=block.drafted_bytes,
        user_text=None if block.user_text == block.text else block.user_text,
        logprobs=block.logprobs,
        credit_pieces=block.credit_pieces,
        step_ms=block.step_ms,
        turn_ms=block.turn_ms,
    )


class GenerationService(GenerationServiceServicer):
    """Answers on the same engine: the target's alone, or drafted by a pool that this node dials."""

    def __init__(
        self,
        slot: ModelSlot,
        pool: DrafterPool | None = None,
        *,
        session_ttl_s: float = SESSION_TTL_S,
    ) -> None:
        """`session_ttl_s`: see `AnswerTable`."""
        self._slot = slot
        self._pool = pool
        self._table = AnswerTable(session_ttl_s)

    async def Generate(  # noqa: N802
        self, request: generation.GenerateRequest, context: Context
    ) -> AsyncIterator[generation.GenerateResponse]:
        async with aclosing(self._table.answer(request, self._answer)) as responses:
            async for response in responses:
                yield response

    async def _answer(
        self, request: generation.GenerateRequest
    ) -> AsyncGenerator[generation.GenerateResponse, None]:
        model, session_id = self._slot.require(), uuid.uuid4().hex
        pool = self._pool
        async with open_answer(
            model,
            request.spec,
            session_id,
            resume=request.resume if request.HasField("resume") else None,
            expects_drafts=pool is not None,
            drafts_in_turn=pool is not None and pool.in_turn,
        ) as answer:
            with answering():
                async with drafted(answer, request.spec.prompt, pool) as tell:
                    yield generation.GenerateResponse(opened=answer.opened())
                    async for block in answer.blocks():
                        if isinstance(block, Draining):
                            continue
                        tell(block)
                        yield generation.GenerateResponse(delta=_delta(block))
                        if block.finished is not None:
                            yield generation.GenerateResponse(finished=block.finished)


def _delta(block: TextBlock) -> generation.TextDelta:
    return generation.TextDelta(
        text=block.user_text,
        token_ids=block.token_ids,
        # Where the user's text differs, it is by a few bytes at its end.
        drafted_bytes=min(block.drafted_bytes, len(block.user_text.encode())),
        logprobs=block.logprobs,
    )


class ServerService(ServerServiceServicer):
    def __init__(self, slot: ModelSlot) -> None:
        self._slot = slot

    async def GetServerInfo(  # noqa: N802
        self, request: server.GetServerInfoRequest, context: Context
    ) -> server.GetServerInfoResponse:
        info = server.ServerInfo(
            role=server.NODE_ROLE_VERIFY, version=VERSION, protocol_revision=PROTOCOL_REVISION
        )
        if (model := self._slot.model) is not None:
            facts = model.target.facts
            info.model = model.name
            info.engine = facts.description
            info.dtype = facts.dtype
            info.fingerprint = facts.fingerprint
            info.context_tokens = facts.context_tokens
            info.has_chat_template = model.tokenizer.chat_template is not None
            info.vocabulary_size = facts.vocabulary_size
        return server.GetServerInfoResponse(info=info)
