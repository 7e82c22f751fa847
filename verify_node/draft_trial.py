"""Whether drafting makes a session faster: the last resort, after not waiting and not checking.

What is left then is a drafter that slows the target down itself, by taking cores from it. That no
estimate can know, so it is tried out: drafting pauses where its rounds bring nothing, or cost more
than they bring, and is tried again after ever longer pauses, because text changes. Times are
counted in what the target was measured to take alone at start-up, with the machine to itself; what
it takes alone now, a pause tells.
"""

from __future__ import annotations

import math
from collections import deque

_WINDOW_ROUNDS = 48
"""Rounds with drafts that are judged together, the newest: most of a usual answer, as one round
says little."""
_MIN_ROUNDS = 8
"""Rounds with drafts before they are judged. An assistant that is right half of the time is taken
for a useless one in 1 of 256 cases."""
_PROBE_ROUNDS = 4
"""The same after a pause, where it has failed once already; how many rounds without drafts tell the
target's own speed."""
_LEAST_GAIN = 0.03
"""Tokens a round below which drafts are taken to bring nothing: what a useless assistant may
cost."""
_FIRST_PAUSE_ROUNDS = 24
_MAX_PAUSE_ROUNDS = 384
"""Pauses double. `_PROBE_ROUNDS` of the first, at a fifth lost each, stay near `_LEAST_GAIN`."""


class DraftTrial:
    """Of one session; rounds are steps that committed something."""

    def __init__(self) -> None:
        self.drafts_wanted = True
        self._alone = 1.0
        """Steps that a round without drafts takes."""
        self._alone_holds = 0
        self._with: deque[tuple[int, float]] = deque(maxlen=_WINDOW_ROUNDS)
        """Accepted tokens and steps of each round."""
        self._checked: deque[int] = deque(maxlen=_WINDOW_ROUNDS)
        """Accepted tokens of the rounds that checked a draft."""
        self._without: list[float] = []
        self._pause_rounds = _FIRST_PAUSE_ROUNDS
        self._min_rounds = _MIN_ROUNDS
        self._switched = True

    @property
    def is_probing(self) -> bool:
        """Whether drafting is being tried again: its drafts must be checked to tell."""
        return self.drafts_wanted and self._min_rounds == _PROBE_ROUNDS

    def observe(self, num_accepted: int, *, was_checked: bool, steps: float) -> None:
        """A round committed `num_accepted` tokens of a draft, if one `was_checked`, and one more;
        it took as long as `steps` without a draft are expected to."""
        if self._switched:  # began under the other regime: drafts that were still on their way
            self._switched = False
        elif self.drafts_wanted:
            self._with.append((num_accepted, steps))
            self._alone_holds -= 1
            if self._alone_holds <= 0:
                self._alone = 1.0
            if was_checked:
                self._checked.append(num_accepted)
            self._judge_drafting()
        else:
            self._without.append(steps)
            self._judge_pause()

    def _judge_drafting(self) -> None:
        if self._is_useless() or (len(self._with) >= self._min_rounds and self._loses()):
            self._without.clear()
            self._switch(drafts_wanted=False)
        elif len(self._checked) >= _MIN_ROUNDS:
            self._min_rounds, self._pause_rounds = _MIN_ROUNDS, _FIRST_PAUSE_ROUNDS

    def _judge_pause(self) -> None:
        if len(self._without) < _PROBE_ROUNDS:
            return
        self._alone = sum(self._without) / len(self._without)
        self._alone_holds = _WINDOW_ROUNDS
        if not self._is_useless() and not self._loses():
            self._switch(drafts_wanted=True)
        elif len(self._without) >= self._pause_rounds:
            self._pause_rounds = min(2 * self._pause_rounds, _MAX_PAUSE_ROUNDS)
            self._min_rounds = _PROBE_ROUNDS
            self._with.clear()
            self._checked.clear()
            self._switch(drafts_wanted=True)

    def _is_useless(self) -> bool:
        num_checked = len(self._checked)
        return num_checked >= self._min_rounds and sum(self._checked) < _LEAST_GAIN * num_checked

    def _loses(self) -> bool:
        """Whether drafting costs time, beyond two standard errors of what it saves in a round: by
        bad luck, an assistant that gains half loses beyond one in the first rounds of one answer in
        six."""
        saved = [(1 + accepted) * self._alone - steps for accepted, steps in self._with]
        mean = sum(saved) / len(saved)
        if mean >= 0:
            return False
        variance = sum((s - mean) ** 2 for s in saved) / (len(saved) - 1)
        return mean + 2 * math.sqrt(variance / len(saved)) < 0

    def _switch(self, *, drafts_wanted: bool) -> None:
        self.drafts_wanted = drafts_wanted
        self._switched = True
