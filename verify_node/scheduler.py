"""Our own `Target`: continuous batching of drafts over one model.

A step is hear -> plan -> run -> commit, on one thread, which alone holds the sessions. Their owners
leave word in the inbox; nothing in a step waits for them or for the network.

Faults stay where they happen. What goes wrong for one session ends that session; when the model
itself no longer runs, or the thread cannot go on, all sessions end with an error and `stopped`
holds it: nobody is left waiting.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from anydraft.errors import AnydraftError, InternalError, UnavailableError
from verify_node.accept import Accepted, accept
from verify_node.admission import Admission, AdmissionLimits
from verify_node.draft_policy import DraftPolicy
from verify_node.inbox import Inbox, Mail, SessionHandle
from verify_node.kv_memory import KvMemory
from verify_node.kv_pool import KvPool
from verify_node.runners.base import ModelRunner, Row
from verify_node.sampling_settings import ScoredToken
from verify_node.scheduled_session import ScheduledSession, SessionState
from verify_node.step_cost import StepCost
from verify_node.step_planner import PlannedRow, StepPlan, StepPlanner
from verify_node.target import (
    Block,
    SessionListener,
    TargetFacts,
    TargetRequest,
    TargetSession,
)
from verify_node.token_chooser import score_token
from verify_node.turn_record import TurnRecord

_log = logging.getLogger(__name__)


MAX_WAITING = 64
MAX_WAIT_S = 30.0
BLOCK_TOKENS = 16
"""Of memory for keys and values: with heads of 64 numbers in fp32, of 128 in bf16, those of one
head are a page of memory."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    kv_tokens: int
    """Tokens in the memory of all sessions together, prompts and answers, and of what is kept of
    those that have ended; rounded up to blocks."""
    max_sessions: int
    """Open at once; those that are parked count."""
    max_step_tokens: int
    """New tokens in one forward."""
    max_waiting: int = MAX_WAITING
    """Sessions that wait for a place."""
    max_wait_s: float = MAX_WAIT_S
    """For which each of them does."""
    block_tokens: int = BLOCK_TOKENS
    """Of the pool that memory is taken from."""
    keeps_prefixes: bool = True
    """Whether what an ended session has computed is kept for those that begin as it does."""


class _TargetBrokenError(Exception):
    """The model does not even run a single token any more."""


