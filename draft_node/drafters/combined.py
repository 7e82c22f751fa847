"""Prompt lookup where the text repeats itself, and the assistant beside it in the same tree."""

from __future__ import annotations

from dataclasses import dataclass, field

from anydraft.text.tree import TextTree
from anydraft.v1.prompt_pb2 import Prompt
from draft_node.drafters.base import Drafter, DraftStream
from draft_node.drafters.lookup import LookupDrafter, LookupStream


@dataclass(frozen=True)
class CombinedDrafter:
    """See `draft_node.drafters.base.Drafter`."""

    assistant: Drafter
    lookup: LookupDrafter = field(default_factory=LookupDrafter)

    @property
    def description(self) -> str:
        return f"{self.assistant.description}, {self.lookup.description}"

    def open(self, prompt: Prompt, *, in_turn: bool = False, tenant: str = "") -> CombinedStream:
        assistant = self.assistant.open(prompt, in_turn=in_turn, tenant=tenant)
        return CombinedStream(self.lookup.open(prompt, tenant=tenant), assistant)


class CombinedStream:
    """After every commit lookup first, which costs nothing; then the assistant, unless lookup was
    sure. See `draft_node.drafters.base.DraftStream`."""

    def __init__(self, lookup: LookupStream, assistant: DraftStream) -> None:
        self._lookup = lookup
        self._assistant = assistant

    @property
    def idle(self) -> bool:
        return self._lookup.idle and (self._lookup.is_sure or self._assistant.idle)

    @property
    def needs_ms(self) -> float:
        return self._assistant.needs_ms

    def commit(self, text: str, *, turn_ms: float) -> None:
        self._lookup.commit(text, turn_ms=turn_ms)
        self._assistant.commit(text, turn_ms=turn_ms)

    def worth(self, tree: TextTree) -> float:
        return (self._assistant if self._lookup.idle else self._lookup).worth(tree)

    def grow(self, tree: TextTree, limit: int) -> None:
        if not self._lookup.idle:
            held = tree.num_pieces
            self._lookup.grow(tree, limit)
            if self.idle or tree.num_pieces > held:
                return
        self._assistant.grow(tree, limit)

    def close(self) -> None:
        self._lookup.close()
        self._assistant.close()
