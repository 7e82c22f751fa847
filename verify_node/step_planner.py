"""What one step runs: running sessions first with the draft tokens that are worth their cost, then
prompts in what is left of a bounded step.

A step lasts as long as the gap that every running session sees in its text, so prompts that are
read beside them get only as many tokens as may lengthen it. With nobody running, a step is as
large as it may be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from verify_node.draft_tree import Draft, best_path, part, within_depth
from verify_node.runners.base import Row
from verify_node.scheduled_session import ScheduledSession
from verify_node.step_cost import PromptCost, StepCost

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


_Likely = tuple[float, int, int]
"""A draft token: its reach, negative so that the likeliest comes first, row of the plan, index in
the session's draft. Sorted, a token still comes behind its parent."""


@dataclass(slots=True)
class PlannedRow:
    """What one session runs in a step."""

    session: ScheduledSession
    row: Row
    draft: Draft = ()
    """The draft tokens at the end of the row, their parents counted among themselves."""
    wait_ms: float = 0.0
    num_beside: int = 0
    """Other rows of the step."""
    growth: float = 0.0
    """How much longer the step is expected to be for all drafts in it, as a share."""
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

    def __init__(self, cost: StepCost, max_step_tokens: int, *, takes_trees: bool) -> None:
        """`takes_trees`: whether the runner does; else, of each draft, its best path is checked."""
        self._takes_trees = takes_trees
        self._cost = cost
        self._prompt_cost = PromptCost(cost)
        self._max_tokens = max_step_tokens

    def plan(
        self,
        running: Sequence[ScheduledSession],
        reading: Sequence[ScheduledSession],
        now: float,
    ) -> StepPlan:
        """`running` and `reading` are those that are due, by `time.perf_counter`."""
        plan = StepPlan()
        reserve = min(_RESERVED_PROMPT_TOKENS, self._max_tokens // 2) if reading else 0
        left = self._max_tokens - reserve
        alone = len(running) + len(reading) == 1
        likely: list[_Likely] = []
        # Those that wait longest first: there may be more of them than tokens in a step.
        for session in sorted(running, key=lambda s: s.ready_at)[:left]:
            try:
                wait_ms = session.begin_step(now, alone=alone)
                row = Row(session.cache, session.uncached_ids(1), 1)
                likely += self._likely(session, len(plan.rows))
            except BaseException as error:  # one session's fault, also when it is a panic of Rust
                plan.failed.append((session, error))
                continue
            plan.rows.append(PlannedRow(session, row, wait_ms=wait_ms))
        self._add_drafts(plan, likely, left - len(plan.rows))
        tokens = self._tokens_for_prompts(plan.num_tokens, anybody_runs=bool(plan.rows))
        self._read(plan, sorted(reading, key=lambda s: s.ready_at), tokens)
        for planned in plan.rows:
            planned.num_beside = len(plan.rows) - 1
        return plan

    def _likely(self, session: ScheduledSession, at: int) -> list[_Likely]:
        """The draft tokens that the session's row, the plan's row `at`, may check."""
        draft = session.draft
        if not draft:
            return []
        reaches = session.policy.reaches(draft)
        indices = within_depth(draft, session.room)
        if not self._takes_trees:
            indices = best_path(draft, reaches, indices)
        return [(-reaches[index], at, index) for index in indices]

    def _add_drafts(self, plan: StepPlan, likely: list[_Likely], left: int) -> None:
        """The likeliest draft tokens of all sessions, as long as the step is expected to give more
        tokens a second with them; maximises (expected tokens) / (time of the step). Of several
        sessions none pays for the others: what a step lasts longer must be in the credit of each,
        or in what its own tokens there are expected to save."""
        if not likely:
            return
        likely.sort()
        num_rows = len(plan.rows)
        alone_ms = self._cost.ms(num_rows)
        worth, best_rate = 0, num_rows / alone_ms
        expected = float(num_rows)
        may_lose = [planned.session.policy.credit for planned in plan.rows]
        least = min(may_lose) if num_rows > 1 else math.inf
        for count, (against, at, _) in enumerate(likely[:left], start=1):
            expected -= against
            may_lose[at] -= against
            ms = self._cost.ms(num_rows + count)
            if expected / ms <= best_rate:
                continue
            growth = ms / alone_ms - 1
            if growth <= least or growth <= min(may_lose):
                worth, best_rate = count, expected / ms
        chosen: list[list[int]] = [[] for _ in plan.rows]
        for _, at, index in likely[:worth]:
            chosen[at].append(index)
        for _, at, index in likely[worth:left]:
            # The first of a row that has none: a token without a parent.
            if not chosen[at] and plan.rows[at].session.policy.probe_is_due(num_rows):
                chosen[at].append(index)
        for planned, indices in zip(plan.rows, chosen, strict=True):
            if indices:
                _add_draft(planned, sorted(indices)[: planned.session.slots])
        growth = self._cost.ms(plan.num_tokens) / alone_ms - 1
        for planned in plan.rows:
            planned.growth = growth

    def observe(self, plan: StepPlan, ms: float) -> None:
        """The step took `ms`."""
        prompt_tokens = plan.num_prompt_tokens
        if not prompt_tokens:
            self._cost.observe(plan.num_tokens, ms)
            return
        # A step that reads prompts says nothing of t_v: the text before them decides its time.
        without_ms = self._cost.ms(max(plan.num_tokens - prompt_tokens, 1))
        self._prompt_cost.observe(prompt_tokens, ms - without_ms)

    def calibrated_ms_without(self, planned: PlannedRow, plan: StepPlan) -> float | None:
        """What the step took at start-up, less the draft of one row; None when it reads prompts,
        whose cost depends on the text before them."""
        if plan.num_prompt_tokens:
            return None
        return self._cost.calibrated_ms(plan.num_tokens - len(planned.draft))

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


def _add_draft(planned: PlannedRow, indices: Sequence[int]) -> None:
    session, row = planned.session, planned.row
    draft = part(session.draft, indices)
    # In the row, the last committed token stands before the draft.
    parents = [-1, *(token.parent + 1 for token in draft)]
    is_chain = all(parent == at - 1 for at, parent in enumerate(parents))
    planned.draft = draft
    planned.row = Row(
        row.cache,
        [*row.token_ids, *(token.token_id for token in draft)],
        1 + len(draft),
        None if is_chain else parents,
    )


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