class Scheduler:
    """See `verify_node.target.Target` for the contract."""

    def __init__(
        self, runner: ModelRunner, cost: StepCost, facts: TargetFacts, limits: SchedulerLimits
    ) -> None:
        self.runner = runner
        self.stopped: Future[None] = Future()
        self._cost = cost
        self._turn_record = TurnRecord(cost)
        self._facts = facts
        self._inbox: Inbox = Inbox()
        # From here on the step thread's own.
        self._planner = StepPlanner(cost, limits.max_step_tokens, takes_trees=runner.takes_trees)
        self._admission = Admission(
            AdmissionLimits(limits.max_sessions, limits.max_waiting, limits.max_wait_s)
        )
        self._memory = KvMemory(
            runner,
            KvPool(-(-limits.kv_tokens // limits.block_tokens), limits.block_tokens),
            most_tokens=facts.context_tokens,
            keeps_prefixes=limits.keeps_prefixes,
        )
        self._sessions: dict[SessionHandle, ScheduledSession] = {}
        """In the order in which they came: who came first is parked last."""
        self._afterwards: list[Callable[[], None]] = []
        """`Commit.afterwards` of this step."""
        self._thread = threading.Thread(target=self._run, name="target-steps", daemon=True)
        self._thread.start()

    @property
    def facts(self) -> TargetFacts:
        return self._facts

    @property
    def num_sessions(self) -> int:
        """How many sessions have a place at the moment."""
        return self._admission.num_sessions

    @property
    def kv_tokens(self) -> int:
        """What those have memory for."""
        return self._memory.tokens_held

    @property
    def num_waiting(self) -> int:
        """How many sessions wait for a place."""
        return self._admission.num_waiting

    def check(self) -> None:
        """RuntimeError when memory is not accounted for. On the step thread, or once it ended."""
        self._memory.check(self._placed)

    def open(
        self, request: TargetRequest, listener: Callable[[TargetSession], SessionListener]
    ) -> TargetSession:
        handle = SessionHandle(self._inbox, request)
        handle.listener = listener(handle)
        if not self._inbox.open(handle):
            handle.listener.failed(_shutting_down())
        return handle

    def close(self) -> None:
        self._inbox.end()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # The step thread.

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while self._turn():
                pass
        except BaseException as error:  # whatever it is, sessions must not be left waiting
            _log.critical("the target cannot go on; all its sessions end", exc_info=error)
            failure = error
        self._inbox.end()
        ending = _shutting_down() if failure is None else _cannot_go_on(failure)
        for handle in list(self._sessions):
            self._fail(handle, ending)
        self._memory.close()
        for handle, mail in self._inbox.rest().items():
            if mail.opened and not mail.closed:
                _tell_failed(handle.listener, ending)
        if failure is None:
            self.stopped.set_result(None)
        else:
            self.stopped.set_exception(ending)

    def _turn(self) -> bool:
        """One step, if there is anything to run; False when the target is closing."""
        mail = self._inbox.take(self._due_at())
        if mail is None:
            return False
        for handle, news in mail.items():
            self._hear(handle, news)
        for session in self._admission.expired(time.perf_counter()):
            self._fail(session.handle, self._admission.waited_too_long())
        self._fill()
        plan = self._plan(time.perf_counter())
        if plan.rows:
            self._step(plan)
        return True

    @property
    def _placed(self) -> list[ScheduledSession]:
        """Those that steps may run, the first come first."""
        return [session for session in self._sessions.values() if session.has_place]

    def _due_at(self) -> float | None:
        """When there is something to do, by `time.perf_counter`; None while there is no session.

        Nobody waits for a draft beside others: who waits falls out of step with them, and steps
        carry fewer sessions.
        """
        placed = self._placed
        if len(placed) != 1:
            return 0.0 if self._sessions else None
        (session,) = placed
        try:
            due_at = session.due_at()
        except BaseException as error:
            self._fail(session.handle, error)
            return self._due_at()
        expires_at = self._admission.due_at()
        return due_at if expires_at is None else min(due_at, expires_at)

    def _hear(self, handle: SessionHandle, mail: Mail) -> None:
        try:
            if mail.opened and not mail.closed:
                self._enter(handle)
            session = self._sessions.get(handle)
            if session is None:
                return
            if mail.closed:
                self._release(handle, keep=True)
            else:
                session.hear(mail, self._facts.vocabulary_size)
        except BaseException as error:
            self._fail(handle, error)

    def _enter(self, handle: SessionHandle) -> None:
        """A place, or one in the line."""
        self._memory.check_fits(handle.request.kv_tokens)
        now = time.perf_counter()
        session = ScheduledSession(handle, DraftPolicy(self._cost, self._turn_record), now)
        self._sessions[handle] = session
        self._admission.join(session, now)
        self._fill()
        self._admission.check_length()

    def _fill(self) -> None:
        """Places sessions for which there is room: those that are parked first, the first come
        first. Nobody overtakes: a large one would wait for ever."""
        while (session := self._next_to_place()) is not None:
            is_new = session.is_waiting
            try:
                cached = self._memory.place(session, self._placed, time.perf_counter())
                if cached is None:
                    return
                if is_new:
                    self._admission.admit(session)
                    session.handle.listener.opened(cached)
            except BaseException as error:
                self._fail(session.handle, error)

    def _next_to_place(self) -> ScheduledSession | None:
        is_parked = SessionState.PARKED
        parked = (session for session in self._sessions.values() if session.state is is_parked)
        return next(parked, None) or self._admission.first()

    def _grow(self) -> None:
        """Memory for what the next step adds. Where there is none, the session that came last is
        parked: the first always goes on, and when it ends there is room for others."""
        placed = self._placed
        for session in placed:
            while session.has_place and not self._memory.grow(session, session.num_committed):
                self._memory.release(self._placed[-1], keep=False)
        for session in placed:
            if session.has_place and session.draft:
                self._memory.grow(session, session.num_tokens_with_draft)

    def _plan(self, now: float) -> StepPlan:
        placed = self._placed
        due_at = self._due_at() if placed else None
        if due_at is None or due_at > now:
            return StepPlan()
        self._grow()
        placed = self._placed
        reading = [session for session in placed if session.is_reading]
        running = [session for session in placed if not session.is_reading]
        plan = self._planner.plan(running, reading, now)
        for session, fault in plan.failed:
            self._fail(session.handle, fault)
        return plan

    def _step(self, plan: StepPlan) -> None:
        lengths = [planned.row.cache.length for planned in plan.rows]
        started = time.perf_counter()
        try:
            logits = self.runner.forward([planned.row for planned in plan.rows])
        except Exception as error:
            self._recover(plan.rows, lengths, error)
            return
        step_ms = (time.perf_counter() - started) * 1e3
        self._planner.observe(plan, step_ms)
        for planned, of_row in zip(plan.rows, logits, strict=True):
            alone_ms = self._planner.calibrated_ms_without(planned, plan)
            self._settle(planned, of_row, step_ms, alone_ms)
        self._call_afterwards()

    def _call_afterwards(self) -> None:
        due, self._afterwards = self._afterwards, []
        for call in due:
            call()

    def _recover(
        self, rows: Sequence[PlannedRow], lengths: Sequence[int], error: Exception
    ) -> None:
        """One session's fault must not end the others: run each alone, end the one at fault."""
        _log.warning("a step failed (%s); its sessions are run one by one", error)
        for planned, length in zip(rows, lengths, strict=True):
            handle = planned.session.handle
            try:
                planned.row.cache.truncate(length)
                if len(rows) == 1:
                    raise error
                started = time.perf_counter()
                logits = self.runner.forward([planned.row])[0]
            except BaseException as its_own:
                self._fail(handle, its_own)
                self._require_working_target()
            else:
                self._settle(planned, logits, (time.perf_counter() - started) * 1e3, None)
                self._call_afterwards()

    def _require_working_target(self) -> None:
        """Some faults stay (a GPU's, say): better no node than one that fails every session."""
        cache = self.runner.new_cache(1)
        try:
            self.runner.forward([Row(cache, [0], 1)])
        except Exception as error:
            raise _TargetBrokenError from error
        finally:
            cache.close()

    def _settle(
        self, planned: PlannedRow, logits: torch.Tensor, step_ms: float, alone_ms: float | None
    ) -> None:
        """`alone_ms`: what the step was measured to take at start-up without the session's draft;
        None when that says nothing of this step."""
        session = planned.session
        try:
            if planned.row.num_logits:
                self._commit(planned, logits, step_ms, alone_ms)
            else:
                session.ready_at = time.perf_counter()
        except BaseException as error:  # a tokenizer's panic is no Exception
            self._fail(session.handle, error)

    def _commit(
        self, planned: PlannedRow, logits: torch.Tensor, step_ms: float, alone_ms: float | None
    ) -> None:
        session, draft = planned.session, planned.draft
        num_before = session.cache.length - planned.num_tokens
        now = time.perf_counter()
        try:
            accepted = accept(
                logits,
                [token.token_id for token in draft],
                [token.parent for token in draft],
                session.chooser,
                session.answer_ids,
            )
        except InternalError:
            if not draft:
                raise
            session.go_on_without_draft(num_before, now)
            return
        ids, path = accepted.token_ids, accepted.path
        session.policy.checked(draft, path, was_awaited=session.was_awaited)
        if session.answer_ids and not planned.reads_prompt:  # that round is the prompt's
            round_ms = (now - session.ready_at) * 1e3
            session.policy.committed(len(ids), round_ms)
            session.policy.bore(len(path), planned.growth)
            if alone_ms is not None:
                session.policy.judge(
                    len(path), was_checked=bool(draft), ms=round_ms, alone_ms=alone_ms
                )
        draft_room = session.room_behind(len(ids), now)
        block = Block(
            token_ids=tuple(ids),
            scores=_scores(logits, accepted, session.request.num_logprobs),
            num_drafted=len(draft),
            num_accepted=len(path),
            newest_piece=session.newest_piece if draft else 0,
            draft_room=draft_room,
            step_ms=step_ms,
            wait_ms=planned.wait_ms,
            num_beside=planned.num_beside,
            turn_ms=session.turn_ms if draft_room else 0.0,
        )
        kept = session.handle.listener.commit(block)
        if kept.afterwards is not None:
            self._afterwards.append(kept.afterwards)
        # The target's own token is cached by the next step.
        num_uncached = planned.num_tokens - len(draft)
        slots = [*range(num_uncached), *(num_uncached + index for index in path)]
        kept_ids = block.token_ids[: kept.num_tokens]
        session.commit(kept_ids, num_before, slots[: num_uncached + len(kept_ids) - 1], now)
        if kept.reason is not None:
            self._release(session.handle, keep=True)
        elif kept.offer is not None:
            session.take(kept.offer, self._facts.vocabulary_size)

    def _fail(self, handle: SessionHandle, error: BaseException) -> None:
        self._call_afterwards()  # nothing that is told of an answer may come behind its end
        self._release(handle, keep=False)
        if not isinstance(error, AnydraftError):
            _log.error("a session failed", exc_info=error)
            error = _failed_on_session(error)
        _tell_failed(handle.listener, error)

    def _release(self, handle: SessionHandle, *, keep: bool) -> None:
        """Ends a session and frees what it has; see `KvMemory.release`."""
        session = self._sessions.pop(handle, None)
        if session is None:
            return
        session.is_finished = True
        self._admission.leave(session)
        self._memory.release(session, keep=keep)


def _tell_failed(listener: SessionListener, error: AnydraftError) -> None:
    # A traceback holds on to the step's tensors for as long as somebody holds on to the error.
    error = error.with_traceback(None)
    try:
        listener.failed(error)
    except BaseException:
        _log.exception("a session's listener failed")


def _shutting_down() -> UnavailableError:
    return UnavailableError(
        "this verify node is shutting down. Try another one.", reason="SHUTTING_DOWN"
    )


def _failed_on_session(error: BaseException) -> InternalError:
    return InternalError(
        f"the target failed on this session ({type(error).__name__}). See the verify node's log.",
        reason="TARGET_FAILED",
    )


def _cannot_go_on(error: BaseException) -> InternalError:
    return InternalError(
        f"the target cannot go on ({type(error.__cause__ or error).__name__}), and its node stops. "
        "Ask again when it is back, and see its log.",
        reason="TARGET_STOPPED",
    )


def _scores(
    logits: torch.Tensor, accepted: Accepted, num_top: int | None
) -> tuple[ScoredToken, ...]:
    if num_top is None:
        return ()
    return tuple(
        score_token(logits[position], token_id, num_top)
        for position, token_id in zip(accepted.positions, accepted.token_ids, strict=True)
    )
