"""Whether drafting makes a session faster: tried out, not assumed.

A session is drafted for at first. Once a while has been seen, it goes without for a few rounds, if
the gain is not plain; the faster way wins. While drafting loses, it is tried again after ever
longer pauses, because text changes.
"""

from __future__ import annotations

_ROUNDS_WITH = 12
"""Rounds with drafts before they are judged."""
_ROUNDS_WITHOUT = 4
"""Rounds without drafts that tell the target's own speed."""
_FIRST_PAUSE_ROUNDS = 24
_MAX_PAUSE_ROUNDS = 768
_SURE_GAIN = 1.25
"""Gains above this are not questioned; below it, drafting must prove itself against a pause."""


class DraftTrial:
    """Of one session; rounds are steps that committed something."""

    def __init__(self, rate_without: float) -> None:
        """`rate_without`: tokens per millisecond that the target is expected to do by itself."""
        self.drafts_wanted = True
        self._tokens = 0
        self._ms = 0.0
        self._rounds = 0
        self._rate_with = 0.0
        self._rate_without = rate_without
        self._pause_rounds = _FIRST_PAUSE_ROUNDS

    def observe(self, num_tokens: int, ms: float) -> None:
        """A round committed `num_tokens` tokens, `ms` milliseconds after the round before it."""
        self._rounds += 1
        if self._rounds == 1:  # began under the other regime: drafts that were still on their way
            return
        self._tokens += num_tokens
        self._ms += ms
        if self.drafts_wanted:
            self._judge_drafting()
        else:
            self._judge_pause()

    def _judge_drafting(self) -> None:
        if self._rounds <= _ROUNDS_WITH:
            return
        self._rate_with = self._tokens / max(self._ms, 1e-6)
        self._begin(drafts_wanted=self._rate_with > _SURE_GAIN * self._rate_without)

    def _judge_pause(self) -> None:
        if self._rounds <= _ROUNDS_WITHOUT:
            return
        self._rate_without = self._tokens / max(self._ms, 1e-6)
        if self._rate_with > self._rate_without:
            self._pause_rounds = _FIRST_PAUSE_ROUNDS
            self._begin(drafts_wanted=True)
        elif self._rounds > self._pause_rounds:
            self._pause_rounds = min(2 * self._pause_rounds, _MAX_PAUSE_ROUNDS)
            self._begin(drafts_wanted=True)

    def _begin(self, *, drafts_wanted: bool) -> None:
        self.drafts_wanted = drafts_wanted
        self._tokens, self._ms, self._rounds = 0, 0.0, 0
