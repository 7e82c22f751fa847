"""A drafter is anything that turns text into likely next text."""

from __future__ import annotations

from typing import Protocol

from anydraft.text.tree import TextTree
from anydraft.v1.prompt_pb2 import Prompt


class DraftStream(Protocol):
    """The drafting of one session: it grows the session's tree below the committed text.

    Calls never overlap, but come from different threads. `grow` may take a while and runs on the
    drafting thread; the rest is quick. Whoever opened a stream closes it.
    """

    @property
    def idle(self) -> bool:
        """Whether `grow` has nothing more to do until the next `commit`."""

    @property
    def needs_ms(self) -> float:
        """Of a stream that drafts in turn with the target and is idle: how long a turn it would
        need, to read first; 0 where its turn was long enough."""

    def commit(self, text: str, *, turn_ms: float) -> None:
        """Text was committed, after the tree has heard of it; empty when only room was made.
        `turn_ms`: how long a stream that drafts in turn may do so now."""

    def worth(self, tree: TextTree) -> float:
        """What the next `grow` is worth beside those of other sessions: the chance that what it
        adds lies on the way of the answer, 0 to 1. Asked on the drafting thread."""

    def grow(self, tree: TextTree, limit: int) -> None:
        """One pass: hangs at most `limit` new pieces, `limit >= 1`, below the committed text or
        what is held; none when work of another kind was done (part of the prompt was read) or the
        stream has become idle. The tree belongs to this session alone, and to this call while it
        runs; between calls it has been told of commits, and other drafters may have hung pieces."""

    def close(self) -> None:
        """Frees what the stream holds (a KV cache). Idempotent, on the drafting thread; nothing
        else is called from then on."""


class Drafter(Protocol):
    """What all sessions of a node share."""

    @property
    def description(self) -> str:
        """For people."""

    def open(self, prompt: Prompt, *, in_turn: bool = False, tenant: str = "") -> DraftStream:
        """Quick: reading the prompt is left to the first passes. `in_turn`: the session drafts on
        the target's cores, while that waits. `tenant`: whose it is; what is kept of it serves no
        other."""
