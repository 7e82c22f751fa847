"""Promise 2, never slower than the target alone: how much of a draft to check, how long to wait.

Decided by expected tokens per second, from the drafts' own probabilities, what became of this
session's earlier drafts, and the cost of a step (`StepCost`). What no estimate can know, such as a
drafter that takes the cores away from the target, is measured: `DraftTrial`.
"""

from __future__ import annotations

from collections.abc import Sequence

from verify_node.draft_trial import DraftTrial
from verify_node.step_cost import StepCost

_MEMORY = 0.95
"""How much of the record stays with each checked token: about twenty tokens' worth."""
_PROBE_EVERY_ROUNDS = 16
"""A session whose drafts are not worth checking still has one token checked this often."""
_MAX_PROBABILITY = 0.98


class DraftPolicy:
    """The record of one session's drafts."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._trial = DraftTrial(cost.calibrated_ms(1))
        self._expected = 1.0
        self._observed = 1.0
        self._rounds_without = 0
        self._tokens_per_draft = 2.5
        self._arrival_ms: float | None = None
        self._has_arrived = False

    def num_to_check(self, probabilities: Sequence[float], other_tokens: int) -> int:
        """How many of the draft tokens to check in a step with `other_tokens` of other sessions.

        Maximises (expected tokens of this session and the others) / (time of the step).
        """
        if not probabilities:
            return 0
        if self._rounds_without >= _PROBE_EVERY_ROUNDS:
            return 1
        trust = self._observed / self._expected
        best, best_rate = 0, (1 + other_tokens) / self._cost.ms(1 + other_tokens)
        reach, tokens = 1.0, 1.0 + other_tokens
        for checked, probability in enumerate(probabilities, start=1):
            reach *= min(probability * trust, _MAX_PROBABILITY)
            tokens += reach
            rate = tokens / self._cost.ms(1 + checked + other_tokens)
            if rate > best_rate:
                best, best_rate = checked, rate
        return best

    def max_wait_ms(self) -> float:
        """How long a step without a draft is worth delaying for one that is on its way.

        Waiting w and then checking pays while (w + t_v(E)) / E < t_v(1), with E the tokens that a
        step with a draft has been bringing. 0 when drafts have been arriving too late for that.
        """
        if not self._trial.drafts_wanted:
            return 0.0
        step, tokens = self._cost.ms(1), self._tokens_per_draft
        worth = tokens * step - self._cost.ms(round(tokens) + 1)
        if self._arrival_ms is not None and self._arrival_ms > worth:
            return 0.0
        return max(worth, 0.0)

    def arrived(self, delay_ms: float) -> None:
        """A usable draft came this long after the session could have used one."""
        if self._has_arrived:
            self._expect_arrival(delay_ms)
        else:
            # The first one tells how long the drafter took to read the prompt, no more.
            self._has_arrived, self._arrival_ms = True, None

    def waited_in_vain(self, waited_ms: float) -> None:
        """A session gave up waiting: its draft takes longer, say twice as long."""
        self._expect_arrival(2 * waited_ms)

    def _expect_arrival(self, delay_ms: float) -> None:
        if self._arrival_ms is None:
            self._arrival_ms = delay_ms
        else:
            self._arrival_ms += 0.2 * (delay_ms - self._arrival_ms)

    def committed(self, probabilities: Sequence[float], num_accepted: int, ms: float) -> None:
        """A step checked draft tokens of these probabilities, and committed `num_accepted` of them
        and one more token, `ms` after the commit before it.
        """
        self._trial.observe(num_accepted + 1, ms)
        if not probabilities:
            self._rounds_without += 1
            return
        self._rounds_without = 0
        self._tokens_per_draft += 0.2 * (num_accepted + 1 - self._tokens_per_draft)
        # Tokens behind the first rejection say nothing: the target never got to answer them.
        for position, probability in enumerate(probabilities[: num_accepted + 1]):
            self._expected = _MEMORY * self._expected + probability
            self._observed = _MEMORY * self._observed + (position < num_accepted)

    @property
    def drafts_wanted(self) -> bool:
        """Whether the drafter should go on drafting for this session."""
        return self._trial.drafts_wanted
