"""What a drafter asks of an assistant model. Engines know ids and logits; no text, no tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]


class AssistantState(Protocol):
    """One sequence and its KV cache. Belongs to one session; used by one thread at a time."""

    @property
    def length(self) -> int:
        """Tokens that the cache holds."""

    def feed(self, ids: Sequence[int]) -> Logits:
        """Appends one id or more; returns the logits `[vocab_size]` after the last of them.

        The array is the caller's. Raises ContextFullError when the sequence would outgrow
        `context_tokens`, and InternalError for no ids or ids outside the vocabulary; the cache is
        then as it was.
        """

    def truncate(self, length: int) -> None:
        """Cuts the sequence to its first `length` ids, `0 <= length <= self.length`.

        Exact: what is fed afterwards sees what it would see had the rest never been fed. Raises
        InternalError for another length.
        """

    def close(self) -> None:
        """Frees the cache. Idempotent; `feed` and `truncate` raise InternalError from then on."""


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

    def open(self) -> AssistantState:
        """An empty sequence."""
