"""One answer in the making, as the step thread sees it. Nobody else holds or touches it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from verify_node.draft_policy import DraftPolicy
from verify_node.draft_tree import Draft, behind, in_vocabulary
from verify_node.draft_turns import TURN_PATIENCE
from verify_node.inbox import Mail, SessionHandle
from verify_node.runners.base import NoCache, SessionCache
from verify_node.target import Offer
from verify_node.token_chooser import TokenChooser

MOST_DRAFT_TOKENS = 128
"""Held for one session. Behind the likeliest hundred, a token is hardly ever the right one; what
comes first is likelier."""
BRANCH_SLOTS = 32
"""Places in a session's cache beyond all that it may come to hold, for branches that are checked
near the end of the answer and do not hold."""


_NO_CACHE = NoCache()


class SessionState(Enum):
    WAITING = auto()
    """For a place; its owner has not heard of it yet."""
    PREFILLING = auto()
    """It has a place, and is reading its prompt, or all that it had when it was parked."""
    RUNNING = auto()
    """It has a place, and each step commits."""
    PARKED = auto()
    """Others needed its memory. Its ids are kept, and read again when there is room."""
    FINISHED = auto()


class ScheduledSession:
    """Committed ids, the draft behind them, and what its next step depends on."""

    def __init__(
        self,
        handle: SessionHandle,
        policy: DraftPolicy,
        now: float,
    ) -> None:
        """Times are those of `time.perf_counter`."""
        request = handle.request
        self.handle = handle
        self.request = request
        self.is_waiting = True
        """For its first place."""
        self.is_finished = False
        self.cache: SessionCache = _NO_CACHE
        self.granted_tokens = 0
        """That its cache may come to hold without asking for more memory."""
        self.policy = policy
        self.chooser = TokenChooser(request.sampling, request.prompt_ids, request.eos_ids)
        self.answer_ids = list(request.committed_ids)
        self.draft: Draft = ()
        self.newest_piece = 0
        """`Offer.newest_piece` of the draft."""
        self._offered_behind = 0
        """`Offer.num_committed` of the draft."""
        self.ready_at = now
        """When it could have taken its next step."""
        self._began_at = now
        self.was_awaited = False
        """Whether the draft came, or the drafter was done, after the next step could have been
        taken and before it is."""
        self._drafter_alive = request.expects_drafts
        self._in_turn = request.drafts_in_turn
        self.turn_ms = 0.0
        """How long the drafter's turn behind the newest block may take, where it takes turns; 0: it
        has none."""
        self._declined_at = -1
        """The length of the answer behind which the drafter has nothing to say."""
        self._spoiled_at = -1
        """The length of the answer behind which no draft is taken."""
        self._awaited: tuple[int, float] | None = None
        """The length of the answer behind which there was no draft yet, and since when."""

    @property
    def state(self) -> SessionState:
        if self.is_finished:
            return SessionState.FINISHED
        if self.has_place:
            return SessionState.PREFILLING if self.is_reading else SessionState.RUNNING
        return SessionState.WAITING if self.is_waiting else SessionState.PARKED

    @property
    def has_place(self) -> bool:
        """Whether steps may run it."""
        return self.cache is not _NO_CACHE

    def place(self, cache: SessionCache, granted_tokens: int, now: float) -> None:
        """It may run, or run again. `cache` may hold a beginning of its text, and has room for all
        that it may come to hold, and `BRANCH_SLOTS`."""
        self.cache, self.granted_tokens = cache, granted_tokens
        self.ready_at = now
        if self.is_waiting:
            self._began_at = now
        self.is_waiting = False

    def leave_place(self) -> SessionCache:
        """Its cache, which is not its own any more; it is parked, or finished."""
        cache, self.cache, self.granted_tokens = self.cache, _NO_CACHE, 0
        return cache

    @property
    def num_committed(self) -> int:
        """Tokens of prompt and answer."""
        return len(self.request.prompt_ids) + len(self.answer_ids)

    @property
    def num_tokens_with_draft(self) -> int:
        """That the cache would hold in the next step, if all of the draft were checked."""
        most = self.request.kv_tokens + BRANCH_SLOTS
        return min(self.num_committed + len(self.draft), most)

    @property
    def num_uncached(self) -> int:
        """Committed tokens that the cache does not hold yet; one or more."""
        return self.num_committed - self.cache.length

    @property
    def is_reading(self) -> bool:
        """Whether its prompt is still being read. Afterwards it is running: each step commits."""
        return self.num_uncached > 1

    @property
    def room(self) -> int:
        """How deep a draft may still be checked: the last token of an answer is the target's
        own."""
        return max(self.request.max_new_tokens - len(self.answer_ids) - 1, 0)

    @property
    def slots(self) -> int:
        """Draft tokens of all branches that the cache has places for in the next step."""
        granted = min(self.granted_tokens, self.request.kv_tokens + BRANCH_SLOTS)
        return max(granted - self.num_committed, 0)

    def room_behind(self, num_tokens: int, now: float) -> int:
        """Draft tokens worth having behind a block of that many tokens; none while the session is
        faster without. A drafter that takes turns has its turn with them: once for each block."""
        room = max(self.room - num_tokens, 0) if self.policy.drafts_wanted else 0
        if not self._in_turn:
            return room
        if len(self.answer_ids) == len(self.request.committed_ids):
            self.policy.turns.begin()
        self.turn_ms = self.policy.turns.next_ms((now - self._began_at) * 1e3, room)
        return room if self.turn_ms else 0

    def commit(
        self, token_ids: Sequence[int], num_cached: int, slots: Sequence[int], now: float
    ) -> None:
        """The answer grew by `token_ids`. The cache keeps its first `num_cached` tokens and those
        that the step has put at `slots` behind them. What is left of the draft is held on."""
        self.answer_ids.extend(token_ids)
        self.cache.keep(num_cached, slots)
        self.draft = behind(self.draft, token_ids)
        self.was_awaited = False
        self.ready_at = now

    def go_on_without_draft(self, num_cached: int, now: float) -> None:
        """The logits of a step were not finite, and it checked a draft: the next token is decided
        without one, behind the first `num_cached` tokens.

        Attention weighs other positions with 0, and 0 times NaN is NaN: a drafted token that
        overflows spoils every position of its step, and what the step cached.
        """
        self.cache.truncate(num_cached)
        self.draft = ()
        self.ready_at = now
        self._spoiled_at = len(self.answer_ids)

    def uncached_ids(self, most: int) -> list[int]:
        """The first `most` committed ids that the cache does not hold yet."""
        start, num_prompt = self.cache.length, len(self.request.prompt_ids)
        ids = list(self.request.prompt_ids[start : start + most])
        behind_prompt = max(start - num_prompt, 0)
        return ids + self.answer_ids[behind_prompt : behind_prompt + most - len(ids)]

    def hear(self, mail: Mail, vocabulary_size: int) -> None:
        """Takes in what its owner said."""
        if mail.expects_drafts is not None:
            self._drafter_alive = mail.expects_drafts
        if mail.declined_at is not None:
            self._hear_decline(mail.declined_at, mail.declined_when, mail.declined_needs_ms)
        if self._awaits_draft and not self._in_turn:
            self._awaited = (len(self.answer_ids), self.ready_at)
        if self._awaited is not None:
            self._note_arrival(mail, *self._awaited)
        if mail.offer is not None:
            self.take(mail.offer, vocabulary_size)

    def take(self, offer: Offer, vocabulary_size: int) -> None:
        """Of an offer that the answer has overtaken, what is left of it. Ignores one that is older
        than what is held, or ahead of the answer, and any where no draft may follow."""
        length = len(self.answer_ids)
        if not self._offered_behind <= offer.num_committed <= length or self._spoiled_at == length:
            return
        draft = in_vocabulary(offer.tokens[:MOST_DRAFT_TOKENS], vocabulary_size)
        self.draft = behind(draft, self.answer_ids[offer.num_committed :])
        self.newest_piece, self._offered_behind = offer.newest_piece, offer.num_committed

    def wait_ms(self) -> float:
        """How long its step is worth delaying for a draft that may be on its way, when it is the
        only session; 0 when there is one, and before the first token."""
        if not self._awaits_draft:
            return 0.0
        return self.turn_ms * TURN_PATIENCE if self._in_turn else self.policy.max_wait_ms()

    def due_at(self) -> float:
        """When its next step should be taken, with or without a draft, if it is the only
        session."""
        return self.ready_at + self.wait_ms() / 1e3

    def begin_step(self, now: float, *, alone: bool) -> float:
        """The step is planned now; `alone`: for no other session. Returns how long the session
        waited for it, in milliseconds."""
        if not self.answer_ids:
            return 0.0
        waited_ms = (now - self.ready_at) * 1e3
        if not self._awaits_draft:
            return waited_ms
        if alone and self.wait_ms() > 0:
            waited_for = self.policy.turns if self._in_turn else self.policy
            waited_for.waited_in_vain(waited_ms)
        if not self._in_turn:
            self._awaited = (len(self.answer_ids), self.ready_at)
        return waited_ms

    def _hear_decline(self, num_committed: int, when: float, needs_ms: float) -> None:
        # What is said before the first token is not about a turn: the prompt is being read.
        if self._in_turn and num_committed > max(self._declined_at, 0):
            in_time = num_committed == len(self.answer_ids)
            turn_ms = max(when - self.ready_at, 0.0) * 1e3
            self.policy.turns.done(turn_ms if in_time else None, needs_ms=needs_ms)
            self.was_awaited = in_time and not needs_ms
        self._declined_at = num_committed

    def _note_arrival(self, mail: Mail, num_committed: int, since: float) -> None:
        """A draft came for a place at which there was none: in time, or during the step."""
        at = mail.first_offers.get(num_committed)
        if at is not None:
            self.policy.arrived(max(at - since, 0.0) * 1e3)
            self._awaited = None
            self.was_awaited = num_committed == len(self.answer_ids)

    @property
    def _awaits_draft(self) -> bool:
        if not self._drafter_alive or not self.answer_ids or self.is_reading:
            return False
        if self.draft and not self._in_turn:
            return False
        return self.room > 0 and len(self.answer_ids) not in (self._declined_at, self._spoiled_at)
