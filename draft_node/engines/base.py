"""What a drafter asks of an assistant model. Engines know ids; no text, no tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_CHOICES = 8
"""How many of the likeliest next tokens an engine reports."""

Path = tuple[int, ...]
"""Ids behind the trunk, one or more."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The likeliest next tokens, at most MAX_CHOICES, best first."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural logarithms of their probabilities among all tokens, as many as ids. Empty when the
    engine overflowed: what it says means nothing."""


class AssistantState(Protocol):
    """One sequence, the *trunk*, and what is tried out behind it, its *branches*, with their KV
    cache. Belongs to one session; used by one thread at a time.
    """

    @property
    def length(self) -> int:
        """Tokens of the trunk."""

    def read(self, ids: Sequence[int], *, wanted: bool) -> Choices | None:
        """Appends one id or more to the trunk, and drops all branches. Returns what may follow the
        last of them, None when that is not `wanted` (a part of a prompt is read).

        Raises ContextFullError when the trunk would outgrow `context_tokens`, and InternalError for
        no ids or ids outside the vocabulary; the state is then as it was.
        """

    def expand(self, paths: Sequence[Path]) -> list[Choices]:
        """What may follow the trunk and each of these paths, as many as `engine.max_paths` at most,
        in one pass. The trunk must hold a token or more. Computes what of each path is not held
        yet, so a path whose parent was expanded before is the cheapest.

        Raises as `read`; `context_tokens` bounds trunk and all branches together.
        """

    def advance(self, path: Path) -> int:
        """The trunk grows by as much of `path` as is held behind it; returns how many of its ids
        that is. Branches below the new trunk stay, all others are dropped."""

    def truncate(self, length: int) -> None:
        """Cuts the trunk to its first `length` ids, `0 <= length <= self.length`, and drops all
        branches.

        Exact: what is read afterwards sees what it would see had the rest never been read. Raises
        InternalError for another length.
        """

    def close(self) -> None:
        """Frees the cache. Idempotent; everything else raises InternalError from then on."""


class AssistantEngine(Protocol):
    """Loaded weights, shared by the states of all sessions."""

    @property
    def description(self) -> str:
        """How the model is run, for people: engine, file or precision, threads or device."""

    @property
    def context_tokens(self) -> int:
        """The longest sequence that the model was made for."""

    @property
    def vocab_size(self) -> int:
        """Rows of the logits; may exceed the tokenizer's vocabulary by padding."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end an answer, in this model's vocabulary."""

    @property
    def max_paths(self) -> int:
        """How many paths one `expand` takes; 1 where the engine knows chains only. Chosen from what
        a pass over so many costs, measured when the engine was made."""

    @property
    def chunk_tokens(self) -> int:
        """How many ids one `read` of a long text should take: what it reads fastest with, within
        what others may be kept waiting for."""

    def open(self) -> AssistantState:
        """An empty sequence."""
