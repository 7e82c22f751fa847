"""How a stream of requests begins, on every service that has one: at once, and in our revision."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from anydraft.errors import DeadlineExceededError, FailedPreconditionError, InvalidRequestError
from anydraft.v1.drafting_pb2 import DraftRequest
from anydraft.v1.verification_pb2 import VerifyRequest
from anydraft.version import PROTOCOL_REVISION

_OPEN_TIMEOUT_S = 10.0
"""How long a stream may say nothing before it says what it is for."""


_R = TypeVar("_R", VerifyRequest, DraftRequest)


async def opening_request(requests: AsyncIterator[_R], stream: str) -> _R:
    """The first request, which is `open`; `stream` names the call in messages.

    Raises DeadlineExceededError when it does not come, InvalidRequestError for another one.
    """
    try:
        async with asyncio.timeout(_OPEN_TIMEOUT_S):
            request = await anext(requests, None)
    except TimeoutError:
        raise DeadlineExceededError(
            f"the stream said nothing for {_OPEN_TIMEOUT_S:g} s. Send `open` at once.",
            reason="OPEN_TIMEOUT",
        ) from None
    if request is None or request.WhichOneof("message") != "open":
        raise InvalidRequestError(
            f"the first message of a {stream} stream must be `open`.", reason="OPEN_EXPECTED"
        )
    return request


def require_our_revision(revision: int) -> None:
    """Raises FailedPreconditionError unless the client speaks what this node speaks."""
    if revision != PROTOCOL_REVISION:
        raise FailedPreconditionError(
            f"this node speaks revision {PROTOCOL_REVISION} of the protocol, the client "
            f"{revision}. Install the same anydraft release on both sides.",
            reason="PROTOCOL_REVISION_MISMATCH",
        )
