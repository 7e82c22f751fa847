"""Our own `Target`: continuous batching of drafts over one model.

A step is schedule -> run -> commit, on one thread. Sessions that have something to run (a chunk of
a prompt, or the last committed token and perhaps draft tokens behind it) share one forward; nothing
in a step waits for the network.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from anydraft.errors import InternalError, ResourceExhaustedError, UnavailableError
from verify_node.accept import accept
from verify_node.draft_policy import DraftPolicy
from verify_node.runners.base import ModelRunner, Row
from verify_node.sampling_settings import ScoredToken
from verify_node.step_cost import StepCost
from verify_node.target import (
    Commit,
    DraftToken,
    SessionListener,
    TargetFacts,
    TargetRequest,
    TargetSession,
)
from verify_node.token_chooser import TokenChooser, score_token

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    kv_tokens: int
    """Tokens that all open sessions together may come to hold, prompts and answers."""
    max_sessions: int
    max_step_tokens: int
    """New tokens in one forward; long prompts are fed in chunks of what is left of it."""


class _Session:
    """One answer in the making. Everything but the offered draft belongs to the step thread."""

    def __init__(self, owner: Scheduler, request: TargetRequest) -> None:
        self._owner = owner
        self.request = request
        self.listener: SessionListener
        self.cache = owner.runner.new_cache()
        self.chooser = TokenChooser(request.sampling, request.prompt_ids, request.eos_ids)
        self.policy = DraftPolicy(owner.cost)
        self.answer_ids: list[int] = []
        self.closed = False
        self.ready_at = time.perf_counter()
        """When the session could have taken its next step."""
        # Guarded by the owner's condition.
        self.draft: tuple[DraftToken, ...] = ()
        self.drafter_alive = request.expects_drafts
        self.declined_at = -1
        """The length of the answer behind which the drafter has nothing to say."""

    @property
    def reserved_tokens(self) -> int:
        return len(self.request.prompt_ids) + self.request.max_new_tokens

    @property
    def num_committed(self) -> int:
        return len(self.request.prompt_ids) + len(self.answer_ids)

    @property
    def awaits_draft(self) -> bool:
        """Whether a draft may be on its way. The first token is never delayed for one."""
        if not (self.drafter_alive and self.answer_ids and self.draft_room):
            return False
        return not self.draft and self.declined_at != len(self.answer_ids)

    @property
    def draft_room(self) -> int:
        """Draft tokens worth having; none while the session is faster without."""
        return self.room if self.policy.drafts_wanted else 0

    @property
    def room(self) -> int:
        """Draft tokens that a step may still check: the last of an answer is the target's own."""
        return max(self.request.max_new_tokens - len(self.answer_ids) - 1, 0)

    def uncached_ids(self) -> list[int]:
        """Committed ids that the cache does not hold yet; one or more."""
        start, num_prompt = self.cache.length, len(self.request.prompt_ids)
        if start >= num_prompt:
            return self.answer_ids[start - num_prompt :]
        return [*self.request.prompt_ids[start:], *self.answer_ids]

    def offer(self, num_committed: int, draft: Sequence[DraftToken]) -> None:
        self._owner.offer(self, num_committed, draft)

    def decline(self, num_committed: int) -> None:
        self._owner.decline(self, num_committed)

    def expect_drafts(self, expected: bool) -> None:
        self._owner.expect_drafts(self, expected)

    def close(self) -> None:
        self._owner.release(self)


@dataclass(slots=True)
class _Planned:
    session: _Session
    row: Row
    draft: tuple[DraftToken, ...]
    waited_ms: float


