"""A drafter is anything that turns text into likely next text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from anydraft.v1.prompt_pb2 import Prompt


@dataclass(frozen=True, slots=True)
class Piece:
    """The text of one step of a drafter, at the end of which the verifier may cut."""

    text: str
    """Whole characters; empty while a character is unfinished."""
    logprob: float
    """Natural logarithm of how likely the drafter thinks it is."""
    ends: bool = False
    """The answer ends here; the text is empty."""


class DraftStream(Protocol):
    """The drafting of one session. Its text is prompt + committed text + its own draft.

    Calls never overlap, but come from different threads. `step` may take a while and runs on a
    drafting thread; the rest is quick. Whoever opened a stream closes it.
    """

    @property
    def idle(self) -> bool:
        """Whether `step` has nothing more to say until the draft is restarted."""

    def step(self) -> Piece | None:
        """The piece that follows the draft so far. None when there was none this time: work of
        another kind was done (part of the prompt was read), or the stream has become idle.
        """

    def commit(self, text: str, *, restart: bool) -> None:
        """Text was committed. Without `restart` it is the head of the draft, which goes on from its
        end; with it, the draft is dropped and the next one follows the committed text.
        """

    def close(self) -> None:
        """Frees what the stream holds (a KV cache). Idempotent, on the drafting thread; nothing
        else is called from then on."""


class Drafter(Protocol):
    """What all sessions of a node share."""

    @property
    def description(self) -> str:
        """For people."""

    def open(self, prompt: Prompt) -> DraftStream:
        """Quick: reading the prompt is left to the first steps."""
