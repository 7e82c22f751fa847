"""What one step runs: running sessions first, prompts in what is left of a bounded step.

A step lasts as long as the gap that every running session sees in its text, so prompts that are
read beside them get only as many tokens as may lengthen it. With nobody running, a step is as
large as it may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from verify_node.runners.base import Row
from verify_node.scheduled_session import ScheduledSession
from verify_node.step_cost import PromptCost, StepCost
from verify_node.target import DraftToken

_STRETCH = 1.0
"""How much longer a step may become by reading prompts, as a share of what it takes without. Twice
as long leaves what steps vary by themselves: a gap of three times the usual is the promise."""
_LEAST_PROMPT_TOKENS = 2
"""Of all prompts together, in every step: however slow the target, prompts get read."""
_RESERVED_PROMPT_TOKENS = 8
"""The same, of a step that drafts would fill."""
_LEAST_SHARE = 8
"""Tokens of one prompt in a step, where there are several: each costs a step once what attention
takes to read the text before it, so fewer prompts take turns rather than all take part."""


@dataclass(slots=True)
class PlannedRow:
    """What one session runs in a step."""

    session: ScheduledSession
    row: Row
    draft: tuple[DraftToken, ...] = ()
    """The draft tokens at the end of the row."""
    wait_ms: float = 0.0
    reads_prompt: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.row.token_ids)


@dataclass(slots=True)
class StepPlan:
    rows: list[PlannedRow] = field(default_factory=list)
    failed: list[tuple[ScheduledSession, BaseException]] = field(default_factory=list)
    """Sessions that could not be planned; the others do not depend on them."""

    @property
    def num_tokens(self) -> int:
        return sum(planned.num_tokens for planned in self.rows)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(planned.num_tokens for planned in self.rows if planned.reads_prompt)


class StepPlanner:
    """Chooses rows; the caches and the committed ids stay as they are."""

    def __init__(self, cost: StepCost, max_step_tokens: int) -> None:
        self._cost = cost
        self._prompt_cost = PromptCost(cost)
        self._max_tokens = max_step_tokens

    def plan(
        self,
        running: Sequence[ScheduledSession],
        reading: Sequence[ScheduledSession],
        now: float,
        *,
        others_run: bool,
    ) -> StepPlan:
        """`running` and `reading` are those that are due, by `time.perf_counter`; `others_run`
        says that further sessions are running, but wait for drafts in this step."""
        plan = StepPlan()
        reserve = min(_RESERVED_PROMPT_TOKENS, self._max_tokens // 2) if reading else 0
        left = self._max_tokens - reserve
        # Those that wait longest first: there may be more of them than tokens in a step.
        for session in sorted(running, key=lambda s: s.ready_at):
            if left <= 0:
                break
            try:
                planned = _run(session, left, plan.num_tokens, now)
            except BaseException as error:  # one session's fault, also when it is a panic of Rust
                plan.failed.append((session, error))
                continue
            left -= planned.num_tokens
            plan.rows.append(planned)
        anybody_runs = bool(plan.rows) or others_run
        tokens = self._tokens_for_prompts(plan.num_tokens, anybody_runs=anybody_runs)
        self._read(plan, sorted(reading, key=lambda s: s.ready_at), tokens)
        return plan

    def observe(self, plan: StepPlan, ms: float) -> None:
        """The step took `ms`."""
        prompt_tokens = plan.num_prompt_tokens
        if not prompt_tokens:
            self._cost.observe(plan.num_tokens, ms)
            return
        # A step that reads prompts says nothing of t_v: the text before them decides its time.
        without_ms = self._cost.ms(max(plan.num_tokens - prompt_tokens, 1))
        self._prompt_cost.observe(prompt_tokens, ms - without_ms)

    def _tokens_for_prompts(self, running_tokens: int, *, anybody_runs: bool) -> int:
        left = self._max_tokens - running_tokens
        if not anybody_runs:
            return left
        added_ms = _STRETCH * self._cost.ms(max(running_tokens, 1))
        return min(left, max(int(added_ms / self._prompt_cost.ms), _LEAST_PROMPT_TOKENS))

    def _read(self, plan: StepPlan, sessions: Sequence[ScheduledSession], tokens: int) -> None:
        # Those that had their turn last come last.
        sessions = sessions[: max(tokens // _LEAST_SHARE, 1)]
        wanted = [session.num_uncached for session in sessions]
        for session, share in zip(sessions, shares(wanted, tokens), strict=True):
            if not share:
                continue
            ids = session.uncached_ids(share)
            # Logits are needed of the last token only.
            row = Row(session.cache, ids, int(len(ids) == session.num_uncached))
            plan.rows.append(PlannedRow(session, row, reads_prompt=True))


def _run(session: ScheduledSession, left: int, others: int, now: float) -> PlannedRow:
    """The last committed token, and as much of the draft as is worth checking in a step that has
    `left` tokens left and already has `others` of other sessions."""
    wait_ms = session.begin_step(now)
    token_ids = session.uncached_ids(left)
    draft = session.draft[: min(left - len(token_ids), session.room)]
    probabilities = [token.probability for token in draft]
    draft = draft[: session.policy.num_to_check(probabilities, others)]
    ids = [*token_ids, *(token.token_id for token in draft)]
    return PlannedRow(session, Row(session.cache, ids, 1 + len(draft)), draft, wait_ms)


def shares(wanted: Sequence[int], tokens: int) -> list[int]:
    """`tokens` divided among sessions that want so many each: alike, and what one does not need
    goes to the others. Where there is not one for all, the first get one each."""
    given = [0] * len(wanted)
    left = min(len(wanted), max(tokens, 0))
    for index in sorted(range(left), key=lambda index: wanted[index]):
        given[index] = min(wanted[index], tokens // left)
        tokens -= given[index]
        left -= 1
    return given