class Scheduler:
    """See `verify_node.target.Target` for the contract."""

    def __init__(
        self, runner: ModelRunner, cost: StepCost, facts: TargetFacts, limits: SchedulerLimits
    ) -> None:
        self.runner = runner
        self.cost = cost
        self._facts = facts
        self._limits = limits
        self._changed = threading.Condition()
        self._sessions: list[_Session] = []
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="target-steps", daemon=True)
        self._thread.start()

    @property
    def facts(self) -> TargetFacts:
        return self._facts

    # Called by sessions' owners, on any thread.

    def open(
        self, request: TargetRequest, listener: Callable[[TargetSession], SessionListener]
    ) -> TargetSession:
        session = _Session(self, request)
        session.listener = listener(session)
        with self._changed:
            if self._closing:
                raise UnavailableError(
                    "this verify node is shutting down. Try another one.", reason="SHUTTING_DOWN"
                )
            self._admit(session)
            self._sessions.append(session)
            self._changed.notify()
        return session

    def _admit(self, session: _Session) -> None:
        need = session.reserved_tokens
        held = sum(other.reserved_tokens for other in self._sessions)
        if need > self._limits.kv_tokens:
            raise ResourceExhaustedError(
                f"prompt and answer may take {need} tokens, but the KV cache holds "
                f"{self._limits.kv_tokens}. Ask for fewer new tokens, or start the node with a "
                "larger --kv-tokens.",
                reason="KV_TOO_SMALL",
            )
        if len(self._sessions) >= self._limits.max_sessions or held + need > self._limits.kv_tokens:
            raise ResourceExhaustedError(
                f"the node is full: {len(self._sessions)} sessions hold {held} of "
                f"{self._limits.kv_tokens} KV tokens, this one needs {need}. Try again shortly, or "
                "start the node with larger --max-sessions and --kv-tokens.",
                reason="NODE_FULL",
                retry_after_s=1.0,
            )

    def offer(self, session: _Session, num_committed: int, draft: Sequence[DraftToken]) -> None:
        with self._changed:
            if num_committed != len(session.answer_ids) or session.closed:
                return
            usable = _in_vocabulary(draft, self._facts.vocabulary_size)
            from_step = threading.current_thread() is self._thread
            if usable and not session.draft and not from_step:
                session.policy.arrived((time.perf_counter() - session.ready_at) * 1e3)
            session.draft = usable
            self._changed.notify()

    def decline(self, session: _Session, num_committed: int) -> None:
        with self._changed:
            session.declined_at = num_committed
            self._changed.notify()

    def expect_drafts(self, session: _Session, expected: bool) -> None:
        with self._changed:
            session.drafter_alive = expected
            self._changed.notify()

    def release(self, session: _Session) -> None:
        with self._changed:
            session.closed = True
            if session in self._sessions:
                self._sessions.remove(session)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # The step thread.

    def _loop(self) -> None:
        while (plan := self._wait_for_work()) is not None:
            self._step(plan)
        for session in list(self._sessions):
            self._fail(
                session,
                UnavailableError(
                    "this verify node is shutting down. Try another one.", reason="SHUTTING_DOWN"
                ),
            )

    def _wait_for_work(self) -> list[_Planned] | None:
        with self._changed:
            while not self._closing:
                now = time.perf_counter()
                runnable, wake_at = self._runnable(now)
                if runnable:
                    return self._plan(runnable, now)
                self._changed.wait(None if wake_at is None else max(wake_at - now, 1e-4))
        return None

    def _runnable(self, now: float) -> tuple[list[_Session], float | None]:
        """Sessions to run now, and when the first of the others will wait no longer."""
        runnable: list[_Session] = []
        wake_at: float | None = None
        for session in self._sessions:
            wait_ms = session.policy.max_wait_ms() if session.awaits_draft else 0.0
            until = session.ready_at + wait_ms / 1e3
            if until <= now:
                runnable.append(session)
            else:
                wake_at = until if wake_at is None else min(wake_at, until)
        return runnable, wake_at

    def _plan(self, runnable: Sequence[_Session], now: float) -> list[_Planned]:
        plan: list[_Planned] = []
        left = self._limits.max_step_tokens
        # Those that wait longest first: a long prompt must not starve the others, nor they it.
        for session in sorted(runnable, key=lambda s: s.ready_at):
            if left <= 0:
                break
            planned = self._plan_one(session, left, self._limits.max_step_tokens - left, now)
            left -= len(planned.row.token_ids)
            plan.append(planned)
        return plan

    def _plan_one(self, session: _Session, left: int, others: int, now: float) -> _Planned:
        token_ids = session.uncached_ids()
        waited_ms = (now - session.ready_at) * 1e3 if session.answer_ids else 0.0
        if session.awaits_draft and session.policy.max_wait_ms() > 0:
            session.policy.waited_in_vain(waited_ms)
        if len(token_ids) > left:
            return _Planned(session, Row(session.cache, token_ids[:left], 0), (), waited_ms)
        draft = session.draft[: min(left - len(token_ids), session.room)]
        others += len(token_ids) - 1
        count = session.policy.num_to_check([token.probability for token in draft], others)
        draft = draft[:count]
        row = Row(session.cache, [*token_ids, *(t.token_id for t in draft)], 1 + len(draft))
        return _Planned(session, row, draft, waited_ms)

    def _step(self, plan: Sequence[_Planned]) -> None:
        lengths = [planned.row.cache.length for planned in plan]
        started = time.perf_counter()
        try:
            logits = self.runner.forward([planned.row for planned in plan])
        except Exception as error:
            self._recover(plan, lengths, error)
            return
        step_ms = (time.perf_counter() - started) * 1e3
        self.cost.observe(sum(len(planned.row.token_ids) for planned in plan), step_ms)
        for planned, rows in zip(plan, logits, strict=True):
            self._settle(planned, rows, step_ms)

    def _recover(self, plan: Sequence[_Planned], lengths: Sequence[int], error: Exception) -> None:
        """One session's fault must not end the others: run each alone, end the one at fault."""
        for planned, length in zip(plan, lengths, strict=True):
            planned.row.cache.truncate(min(length, planned.row.cache.length))
        if len(plan) > 1:
            for planned in plan:
                self._step([planned])
            return
        _log.error("the target failed on a session", exc_info=error)
        self._fail(
            plan[0].session,
            InternalError(
                f"the target failed on this session ({type(error).__name__}). "
                "See the verify node's log.",
                reason="TARGET_FAILED",
            ),
        )

    def _settle(self, planned: _Planned, logits: torch.Tensor, step_ms: float) -> None:
        session = planned.session
        try:
            if planned.row.num_logits and not session.closed:
                self._commit(planned, logits, step_ms)
        except Exception as error:
            _log.exception("a session failed while committing")
            self._fail(session, error)

    def _commit(self, planned: _Planned, logits: torch.Tensor, step_ms: float) -> None:
        session = planned.session
        draft_ids = [token.token_id for token in planned.draft]
        accepted = accept(logits, draft_ids, session.chooser, session.answer_ids)
        cut = session.listener.cut(accepted.token_ids)
        token_ids = accepted.token_ids[: cut.num_tokens]
        now = time.perf_counter()
        since_last_ms = (now - session.ready_at) * 1e3
        with self._changed:
            session.answer_ids.extend(token_ids)
            session.draft = ()
            session.ready_at = now
        session.cache.truncate(session.num_committed - 1)
        probabilities = [token.probability for token in planned.draft]
        session.policy.committed(probabilities, accepted.num_accepted, since_last_ms)
        if cut.reason is not None:
            self.release(session)
        session.listener.committed(
            Commit(
                token_ids=tuple(token_ids),
                scores=_scores(logits, token_ids, session.request.num_logprobs),
                num_drafted=len(draft_ids),
                num_accepted=min(accepted.num_accepted, len(token_ids)),
                reason=cut.reason,
                draft_room=session.draft_room,
                step_ms=step_ms,
                wait_ms=planned.waited_ms,
            )
        )

    def _fail(self, session: _Session, error: Exception) -> None:
        self.release(session)
        try:
            session.listener.failed(error)
        except Exception:
            _log.exception("a session's listener failed")


def _in_vocabulary(draft: Sequence[DraftToken], size: int) -> tuple[DraftToken, ...]:
    for index, token in enumerate(draft):
        if not 0 <= token.token_id < size:
            return tuple(draft[:index])
    return tuple(draft)


def _scores(
    logits: torch.Tensor, token_ids: Sequence[int], num_top: int | None
) -> tuple[ScoredToken, ...]:
    if num_top is None:
        return ()
    return tuple(
        score_token(row, token_id, num_top)
        for row, token_id in zip(logits[: len(token_ids)], token_ids, strict=True)
    )
