"""What a client learns about a server before it asks it anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anydraft.client._deadline import Deadline
from anydraft.errors import (
    AnydraftError,
    DeadlineExceededError,
    FailedPreconditionError,
    UnavailableError,
)
from anydraft.rpc.health import Health
from anydraft.v1 import server_pb2
from anydraft.version import PROTOCOL_REVISION, VERSION

GENERATION_SERVICE = "anydraft.v1.GenerationService"

READY_POLL_S = 0.2
"""Pause between two questions of `wait_until_ready`."""

_QUESTION_S = 5.0

Role = Literal["draft", "verify", "unknown"]

_ROLES: dict[int, Role] = {
    server_pb2.NODE_ROLE_DRAFT: "draft",
    server_pb2.NODE_ROLE_VERIFY: "verify",
}


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a node says about itself and the target; None where it does not say."""

    role: Role
    model: str
    """The target that answers, on both nodes; empty on a draft node that has not reached its verify
    node yet."""
    version: str
    """Of the anydraft distribution."""
    protocol_revision: int
    engine: str
    """How this node runs its own model, target or assistant: engine, precision, device."""
    context_tokens: int | None
    """The target's longest prompt plus answer, in its tokens."""
    has_chat_template: bool | None
    """Whether the target brings one."""
    vocabulary_size: int | None
    """The target's."""
    verify_address: str | None
    """What a draft node dials."""
    assistant: str | None
    """What drafts, on a draft node: the assistant's name, or "prompt lookup"."""
    dtype: str | None
    """Precision of the target's weights: "float32", "bfloat16" or "float16"."""


def decode_info(info: server_pb2.ServerInfo) -> ServerInfo:
    return ServerInfo(
        role=_ROLES.get(info.role, "unknown"),
        model=info.model,
        version=info.version,
        protocol_revision=info.protocol_revision,
        engine=info.engine,
        context_tokens=info.context_tokens if info.HasField("context_tokens") else None,
        has_chat_template=info.has_chat_template if info.HasField("has_chat_template") else None,
        vocabulary_size=info.vocabulary_size if info.HasField("vocabulary_size") else None,
        verify_address=info.verify_address if info.HasField("verify_address") else None,
        assistant=info.assistant if info.HasField("assistant") else None,
        dtype=info.dtype if info.HasField("dtype") else None,
    )


def require_same_revision(info: ServerInfo, address: str) -> None:
    """Raises FailedPreconditionError unless the server speaks this client's contract."""
    if info.protocol_revision != PROTOCOL_REVISION:
        raise FailedPreconditionError(
            f"{address} (anydraft {info.version}) speaks revision {info.protocol_revision} of the "
            f"protocol and this client (anydraft {VERSION}) revision {PROTOCOL_REVISION}: "
            "install the same version on both sides",
            reason="PROTOCOL_REVISION_MISMATCH",
        )


def client_closed() -> FailedPreconditionError:
    """The error of using a client after `close`."""
    return FailedPreconditionError("this client is closed: make a new one", reason="CLIENT_CLOSED")


class ReadinessWait:
    """Decides when `wait_until_ready` is over; knows nothing about how the server is asked."""

    def __init__(self, address: str, timeout_s: float | None) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._deadline = Deadline(timeout_s)
        self._last_answer: Health | AnydraftError | None = None

    def question_timeout_s(self) -> float:
        """How long to wait for one answer about health."""
        remaining_s = self._deadline.remaining_s()
        return _QUESTION_S if remaining_s is None else min(_QUESTION_S, remaining_s)

    def is_ready(self, answer: Health | AnydraftError) -> bool:
        """Whether `answer` ends the wait; False asks for another question after READY_POLL_S.

        Raises DeadlineExceededError when time is up, and at once what waiting cannot mend.
        """
        if answer is Health.SERVING:
            return True
        if answer is Health.SERVICE_UNKNOWN:
            # A node names its services before it listens: this one will not appear later.
            raise FailedPreconditionError(
                f"{self._address} does not serve {GENERATION_SERVICE}: give the address of a "
                "draft node or a verify node",
                reason="UNIMPLEMENTED",
            )
        waitable = (UnavailableError, DeadlineExceededError)
        if isinstance(answer, AnydraftError) and not isinstance(answer, waitable):
            raise answer
        # The last question may be cut short; what was answered before says more.
        if self._last_answer is None or not isinstance(answer, DeadlineExceededError):
            self._last_answer = answer
        if self._deadline.is_over:
            last = self._last_answer
            state = last if isinstance(last, AnydraftError) else "it is still loading"
            raise DeadlineExceededError(
                f"{self._address} was not ready within {self._timeout_s:g} s ({state}): "
                "wait longer, or see the log of that node",
                reason="NOT_READY",
            )
        return False
