"""Promise 2, never slower than the target alone, for one session: what its drafts are worth.

The record of a session's drafts says how far their own probabilities are to be believed
(`reaches`), whether to wait for one, and, last of all, whether to do without (`DraftTrial`). Which
drafts are checked in a step is decided between sessions, by `StepPlanner`.
"""

from __future__ import annotations

from collections.abc import Sequence

from verify_node.draft_trial import DraftTrial
from verify_node.draft_turns import DraftTurns
from verify_node.step_cost import StepCost
from verify_node.target import DraftToken
from verify_node.turn_record import TurnRecord

_MEMORY = 0.95
"""How much of the record stays with each position that was checked. About twenty positions, some
ten rounds, are remembered: text changes its kind within an answer; a ratio of fewer is noise."""
_WEIGHT = 0.2
"""Of a new round in running means of rounds; about five rounds, so half of what `_MEMORY` keeps:
when a network changes, waiting must follow soon."""
_MOST_CERTAIN = 0.98
"""No draft token is believed to be surer, so that a deep path is never free of doubt."""
_PROBE_SHARE = 0.01
"""Of all steps' time, for checking drafts that are not believed, of all sessions together: a third
of what a useless assistant may cost."""
_BORNE_A_ROUND = 0.02
"""Of a step: how much longer one may become, on the average, for drafts that bring a session
nothing, its own and those of others. With the probes' `_PROBE_SHARE` these are the 3 percent that
drafting may cost anybody."""
_BORNE_AT_FIRST = 0.5
"""The same in steps, once, until a session's drafts have shown what they bring."""


class DraftPolicy:
    """The record of one session's drafts."""

    def __init__(self, cost: StepCost, turn_record: TurnRecord | None = None) -> None:
        """`turn_record`: what turns have brought in other sessions."""
        self._cost = cost
        self._trial = DraftTrial()
        self.turns = DraftTurns(cost, turn_record or TurnRecord(cost))
        """Of a drafter that takes turns; of any other, `arrived` and `waited_in_vain` tell."""
        self._expected = 1.0
        self._observed = 1.0
        self._rounds_without = 0
        self._brings = 1.0
        """Tokens that were accepted of drafts which had just come, a round; taken to be one until
        that is known."""
        self._tokens_per_ms = 1.0 / cost.ms(1)
        self._arrival_ms: float | None = None
        self._has_arrived = False
        self.credit = _BORNE_AT_FIRST
        """How many steps' time the session may still lose to steps that are longer for drafts: what
        its own have saved, and a little."""

    def reaches(self, draft: Sequence[DraftToken]) -> list[float]:
        """How likely each token of a tree and all before it are, by what the record says: on each
        path they fall."""
        trust = self._observed / self._expected
        believed: list[float] = []
        for token in draft:
            if token.parent < 0:
                believed.append(min(token.reach * trust, _MOST_CERTAIN))
                continue
            of_parent = draft[token.parent].reach
            alone = token.reach / of_parent if of_parent > 0 else 0.0
            believed.append(believed[token.parent] * min(alone * trust, _MOST_CERTAIN))
        return believed

    def probe_is_due(self, num_sessions: int) -> bool:
        """Whether to check the likeliest token of a draft that is not worth it, as one of so many
        sessions: whoever is never checked is never believed again."""
        added = self._cost.ms(num_sessions + 1) / self._cost.ms(num_sessions) - 1
        due_after = added * num_sessions / _PROBE_SHARE
        return self._trial.is_probing or self._rounds_without >= due_after

    def max_wait_ms(self) -> float:
        """How long a step without a draft is worth delaying for one that is on its way.

        A draft that has just come brings as many tokens as those before it did, and the wait costs
        tokens at the present rate. 0 while no draft has come that fast: one that comes during the
        step is not lost, but used in the next.
        """
        if not self._trial.drafts_wanted or self._arrival_ms is None:
            return 0.0
        checking_ms = self._cost.ms(2) - self._cost.ms(1)
        worth = self._brings / self._tokens_per_ms - checking_ms
        return worth if self._arrival_ms < worth else 0.0

    def arrived(self, delay_ms: float) -> None:
        """A usable draft came this long after the session could have used one."""
        if self._has_arrived:
            self._expect_arrival(delay_ms)
        # The first one tells how long the drafter took to read the prompt, no more.
        self._has_arrived = True

    def waited_in_vain(self, waited_ms: float) -> None:
        """A session gave up waiting: its draft takes longer, say twice as long."""
        self._expect_arrival(2 * waited_ms)

    def _expect_arrival(self, delay_ms: float) -> None:
        if self._arrival_ms is None:
            self._arrival_ms = delay_ms
        else:
            self._arrival_ms += _WEIGHT * (delay_ms - self._arrival_ms)

    def checked(
        self, draft: Sequence[DraftToken], path: Sequence[int], *, was_awaited: bool
    ) -> None:
        """A step checked this tree, and accepted the tokens at these indices of it; `was_awaited`:
        it came, or the drafter was done, after the step could have been taken."""
        if was_awaited:
            self.turns.brought(len(path))
        if not draft:
            self._rounds_without += 1
            return
        self._rounds_without = 0
        if was_awaited:
            self._brings += _WEIGHT * (len(path) - self._brings)
        # What hangs elsewhere says nothing: the target never got to answer it.
        reached, of_parent = -1, 1.0
        for accepted in [*path, None]:
            together = sum(token.reach for token in draft if token.parent == reached)
            if accepted is None and together == 0.0:
                break
            self._expected = _MEMORY * self._expected
            self._expected += min(together / of_parent, 1.0) if of_parent > 0 else 0.0
            self._observed = _MEMORY * self._observed + (accepted is not None)
            if accepted is not None:
                reached, of_parent = accepted, draft[accepted].reach

    def bore(self, num_accepted: int, growth: float) -> None:
        """A step was longer by `growth` of itself for all that it checked, and accepted so many
        tokens of this session's draft."""
        self.credit += num_accepted + _BORNE_A_ROUND - growth

    def committed(self, num_tokens: int, ms: float) -> None:
        """A round gave `num_tokens` tokens, `ms` after the one before it."""
        rate = num_tokens / max(ms, 1e-6)
        self._tokens_per_ms += _WEIGHT * (rate - self._tokens_per_ms)

    def judge(self, num_accepted: int, *, was_checked: bool, ms: float, alone_ms: float) -> None:
        """That round took `ms`, and would have taken `alone_ms` without this session's draft."""
        self._trial.observe(num_accepted, was_checked=was_checked, steps=ms / max(alone_ms, 1e-6))

    @property
    def drafts_wanted(self) -> bool:
        """Whether the drafter should go on drafting for this session."""
        return self._trial.drafts_wanted
