"""What turns have brought in all sessions: what the next one may expect of its drafter.

Drafters that take turns run on the target's own cores, so they are one assistant. A session that
had to find out by itself that it is of no use would pay for that each time, with a prompt that is
read for nothing as well.
"""

from __future__ import annotations

from verify_node.step_cost import StepCost

_WEIGHT = 0.1
"""Of a new turn in running means: about ten turns, a part of an answer."""
_MOST_SAVED = 0.2
"""Of the rest of an answer, that reading may take: what drafts save where they gain a quarter."""
_LEAST_SAVED = 0.05
"""The same where drafts are not expected to save anything, and are tried all the same."""
_LEAST_TURNS = 6
"""Before they are judged: a session that gives its drafter up has seen four, and two begin."""
_FIRST_TRY_SESSIONS = 4
"""That were passed over before one tries again; doubles."""
_MOST_TRY_SESSIONS = 64


class TurnRecord:
    """Of one node."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._brings = 1.0
        self._takes_ms: float | None = None
        self._num_turns = 0
        self._passed_over = 0
        self._tries_after = _FIRST_TRY_SESSIONS

    def worth_ms(self, brings: float) -> float:
        """How long a turn may take whose step accepts so many draft tokens."""
        checking_ms = self._cost.ms(1 + round(2 * brings))
        return max((1 + brings) * self._cost.ms(1) - checking_ms, 0.0)

    @property
    def saves(self) -> float:
        """The share of an answer's time that reading its prompt may take."""
        if self._takes_ms is None:
            return _MOST_SAVED
        alone_ms = (1 + self._brings) * self._cost.ms(1)
        share = (self.worth_ms(self._brings) - self._takes_ms) / alone_ms
        return min(max(share, _LEAST_SAVED), _MOST_SAVED)

    def next_session(self) -> float | None:
        """The tokens that a turn is expected to bring to a session that begins; None when it better
        does without turns."""
        takes_ms = self._takes_ms
        is_new = self._num_turns < _LEAST_TURNS
        if is_new or takes_ms is None or takes_ms < self.worth_ms(self._brings):
            self._passed_over, self._tries_after = 0, _FIRST_TRY_SESSIONS
            return self._brings
        self._passed_over += 1
        if self._passed_over <= self._tries_after:
            return None
        self._passed_over = 0
        self._tries_after = min(2 * self._tries_after, _MOST_TRY_SESSIONS)
        return 1.0

    def took(self, ms: float) -> None:
        """A turn took so long."""
        self._takes_ms = ms if self._takes_ms is None else _mean(self._takes_ms, ms)

    def brought(self, num_accepted: int) -> None:
        """A step that was delayed for a turn accepted so many draft tokens."""
        self._num_turns += 1
        self._brings = _mean(self._brings, num_accepted)


def _mean(old: float, new: float) -> float:
    return old + _WEIGHT * (new - old)
