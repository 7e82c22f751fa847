"""Answers that outlive their calls: a client that has lost everything but a session's id and its
secret token has what was said so far again, and the rest.

Both nodes keep what passed through their `Generate`, for a while: the request, and what came of it.
Of a target's memory nothing is kept here; the rest is made as any answer that was begun before
(`Resume.token_ids`).
"""

from __future__ import annotations

import argparse
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from anydraft.errors import (
    FailedPreconditionError,
    InvalidFieldError,
    NotFoundError,
    PermissionDeniedError,
)
from anydraft.flags import seconds
from anydraft.rpc.resuming import rest_of
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
    deltas: list[TextDelta] = field(default_factory=list)
    """As they were told."""
    finished: GenerateResponse | None = None
    number: int = 0
    """Of the call that makes it now: whoever has a lower one was overtaken."""
    num_bytes: int = 0
    """Once nobody reads it."""
    ends_at: float = 0.0

    @property
    def told(self) -> TextDelta:
        """All deltas in one. They are joined here, not as they come: each would copy all text."""
        if len(self.deltas) != 1:
            joined = TextDelta(text="".join(delta.text for delta in self.deltas))
            for delta in self.deltas:
                joined.token_ids.extend(delta.token_ids)
                joined.logprobs.extend(delta.logprobs)
            self.deltas = [joined]
        return self.deltas[0]

    @property
    def rest(self) -> GenerateRequest:
        """Asks for what was not told yet."""
        return rest_of(
            self.request,
            seed=self.opened.seed,
            max_new_tokens=self.opened.max_new_tokens,
            # What the request itself went on from comes first.
            token_ids=[*self.request.resume.token_ids, *self.told.token_ids],
            fingerprint=self.opened.fingerprint,
        )


def add_session_ttl_flag(parser: argparse.ArgumentParser) -> None:
    """Adds `--session-ttl`."""
    parser.add_argument(
        "--session-ttl",
        type=seconds(),
        default=SESSION_TTL_S,
        metavar="SECONDS",
        help="for which an answer that nobody reads can be resumed by its session; 0 keeps none",
    )


class AnswerTable:
    """Of one node, in one event loop."""

    def __init__(self, ttl_s: float = SESSION_TTL_S) -> None:
        """`ttl_s`: how long an answer is kept that nobody reads; 0 keeps none."""
        self._ttl_s = ttl_s
        self._live: dict[str, _Kept] = {}
        """That somebody reads, by session id."""
        self._left: OrderedDict[str, _Kept] = OrderedDict()
        """The others; whose call ended last, last."""
        self._num_bytes = 0
        """Of those."""

    async def answer(
        self, request: GenerateRequest, make: Answer
    ) -> AsyncGenerator[GenerateResponse, None]:
        """What `make` says to the request, or, where that names a session, all that was said in it
        and the rest. Raises what `make` raises; NotFoundError and PermissionDeniedError where there
        is no such session for this client."""
        told = self._again if request.resume.session_id else self._anew
        async with aclosing(told(request, make)) as responses:
            async for response in responses:
                yield response

    async def _anew(
        self, request: GenerateRequest, make: Answer
    ) -> AsyncGenerator[GenerateResponse, None]:
        async with aclosing(make(request)) as responses:
            first = await anext(responses, None)
            if first is None:
                return
            if not (self._ttl_s and first.opened.fingerprint):
                yield first
                async for response in responses:
                    yield response
                return
            kept = _Kept(request, secrets.token_hex(_TOKEN_BYTES), first.opened)
            kept.opened.resume_token = kept.token
            self._live[kept.opened.session_id] = kept
            try:
                yield first
                async for response in responses:
                    yield _noted(kept, 0, response)
            finally:
                self._leave(kept, 0)

    async def _again(
        self, request: GenerateRequest, make: Answer
    ) -> AsyncGenerator[GenerateResponse, None]:
        kept = self._claimed(request.resume)
        number = kept.number
        try:
            yield GenerateResponse(opened=kept.opened)
            if kept.deltas:
                yield GenerateResponse(delta=kept.told)
            if kept.finished is not None:
                yield kept.finished
                return
            async with aclosing(make(kept.rest)) as responses:
                async for response in responses:
                    if not response.HasField("opened"):
                        yield _noted(kept, number, response)
        finally:
            self._leave(kept, number)

    def _claimed(self, resume: Resume) -> _Kept:
        self._make_room()
        if resume.token_ids or resume.fingerprint:
            raise InvalidFieldError(
                "resume names a session and what was committed: send session_id and token, or "
                "token_ids and fingerprint",
                field="resume",
                reason="FIELD_MALFORMED",
            )
        session_id = resume.session_id
        kept = self._live.get(session_id) or self._left.get(session_id)
        if kept is None:
            raise NotFoundError(
                f"there is no session {session_id[:100]!r} here, or not any more. Go on "
                "from the ids that were committed (Resume.token_ids), or ask anew.",
                reason="SESSION_NOT_FOUND",
            )
        if not secrets.compare_digest(kept.token.encode(), resume.token.encode()):
            raise PermissionDeniedError(
                "this is not the session's token. Send the one in Opened.resume_token.",
                reason="RESUME_TOKEN_WRONG",
            )
        kept.number += 1
        if self._left.pop(session_id, None) is not None:
            self._num_bytes -= kept.num_bytes
        self._live[session_id] = kept
        return kept

    def _leave(self, kept: _Kept, number: int) -> None:
        """That call does not read it any more."""
        if kept.number != number:
            return
        session_id = kept.opened.session_id
        del self._live[session_id]
        kept.num_bytes = kept.request.ByteSize() + kept.told.ByteSize()
        kept.ends_at = time.monotonic() + self._ttl_s
        self._left[session_id] = kept
        self._num_bytes += kept.num_bytes
        self._make_room()

    def _make_room(self) -> None:
        """Forgets what nobody came back for, and of the rest what is too much, the oldest first."""
        now = time.monotonic()
        while self._left:
            session_id, oldest = next(iter(self._left.items()))
            if oldest.ends_at > now and self._num_bytes <= _MAX_BYTES:
                return
            del self._left[session_id]
            self._num_bytes -= oldest.num_bytes


def _noted(kept: _Kept, number: int, response: GenerateResponse) -> GenerateResponse:
    """It is told by that call. Raises FailedPreconditionError when another one has taken over."""
    if kept.number != number:
        raise FailedPreconditionError(
            "this answer is read elsewhere now: its session was resumed.",
            reason="SESSION_RESUMED_ELSEWHERE",
        )
    if response.HasField("delta"):
        kept.deltas.append(response.delta)
    elif response.HasField("finished"):
        kept.finished = response
    return response
