"""The seam between sessions and whatever runs the target.

A `Target` is told to open a session and is offered draft ids; committed ids come out. It says
nothing about steps, batches or caches, so that an engine with a scheduler of its own fits too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from verify_node.sampling_settings import SamplingSettings, ScoredToken

FinishReason = Literal["eos", "stop", "length"]


@dataclass(frozen=True, slots=True)
class DraftToken:
    """A target id that the assistant expects, and how sure it is."""

    token_id: int
    probability: float
    """The assistant's own, in [0, 1]; not trusted, only used to decide how much to check."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How much of a block may be committed."""

    num_tokens: int
    reason: FinishReason | None = None
    """Why the answer ends with the last of them; None when it goes on."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What one step added to a session."""

    token_ids: tuple[int, ...]
    scores: tuple[ScoredToken, ...]
    """One per id when log-probabilities were asked for, else empty."""
    num_drafted: int
    """Draft tokens that the step checked."""
    num_accepted: int
    """Leading ids of `token_ids` that were drafted; the rest is the target's own."""
    reason: FinishReason | None
    draft_room: int
    """How many draft tokens the target could use next."""
    step_ms: float
    wait_ms: float
    """How long the session waited for a draft before the step."""


class SessionListener(Protocol):
    """What a session hears; called on the target's thread, so every method must be quick."""

    def cut(self, token_ids: Sequence[int]) -> Cut:
        """Called once for every block, before it is committed."""

    def committed(self, commit: Commit) -> None:
        """A block was committed. The session may be offered new drafts from here."""

    def failed(self, error: Exception) -> None:
        """The session ended without finishing; nothing follows."""


@dataclass(frozen=True, slots=True)
class TargetRequest:
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: SamplingSettings
    eos_ids: tuple[int, ...]
    """What ends the answer; only used to keep a minimum length, `cut` decides the end."""
    num_logprobs: int | None
    """Alternatives to report for each token; None reports no log-probabilities at all."""
    expects_drafts: bool
    """Whether a drafter is at the other end, so that waiting for a draft may pay."""


class TargetSession(Protocol):
    def offer(self, num_committed: int, draft: Sequence[DraftToken]) -> None:
        """Ids that may follow the first `num_committed` tokens of the answer; replaces what was
        offered before. Ignored when the answer has moved on meanwhile. Thread-safe.
        """

    def decline(self, num_committed: int) -> None:
        """No draft will follow the first `num_committed` tokens: do not wait for one there.
        Thread-safe.
        """

    def expect_drafts(self, expected: bool) -> None:
        """Whether more drafts may come; without, the session never waits. Thread-safe."""

    def close(self) -> None:
        """Stop and free everything; nothing is heard afterwards. Idempotent, thread-safe."""


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What a service needs to know of a target."""

    description: str
    """For people: runner, precision, device."""
    context_tokens: int
    vocabulary_size: int


class Target(Protocol):
    @property
    def facts(self) -> TargetFacts: ...

    def open(
        self, request: TargetRequest, listener: Callable[[TargetSession], SessionListener]
    ) -> TargetSession:
        """Starts a session. `listener` is called with the session before anything is heard.

        Raises ResourceExhaustedError when there is no room for it, UnavailableError when closing.
        """

    def close(self) -> None:
        """Ends every session with UnavailableError and stops. Idempotent."""
