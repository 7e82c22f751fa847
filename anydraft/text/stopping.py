"""Stop strings in streamed text."""

from __future__ import annotations

from collections.abc import Sequence

from anydraft.errors import InvalidRequestError


class StopMatcher:
    """Finds the first stop string in text that comes in parts, however it was cut.

    First is the one that is complete first; of those that end at the same character, the longest.
    That makes the result depend on the text alone: no later text can change it.

    Text may be pushed that takes part in the matching and is not shown as it is: special tokens,
    which users do not see and stop strings may name.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise InvalidRequestError(
                "A stop string is empty. Leave it out.", reason="STOP_STRING_EMPTY"
            )
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=1)
        self._held = ""
        self._shows: list[str] = []
        """What is shown for each character of `_held`."""
        self._passed = 0
        """How many characters are no longer held."""
        self.matched: str | None = None
        """The stop string that ended the text."""
        self.matched_at = 0
        """Where it begins, in characters of all text pushed."""

    def push(self, text: str, shown: str | None = None) -> tuple[str, str | None]:
        """Text that is safe to show, and the stop string that ended it. Text that may become a
        stop string is held back; after a match there is no more text.

        `shown` is what a user sees of `text` when that is something else, "" for nothing. It is
        not cut: it is shown when no stop string begins before the last character of `text`.
        """
        if self.matched is not None:
            return "", self.matched
        at_once = self._hold(text, shown)
        first = min(
            (
                (start + len(stop), start, stop)
                for stop in self._stops
                if (start := self._held.find(stop)) >= 0
            ),
            default=None,
        )
        if first is not None:
            _, start, self.matched = first
            self.matched_at = self._passed + start
            safe = at_once + self._release(start)
            self.flush()
            return safe, self.matched
        return at_once + self._release(self._possible_start()), None

    def reveal(self, start: int, shows: Sequence[str]) -> str:
        """Shows what was hidden when it was pushed: `shows` for each character from `start` of all
        text on. Returns what of it is safe to show; the rest is held back in its place. After a
        match, what stands before the stop string is all there is to show."""
        if self.matched is not None:
            return "".join(shows[: max(self.matched_at - start, 0)])
        safe = max(self._passed - start, 0)
        for at, shown in enumerate(shows[safe:], start=start + safe - self._passed):
            self._shows[at] = shown
        return "".join(shows[:safe])

    def flush(self) -> str:
        """What was held back, once it is known that no more text comes."""
        return self._release(len(self._held))

    def _hold(self, text: str, shown: str | None) -> str:
        """Holds `text`; returns what is shown for no text while nothing is held."""
        self._held += text
        if shown is None or shown == text:
            self._shows += text
        elif text:
            self._shows += [""] * (len(text) - 1) + [shown]
        elif self._shows:
            self._shows[-1] += shown
        else:
            return shown
        return ""

    def _release(self, size: int) -> str:
        """What is shown for the first `size` characters that are held, which are no more then."""
        safe = "".join(self._shows[:size])
        self._held, self._shows = self._held[size:], self._shows[size:]
        self._passed += size
        return safe

    def _possible_start(self) -> int:
        """Where the longest ending of what is held begins that a stop string starts with."""
        whole = self._held
        for start in range(max(0, len(whole) - self._longest + 1), len(whole)):
            if any(stop.startswith(whole[start:]) for stop in self._stops):
                return start
        return len(whole)
