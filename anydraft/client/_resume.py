"""Going on with an answer that was cut short."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

from anydraft.client._answer import TokenLogprobs
from anydraft.errors import AnydraftError, InvalidRequestError, UnavailableError
from anydraft.rpc.resuming import rest_of
from anydraft.v1.generation_pb2 import GenerateRequest
from anydraft.v1.result_pb2 import Resume

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """What is known of an answer that is not finished: all that a node needs to go on with it.

    Any node that serves the same weights in the same precision on the same engine may: the text
    goes on as it would have. Holds only plain values, so it can be stored.
    """

    text: str
    """What was shown of it."""
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    seed: int
    max_new_tokens: int
    fingerprint: str

    def apply(self, request: GenerateRequest) -> GenerateRequest:
        """A copy of the request that began the answer, which asks for the rest of it."""
        return rest_of(
            request,
            seed=self.seed,
            max_new_tokens=self.max_new_tokens,
            token_ids=self.token_ids,
            fingerprint=self.fingerprint,
        )


@dataclass(frozen=True, slots=True)
class Session:
    """By which one node gives an answer again from its beginning, for a while (a minute, unless it
    was told otherwise): the little that a client need not lose. The token is secret."""

    session_id: str
    token: str

    def request(self) -> GenerateRequest:
        return GenerateRequest(resume=Resume(session_id=self.session_id, token=self.token))


def require_retries(retries: int) -> int:
    """`retries` itself; InvalidRequestError unless it is a whole number, 0 or more."""
    if not isinstance(retries, Integral) or isinstance(retries, bool) or retries < 0:
        raise InvalidRequestError(
            f"retries is {retries!r}: it must be a whole number, 0 or more",
            reason="FIELD_OUT_OF_RANGE",
        )
    return int(retries)


class Retries:
    """How often, and after which pauses, one answer is asked for again."""

    def __init__(self, retries: int) -> None:
        self._left = require_retries(retries)
        self._pause_s = _FIRST_PAUSE_S

    def pause_s(self, error: AnydraftError, *, may_go_on: bool) -> float | None:
        """How long to wait before the next try; None: `error` is final. `may_go_on`: nothing was
        shown yet, or the rest can be asked for."""
        passes = isinstance(error, UnavailableError) or error.retry_after_s is not None
        if not (self._left and may_go_on and passes):
            return None
        self._left -= 1
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return max(pause_s, error.retry_after_s or 0.0)
