"""Stop strings in streamed text."""

from __future__ import annotations

from collections.abc import Sequence

from anydraft.errors import InvalidRequestError


class StopMatcher:
    """Finds the first stop string in text that comes in parts, however it was cut.

    First is the one that is complete first; of those that end at the same character, the longest.
    That makes the result depend on the text alone: no later text can change it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise InvalidRequestError(
                "A stop string is empty. Leave it out.", reason="STOP_STRING_EMPTY"
            )
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str) -> tuple[str, str | None]:
        """Text that is safe to show, and the stop string that ended it. Text that may become a
        stop string is held back; after a match there is no more text."""
        if self.matched is not None:
            return "", self.matched
        whole = self._held + text
        first = min(
            (
                (start + len(stop), start, stop)
                for stop in self._stops
                if (start := whole.find(stop)) >= 0
            ),
            default=None,
        )
        if first is not None:
            _, start, self.matched = first
            self._held = ""
            return whole[:start], self.matched
        keep = self._possible_start(whole)
        self._held = whole[keep:]
        return whole[:keep], None

    def flush(self) -> str:
        """What was held back, once it is known that no more text comes."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, whole: str) -> int:
        """Where the longest ending of `whole` begins that a stop string starts with."""
        longest = max(map(len, self._stops), default=1) - 1
        for start in range(max(0, len(whole) - longest), len(whole)):
            if any(stop.startswith(whole[start:]) for stop in self._stops):
                return start
        return len(whole)
