"""Whether drafting makes a session faster: tried out, not assumed.

Each round with drafts saves time or costs some: its tokens, at what the target takes for one by
itself, less the time that it took. Acceptance differs from round to round, so drafting is given up
only when the loss stands out of that noise. It is then tried again after ever longer pauses,
because text changes; a pause also tells how fast the target is alone, which is known only roughly
before the first.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean, stdev

_WINDOW_ROUNDS = 48
"""Rounds with drafts that are judged together, the newest."""
_MIN_ROUNDS = 8
"""Rounds with drafts before they are judged."""
_ALONE_ROUNDS = 4
"""Rounds without drafts that tell the target's own speed."""
_ALONE_HOLDS_ROUNDS = 64
"""For how many rounds with drafts that is believed: the load of the node changes."""
_FIRST_PAUSE_ROUNDS = 8
_MAX_PAUSE_ROUNDS = 768
_SURE_GAIN = 1.25
"""Gains above this are not questioned; below it, the target's own speed must be known."""


class DraftTrial:
    """Of one session; rounds are steps that committed something."""

    def __init__(self, alone_ms: float) -> None:
        """`alone_ms`: what the target is expected to take for a token by itself."""
        self.drafts_wanted = True
        self._expected_alone_ms = alone_ms
        self._alone_ms = alone_ms
        self._alone_holds = 0
        self._with: deque[tuple[int, float]] = deque(maxlen=_WINDOW_ROUNDS)
        self._without_ms: list[float] = []
        self._pause_rounds = _FIRST_PAUSE_ROUNDS
        self._switched = True

    def observe(self, num_tokens: int, ms: float) -> None:
        """A round committed `num_tokens` tokens, `ms` milliseconds after the round before it."""
        if self._switched:  # began under the other regime: drafts that were still on their way
            self._switched = False
        elif self.drafts_wanted:
            self._with.append((num_tokens, ms))
            self._alone_holds -= 1
            if self._alone_holds <= 0:
                self._alone_ms = self._expected_alone_ms
            self._judge_drafting()
        else:
            self._without_ms.append(ms / num_tokens)
            self._judge_pause()

    def _judge_drafting(self) -> None:
        if len(self._with) < _MIN_ROUNDS or self._gain() > _SURE_GAIN:
            return
        if self._alone_holds <= 0 or self._loses():
            self._without_ms.clear()
            self._switch(drafts_wanted=False)

    def _judge_pause(self) -> None:
        if len(self._without_ms) < _ALONE_ROUNDS:
            return
        self._alone_ms = fmean(self._without_ms)
        self._alone_holds = _ALONE_HOLDS_ROUNDS
        if not self._loses():
            self._pause_rounds = _FIRST_PAUSE_ROUNDS
            self._switch(drafts_wanted=True)
        elif len(self._without_ms) >= self._pause_rounds:
            self._pause_rounds = min(2 * self._pause_rounds, _MAX_PAUSE_ROUNDS)
            self._with.clear()
            self._switch(drafts_wanted=True)

    def _gain(self) -> float:
        """Tokens per second with drafts, as a multiple of those without."""
        tokens = sum(tokens for tokens, _ in self._with)
        return tokens * self._alone_ms / max(sum(ms for _, ms in self._with), 1e-6)

    def _loses(self) -> bool:
        """Whether drafting costs time, beyond one standard error of what it saves in a round."""
        saved = [tokens * self._alone_ms - ms for tokens, ms in self._with]
        return fmean(saved) + stdev(saved) / math.sqrt(len(saved)) < 0

    def _switch(self, *, drafts_wanted: bool) -> None:
        self.drafts_wanted = drafts_wanted
        self._switched = True
