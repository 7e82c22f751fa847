"""What is learnt of one session's drafter where it takes turns with the target, on the same cores.

Beside a turn no step runs, and beside a step no turn: both at once are slower than one after the
other, and a step more so, since each thread that is held up delays all of them. So a drafter gets
credit only with a turn, and a turn only where it is expected to be worth its time. How drafts are
believed, and whether they are wanted at all, is for `DraftPolicy`.
"""

from __future__ import annotations

from verify_node.step_cost import StepCost
from verify_node.turn_record import TurnRecord

_WEIGHT = 0.2
"""Of a new turn in the running mean of what they take: about five turns."""
_BRINGS_WEIGHT = 0.1
"""The same of what they bring, which varies much more. With 0.2, assistants that gain a tenth to a
quarter lost a third of that to turns that were given up by bad luck (a simulation, 64 tokens); with
0.05, those of no use cost twice as much."""
_FIRST_TRY_TURNS = 16
"""That were not worth granting, before one is granted all the same, as text changes; doubles. One
in sixteen, half a step long, is what a useless assistant may cost."""
_READING_SHARE = 0.4
"""Of the time since the question came, which the drafter may take to read the prompt: how long the
answer will be is not known, and one that ends soon must not have paid for drafts that never
came."""
TURN_PATIENCE = 1.4
"""How much longer than a turn was to take the step waits for it: the drafter's clock starts when
the verdict has come, and a pass may end a little late. A turn that took all that it is worth would
bring nothing; 0.5B fp32 on two cores, whose turns were told so, gave up 1.3x for 1.0x."""
_LEAST_TURNS = 4
"""Before a drafter is judged: what one brings varies more than what it takes."""
_MARGIN = 1.25
"""How much longer than a reading was said to take its turn is: estimates vary."""


class DraftTurns:
    """The record of one session's turns."""

    def __init__(self, cost: StepCost, record: TurnRecord) -> None:
        """`record`: of the turns of all sessions; it hears of this session's."""
        self._cost = cost
        self._record = record
        self._brings: float | None = None
        """Tokens that were accepted of drafts that were waited for, a round; None until that is
        known, or no longer believed."""
        self._takes_ms: float | None = None
        """How long the drafter is at it; None as above."""
        self._num_brought = 0
        """Turns of which it is known what they brought."""
        self._needs_ms = 0.0
        """What the drafter must read before it can draft takes so long."""
        self._is_first = True
        """Whether the drafter has not been done with a turn yet: it reads the prompt in its
        first."""
        self._is_passed_over = False
        self._skipped = 0
        """Turns that were not granted since the last one was."""
        self._tries_after = _FIRST_TRY_TURNS

    def begin(self) -> None:
        """The target has read the prompt; turns may follow."""
        prior = self._record.next_session()
        self._is_passed_over = prior is None
        self._brings = prior

    def next_ms(self, since_asked_ms: float, tokens_left: int) -> float:
        """How long the turn behind the next verdict may take, for which the step waits a little
        longer (`TURN_PATIENCE`); 0: there is none. Asked once for each verdict.

        Waiting w and then checking pays while (w + t_v) / (1 + b) < t_T, with b the draft tokens
        that steps after a turn have been accepting, of about twice as many. Reading pays while it
        takes no more than drafts are expected to save in the rest of the answer.
        """
        if self._is_passed_over or tokens_left <= 0:
            return 0.0
        if not (self._is_first or self._needs_ms):
            return self._usual_ms()
        rest_ms = tokens_left * self._cost.ms(1)
        affordable = min(self._record.saves * rest_ms, _READING_SHARE * since_asked_ms)
        if not self._needs_ms:
            return affordable
        needs = _MARGIN * self._needs_ms
        return needs if needs <= affordable else 0.0

    def _usual_ms(self) -> float:
        worth = self._worth_ms()
        if self._takes_ms is None or self._takes_ms < worth:
            self._skipped = 0
            return worth / TURN_PATIENCE
        if self._num_brought < _LEAST_TURNS:
            return max(worth, self._record.worth_ms(1.0)) / TURN_PATIENCE
        self._skipped += 1
        if self._skipped < self._tries_after:
            return 0.0
        self._tries_after *= 2
        self._skipped, self._takes_ms, self._brings = 0, None, None
        return self._worth_ms() / TURN_PATIENCE

    def _worth_ms(self) -> float:
        brings = 1.0 if self._brings is None else self._brings
        return self._record.worth_ms(brings)

    def done(self, ms: float | None, *, needs_ms: float = 0.0) -> None:
        """The drafter was done so long after the step could have been taken; None: the step had
        been taken, which makes any turn long. `needs_ms`: it could not draft, since it has text to
        read first, which takes so long."""
        self._needs_ms = needs_ms
        if needs_ms:
            return
        # The first one tells how long the drafter took to read the prompt, no more.
        is_first, self._is_first = self._is_first, False
        if ms is not None and not is_first:
            self._expect(ms)
            self._record.took(ms)

    def waited_in_vain(self, waited_ms: float) -> None:
        """The step was taken before the drafter was done: say it takes twice as long."""
        if self._is_first or self._needs_ms:
            self._needs_ms = 2 * waited_ms
        else:
            self._expect(2 * waited_ms)

    def brought(self, num_accepted: int) -> None:
        """A step that was delayed for a turn accepted so many draft tokens."""
        self._num_brought += 1
        if self._brings is None:
            self._brings = float(num_accepted)
        else:
            self._brings += _BRINGS_WEIGHT * (num_accepted - self._brings)
        self._record.brought(num_accepted)

    def _expect(self, ms: float) -> None:
        if self._takes_ms is None:
            self._takes_ms = ms
        else:
            self._takes_ms += _WEIGHT * (ms - self._takes_ms)
