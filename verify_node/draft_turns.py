"""What is learnt of one session's drafter where it takes turns with the target, on the same cores.

Whether to wait for the drafter to be done is decided here; how drafts are believed, and whether
they are wanted at all, is for `DraftPolicy`.
"""

from __future__ import annotations

from verify_node.step_cost import StepCost

_WEIGHT = 0.2
"""Of a new turn in running means: about five turns."""
_FIRST_TRY_TURNS = 8
"""That nobody waited for, before waiting is tried again; doubles, so that waits in vain, of a step
at most, stay below one in ten and become rare."""
_FIRST_TURN_SHARE = 0.4
"""Of the time that the target took to read the prompt, which the drafter's first turn may take: it
reads for a part of that (`draft_node.drafters.thrift`), and makes its first passes."""
_WORTH_SHARE = 0.2
"""Of the time that the rest of the answer would take without drafts, the same: what drafting saves
where it gains a quarter."""


class DraftTurns:
    """The record of one session's turns."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._brings = 1.0
        """Tokens that were accepted of drafts that were waited for, a round; taken to be one until
        that is known."""
        self._takes_ms: float | None = None
        """How long the drafter is at it; None until that is known."""
        self._missed = 0
        """Turns since one was last waited for."""
        self._tries_after = _FIRST_TRY_TURNS
        self._has_begun = False
        self._first_ms = 0.0
        """How long the first turn is worth."""

    def prompt_read(self, took_ms: float, tokens_left: int) -> None:
        """The target has read the prompt in that time, and so many tokens may follow. Now the
        drafter reads it, on its first turn: beside a step, where each thread that is held up
        delays all of them, that costs much more."""
        worth = _WORTH_SHARE * tokens_left * self._cost.ms(1)
        self._first_ms = min(worth, _FIRST_TURN_SHARE * took_ms)

    def max_wait_ms(self) -> float:
        """How long a step is worth delaying for the drafter to be done.

        Waiting w and then checking pays while (w + t_v) / (1 + b) < t_T, with b the draft tokens
        that steps after a turn have been accepting, of about twice as many. 0 while turns take
        longer; that is tried again after ever more turns, since one that nobody waits for shows
        only how slow both are at once.
        """
        if not self._has_begun:
            return self._first_ms
        checking_ms = self._cost.ms(1 + round(2 * self._brings))
        worth = (1 + self._brings) * self._cost.ms(1) - checking_ms
        comes_in_time = self._takes_ms is None or self._takes_ms < worth
        return max(worth, 0.0) if comes_in_time else 0.0

    def done(self, ms: float | None) -> None:
        """The drafter was done so long after the step could have been taken; None: the step had
        been taken, which makes any turn long."""
        # The first one tells how long the drafter took to read the prompt, no more.
        is_first, self._has_begun = not self._has_begun, True
        if is_first:
            return
        if ms is not None:
            self._expect(ms)
            self._missed = 0
            return
        self._missed += 1
        if self._missed >= self._tries_after:
            self._tries_after *= 2
            self._missed, self._takes_ms, self._brings = 0, None, 1.0

    def waited_in_vain(self, waited_ms: float) -> None:
        """The step was taken before the drafter was done: say it takes twice as long."""
        if self._has_begun:
            self._expect(2 * waited_ms)
        self._first_ms = 0.0

    def brought(self, num_accepted: int) -> None:
        """A step that was delayed for a turn accepted so many draft tokens."""
        self._brings += _WEIGHT * (num_accepted - self._brings)

    def _expect(self, ms: float) -> None:
        if self._takes_ms is None:
            self._takes_ms = ms
        else:
            self._takes_ms += _WEIGHT * (ms - self._takes_ms)
