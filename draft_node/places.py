"""How many sessions draft on this node at once: each holds a KV cache, and memory ends somewhere.

A place is taken when a stream is opened and given back once it is closed, so what is counted is
what is held, however sessions end.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from anydraft.errors import ResourceExhaustedError
from anydraft.text.tree import TextTree
from anydraft.v1.prompt_pb2 import Prompt
from draft_node.drafters.base import Drafter, DraftStream

DEFAULT_MAX_SESSIONS = 64
"""As many as a verify node has open, unless told otherwise."""


class Places:
    """Of one node. Taken on its event loop, given back on its drafting thread."""

    def __init__(self, limit: int = DEFAULT_MAX_SESSIONS) -> None:
        self.limit = limit
        self._num_taken = 0
        self._lock = threading.Lock()

    @property
    def num_taken(self) -> int:
        return self._num_taken

    def take(self) -> None:
        """Raises ResourceExhaustedError when none is left."""
        with self._lock:
            if self._num_taken >= self.limit:
                raise ResourceExhaustedError(
                    f"this draft node drafts {self.limit} sessions at once, and has as many. Try "
                    "again, ask another one, or start it with a larger --max-sessions.",
                    reason="DRAFTER_FULL",
                    retry_after_s=1.0,
                )
            self._num_taken += 1

    def give_back(self) -> None:
        with self._lock:
            self._num_taken -= 1


@dataclass(frozen=True)
class BoundedDrafter:
    """A drafter whose sessions need a place. See `draft_node.drafters.base.Drafter`."""

    drafter: Drafter
    places: Places

    @property
    def description(self) -> str:
        return self.drafter.description

    def open(self, prompt: Prompt, *, in_turn: bool = False, tenant: str = "") -> DraftStream:
        """Raises ResourceExhaustedError when there is no place."""
        self.places.take()
        try:
            stream = self.drafter.open(prompt, in_turn=in_turn, tenant=tenant)
        except BaseException:
            self.places.give_back()
            raise
        return _PlacedStream(stream, self.places)


class _PlacedStream:
    def __init__(self, stream: DraftStream, places: Places) -> None:
        self._stream = stream
        self._places = places
        self._has_place = True

    @property
    def idle(self) -> bool:
        return self._stream.idle

    @property
    def needs_ms(self) -> float:
        return self._stream.needs_ms

    def commit(self, text: str, *, turn_ms: float) -> None:
        self._stream.commit(text, turn_ms=turn_ms)

    def worth(self, tree: TextTree) -> float:
        return self._stream.worth(tree)

    def grow(self, tree: TextTree, limit: int) -> None:
        self._stream.grow(tree, limit)

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            if self._has_place:
                self._has_place = False
                self._places.give_back()
