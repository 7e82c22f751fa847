"""Answers that outlive their calls: a client that has lost everything but a session's id and its
secret token has what was said so far again, and the rest.

Both nodes keep what passed through their `Generate`, for a while: the request, and what came of it.
Of a target's memory nothing is kept here; the rest is made as any answer that was begun before
(`Resume.token_ids`).
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from anydraft.errors import (
    FailedPreconditionError,
    InvalidFieldError,
    NotFoundError,
    PermissionDeniedError,
)
from anydraft.v1.generation_pb2 import GenerateRequest, GenerateResponse, TextDelta
from anydraft.v1.result_pb2 import Opened, Resume

SESSION_TTL_S = 60.0
"""A client that comes back has noticed by then that its connection is gone."""
_MAX_BYTES = 64 * 1024 * 1024
"""Of all that is kept."""
_TOKEN_BYTES = 16

Answer = Callable[[GenerateRequest], AsyncGenerator[GenerateResponse, None]]
"""Makes the answer to a request: `opened`, `delta`s, `finished`."""


@dataclass(eq=False, slots=True)
class _Kept:
    """One answer, as far as it was told."""

    request: GenerateRequest
    token: str
    opened: Opened
    told: TextDelta = field(default_factory=TextDelta)
    """All deltas in one."""
    finished: GenerateResponse | None = None
    number: int = 0
    """Of the call that makes it now: whoever has a lower one was overtaken."""
    is_live: bool = True
    ends_at: float = 0.0

    @property
    def num_bytes(self) -> int:
        return self.request.ByteSize() + self.told.ByteSize()

    @property
    def rest(self) -> GenerateRequest:
        """Asks for what was not told yet."""
        rest = GenerateRequest()
        rest.CopyFrom(self.request)
        rest.spec.sampling.seed = self.opened.seed
        rest.spec.stop.max_new_tokens = self.opened.max_new_tokens
        resume = Resume(token_ids=self.told.token_ids, fingerprint=self.opened.fingerprint)
        rest.resume.CopyFrom(resume)
        return rest

    def tell(self, delta: TextDelta) -> None:
        self.told.text += delta.text
        self.told.token_ids.extend(delta.token_ids)
        self.told.logprobs.extend(delta.logprobs)


class AnswerTable:
    """Of one node, in one event loop."""

    def __init__(self, ttl_s: float = SESSION_TTL_S) -> None:
        """`ttl_s`: how long an answer is kept that nobody reads; 0 keeps none."""
        self._ttl_s = ttl_s
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        """By session id; whose call ended last, last."""

    async def answer(
        self, request: GenerateRequest, make: Answer
    ) -> AsyncGenerator[GenerateResponse, None]:
        """What `make` says to the request, or, where that names a session, all that was said in it
        and the rest. Raises what `make` raises; NotFoundError and PermissionDeniedError where there
        is no such session for this client."""
        if not request.resume.session_id:
            async with aclosing(self._watched(request, make)) as responses:
                async for response in responses:
                    yield response
            return
        kept = self._claimed(request.resume)
        yield GenerateResponse(opened=kept.opened)
        if kept.told.ByteSize():
            yield GenerateResponse(delta=kept.told)
        if kept.finished is not None:
            yield kept.finished
            return
        async with (
            aclosing(make(kept.rest)) as responses,
            aclosing(self._followed(kept, responses)) as followed,
        ):
            async for response in followed:
                if not response.HasField("opened"):
                    yield response

    async def _watched(
        self, request: GenerateRequest, make: Answer
    ) -> AsyncGenerator[GenerateResponse, None]:
        kept: _Kept | None = None
        async with aclosing(make(request)) as responses:
            async for first in responses:
                if self._ttl_s and first.opened.fingerprint:
                    kept = _Kept(request, secrets.token_hex(_TOKEN_BYTES), first.opened)
                    kept.opened.resume_token = kept.token
                    self._kept[kept.opened.session_id] = kept
                    break
                yield first
            if kept is not None:
                async with aclosing(self._followed(kept, responses, first)) as followed:
                    async for response in followed:
                        yield response

    async def _followed(
        self,
        kept: _Kept,
        responses: AsyncIterator[GenerateResponse],
        first: GenerateResponse | None = None,
    ) -> AsyncGenerator[GenerateResponse, None]:
        """Notes what is told, and that somebody reads it."""
        number = kept.number
        try:
            if first is not None:
                yield first
            async for response in responses:
                if kept.number != number:
                    raise FailedPreconditionError(
                        "this answer is read elsewhere now: its session was resumed.",
                        reason="SESSION_RESUMED_ELSEWHERE",
                    )
                if response.HasField("delta"):
                    kept.tell(response.delta)
                elif response.HasField("finished"):
                    kept.finished = response
                yield response
        finally:
            if kept.number == number:
                kept.is_live = False
                kept.ends_at = time.monotonic() + self._ttl_s
                self._kept.move_to_end(kept.opened.session_id)
                self._make_room()

    def _claimed(self, resume: Resume) -> _Kept:
        self._make_room()
        if resume.token_ids or resume.fingerprint:
            raise InvalidFieldError(
                "resume names a session and what was committed: send session_id and token, or "
                "token_ids and fingerprint",
                field="resume",
                reason="FIELD_MALFORMED",
            )
        kept = self._kept.get(resume.session_id)
        if kept is None:
            raise NotFoundError(
                f"there is no session {resume.session_id[:100]!r} here, or not any more. Go on "
                "from the ids that were committed (Resume.token_ids), or ask anew.",
                reason="SESSION_NOT_FOUND",
            )
        if not secrets.compare_digest(kept.token.encode(), resume.token.encode()):
            raise PermissionDeniedError(
                "this is not the session's token. Send the one in Opened.resume_token.",
                reason="RESUME_TOKEN_WRONG",
            )
        kept.number += 1
        kept.is_live = True
        return kept

    def _make_room(self) -> None:
        """Forgets what nobody came back for, and of the rest what is too much, the oldest first."""
        now = time.monotonic()
        held = sum(kept.num_bytes for kept in self._kept.values() if not kept.is_live)
        for session_id, kept in list(self._kept.items()):
            if kept.is_live:
                continue
            if kept.ends_at <= now or held > _MAX_BYTES:
                held -= kept.num_bytes
                del self._kept[session_id]
