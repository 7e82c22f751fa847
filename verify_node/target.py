"""The seam between sessions and whatever runs the target.

A `Target` is told to open a session and is offered draft ids; blocks of ids come out, of which the
session says how much it keeps. Nothing here is about steps, batches or caches, nor about torch, so
that an engine with a scheduler of its own fits too.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, Protocol

from anydraft.errors import AnydraftError
from verify_node.sampling_settings import SamplingSettings, ScoredToken

FinishReason = Literal["eos", "stop", "length"]


@dataclass(frozen=True, slots=True)
class DraftToken:
    """A target id that the assistant expects, where it expects it, and how sure it is."""

    token_id: int
    reach: float
    """How likely this and all tokens before it on its path are taken to be, in [0, 1]; never more
    than that of its parent. Not trusted, only used to decide how much to check."""
    parent: int
    """The index in the same offer of the token that it follows; -1: the committed tokens."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A tree of draft ids that may follow the first `num_committed` tokens of an answer."""

    num_committed: int
    tokens: tuple[DraftToken, ...]
    """By falling reach, so that each head of them is a tree, too; a token never before its parent,
    and no two children of one parent with the same id."""
    newest_piece: int
    """The session's own mark for it; the block for which it was checked gives it back."""


@dataclass(frozen=True, slots=True)
class Block:
    """What the target chose in one go: draft tokens that it would have said too, then one more."""

    token_ids: tuple[int, ...]
    """One or more."""
    scores: tuple[ScoredToken, ...]
    """One per id when log-probabilities were asked for, else empty."""
    num_drafted: int
    """Draft tokens that were checked, of all paths."""
    num_accepted: int
    """Leading ids of `token_ids` that were drafted; the last one never is."""
    newest_piece: int
    """`Offer.newest_piece` of the draft that was checked; 0 when there was none."""
    draft_room: int
    """How many draft tokens the target could use next."""
    step_ms: float
    wait_ms: float
    """How long the session waited for a draft before the step."""
    num_beside: int = 0
    """How many other sessions were in the step: who is slow to commit holds them up."""
    turn_ms: float = 0.0
    """How long the target waits for a drafter that takes turns to be done behind this block, at
    most; 0: it has no turn."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What a session keeps of a block, and how it goes on."""

    num_tokens: int
    """Leading ids of the block that are committed."""
    reason: FinishReason | None = None
    """Why the answer ends with the last of them; None when it goes on."""
    offer: Offer | None = None
    """What is already drafted beyond them; None: what is left there of the offer before."""
    afterwards: Callable[[], None] | None = None
    """Called once, soon, when the other blocks that were computed with this one are committed as
    well: what wakes other threads, which would hold those up. Never raises."""


class SessionListener(Protocol):
    """What a session hears, in this order; called on the target's thread, so every method must be
    quick. An exception ends the session with `failed`.
    """

    def opened(self, cached_tokens: int) -> None:
        """There is room for the session, and so many of its first tokens need not be computed:
        another session has. Called once, before any block."""

    def commit(self, block: Block) -> Commit:
        """Decides, once for each block, how much of it is committed."""

    def failed(self, error: AnydraftError) -> None:
        """The session ended without finishing; nothing follows. Also instead of `opened`:
        ResourceExhaustedError when there was no room in time, or never is; UnavailableError when
        the target is closing.
        """


@dataclass(frozen=True, slots=True)
class TargetRequest:
    """All that decides an answer."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    """Of the whole answer, `committed_ids` included."""
    sampling: SamplingSettings
    eos_ids: tuple[int, ...]
    """What ends the answer; only used to keep a minimum length, `commit` decides the end."""
    num_logprobs: int | None
    """Alternatives to report for each token; None reports no log-probabilities at all."""
    expects_drafts: bool
    """Whether a drafter is at the other end, so that waiting for a draft may pay."""
    drafts_in_turn: bool = False
    """Whether the drafter computes on the target's cores, and declines when it is done: a step is
    then better not taken before."""
    committed_ids: tuple[int, ...] = ()
    """The beginning of the answer, where it was begun elsewhere; blocks follow it."""
    tenant: str = ""
    """Who asks. What was computed for one tenant is never used for another."""

    @property
    def kv_tokens(self) -> int:
        """What the session may come to hold."""
        return len(self.prompt_ids) + self.max_new_tokens


class TargetSession(Protocol):
    """One answer in the making, as its owner holds it. Every method is quick and thread-safe."""

    def offer(self, offer: Offer) -> None:
        """Replaces what was offered before, unless that was for a longer answer. Where the answer
        has moved on meanwhile, what is left of the tree behind its end counts."""

    def decline(self, num_committed: int, needs_ms: float = 0.0) -> None:
        """No draft will follow the first `num_committed` tokens: do not wait for one there.
        `needs_ms`: a drafter that takes turns would need one of that length, to read first."""

    def expect_drafts(self, expected: bool) -> None:
        """Whether more drafts may come; without, the session never waits."""

    def close(self) -> None:
        """Ends the session and frees what it holds. Idempotent. At most the block that is being
        computed is still heard of."""


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What a service needs to know of a target."""

    description: str
    """For people: runner, precision, device."""
    dtype: str
    """Of the weights, as torch names it: "float32", "bfloat16"."""
    context_tokens: int
    vocabulary_size: int
    fingerprint: str = ""
    """Targets with the same one give the same ids for the same request."""


class Target(Protocol):
    @property
    def facts(self) -> TargetFacts: ...

    @property
    def stopped(self) -> Future[None]:
        """Done when the target serves no more, with the error if it could not go on."""

    def open(
        self, request: TargetRequest, listener: Callable[[TargetSession], SessionListener]
    ) -> TargetSession:
        """Asks for a session, and returns at once: the listener hears `opened` or `failed`.

        `listener` is called with the session before anything is heard.
        """

    def close(self) -> None:
        """Ends every session with UnavailableError and stops. Idempotent."""
