"""Prompt lookup where the text repeats itself, the assistant everywhere else."""

from __future__ import annotations

from dataclasses import dataclass, field

from anydraft.v1.prompt_pb2 import Prompt
from draft_node.drafters.base import Drafter, DraftStream, Piece
from draft_node.drafters.lookup import LookupDrafter, LookupStream

MIN_MATCH_BYTES = 24
"""Shorter matches are right less often than an assistant is."""


@dataclass(frozen=True)
class CombinedDrafter:
    """See `draft_node.drafters.base.Drafter`."""

    assistant: Drafter
    lookup: LookupDrafter = field(default_factory=lambda: LookupDrafter(MIN_MATCH_BYTES))

    @property
    def description(self) -> str:
        return f"{self.assistant.description}, {self.lookup.description}"

    def open(self, prompt: Prompt) -> CombinedStream:
        return CombinedStream(self.lookup.open(prompt), self.assistant.open(prompt))


class CombinedStream:
    """Decides at every restart who drafts next. See `draft_node.drafters.base.DraftStream`."""

    def __init__(self, lookup: LookupStream, assistant: DraftStream) -> None:
        self._lookup = lookup
        self._assistant = assistant
        self._current: DraftStream = assistant
        self._restarted = True

    @property
    def idle(self) -> bool:
        return not self._restarted and self._current.idle

    def step(self) -> Piece | None:
        if self._restarted:
            self._current = self._lookup if self._lookup.find() else self._assistant
            self._restarted = False
        return self._current.step()

    def commit(self, text: str, *, restart: bool) -> None:
        # Whoever did not draft hears text that it did not foresee.
        for stream in (self._lookup, self._assistant):
            stream.commit(text, restart=restart or stream is not self._current)
        self._restarted = self._restarted or restart

    def close(self) -> None:
        self._lookup.close()
        self._assistant.close()
