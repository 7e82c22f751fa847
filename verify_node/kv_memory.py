"""Memory for the keys and values of all sessions: who gets some, and what is given up for it.

Sessions hold blocks for what they have, not for what they may come to have. What ends is kept as a
prefix for as long as nobody needs the blocks. Whom to park when nothing is left to give up, and
who is next, is the scheduler's business.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable

from anydraft.errors import ResourceExhaustedError
from anydraft.text.common_prefix import common_prefix
from verify_node.kv_pool import KvPool
from verify_node.prefix_cache import Prefix, PrefixCache
from verify_node.runners.base import ModelRunner, SessionCache
from verify_node.scheduled_session import BRANCH_SLOTS, ScheduledSession

_log = logging.getLogger(__name__)

_GROWTH_TOKENS = 64
"""That each session is expected to grow by soon. Room for that is left when one is placed: who is
placed too early is parked soon, and read again."""
_LEAST_ALIKE = 16
"""Tokens in which texts must agree for it to be worth a copy."""
_MOST_PREFIXES = 128
"""Each has its own mappings of memory, of which a process may have 65,530."""


class KvMemory:
    """The step thread's own. A session has memory from `place` to `release`."""

    def __init__(
        self, runner: ModelRunner, pool: KvPool, *, most_tokens: int, keeps_prefixes: bool
    ) -> None:
        """`most_tokens`: of any one session. `keeps_prefixes`: if the runner can."""
        self._runner = runner
        self._pool = pool
        self._most_tokens = min(most_tokens, pool.num_blocks * pool.block_tokens) + BRANCH_SLOTS
        self._least_alike = min(pool.block_tokens, _LEAST_ALIKE)
        self._prefixes = PrefixCache(self._least_alike)
        self._copy_of = runner.copy_of if keeps_prefixes else None

    @property
    def prefixes(self) -> list[Prefix]:
        """What is kept of sessions that have ended; what was used longest ago first."""
        return self._prefixes.prefixes

    @property
    def tokens_held(self) -> int:
        """Tokens that sessions have blocks for."""
        pool = self._pool
        of_prefixes = sum(pool.blocks_held(prefix) for prefix in self._prefixes.prefixes)
        return (pool.num_blocks - pool.num_free - of_prefixes) * pool.block_tokens

    def check_fits(self, num_tokens: int) -> None:
        """Raises ResourceExhaustedError when a session of that size would never have room."""
        most = self._pool.num_blocks * self._pool.block_tokens
        if num_tokens > most:
            raise ResourceExhaustedError(
                f"prompt and answer may take {num_tokens} tokens, but the KV cache holds "
                f"{most}. Ask for fewer new tokens, or start the node with a larger --kv-tokens.",
                reason="KV_TOO_SMALL",
            )

    def place(
        self, session: ScheduledSession, beside: Iterable[ScheduledSession], now: float
    ) -> int | None:
        """Gives a session a cache with room for all that it has, and returns how many of its tokens
        are already there; None when there is no room for it `beside` those that have theirs.

        When `beside` is empty and the session fits at all, there always is.
        """
        pool, others = self._pool, list(beside)
        need = session.num_committed
        if others:
            growth = sum(self._growth(other) for other in (*others, session))
            if pool.blocks_of(need) + growth > self._num_available:
                return None
        prefix, length = self._find(session)
        cache = self._copy_beside(session, others, length + self._least_alike)
        if cache is None and prefix is not None:
            cache = self._take_over(session, prefix, length) or self._copy(session, prefix, length)
        if not self._take(session, need):
            raise RuntimeError(f"{need} tokens were thought to fit")
        cache = cache or self._runner.new_cache(self._most_tokens)
        session.place(cache, pool.tokens_held(session), now)
        return session.cache.length

    def grow(self, session: ScheduledSession, num_tokens: int) -> bool:
        """Room for `num_tokens` in all, for which prefixes are given up; False when that is not
        enough."""
        if not self._take(session, num_tokens):
            return False
        session.granted_tokens = self._pool.tokens_held(session)
        return True

    def release(self, session: ScheduledSession, *, keep: bool) -> None:
        """The session has no memory any more, also when `place` failed halfway. `keep`: what its
        cache holds is whole, and may be of use to others. Idempotent."""
        cache = session.leave_place()
        kept = keep and self._copy_of is not None and self._keep(session, cache)
        if not kept:
            self._free(session, cache)

    def close(self) -> None:
        """Gives up all prefixes."""
        while len(self._prefixes):
            self._give_up(self._prefixes.prefixes[0])

    def check(self, placed: Iterable[ScheduledSession]) -> None:
        """RuntimeError unless the accounts are right, and all who have tokens have blocks for
        them."""
        self._pool.check()
        caches: dict[Hashable, SessionCache] = {session: session.cache for session in placed}
        caches.update({prefix: prefix.cache for prefix in self._prefixes.prefixes})
        if strangers := self._pool.holders - caches.keys():
            raise RuntimeError(f"{len(strangers)} holders of blocks are nobody's")
        for holder, cache in caches.items():
            if cache.length > self._pool.tokens_held(holder):
                raise RuntimeError(
                    f"{cache.length} tokens in blocks for {self._pool.tokens_held(holder)}"
                )

    @property
    def _num_available(self) -> int:
        """Blocks that are free, or may be."""
        return self._pool.num_free + sum(map(self._pool.blocks_held, self._prefixes.prefixes))

    def _growth(self, session: ScheduledSession) -> int:
        left = session.request.kv_tokens - session.num_committed
        return self._pool.blocks_of(min(left, _GROWTH_TOKENS))

    def _find(self, session: ScheduledSession) -> tuple[Prefix, int] | tuple[None, int]:
        """Of all but the last token: its logits are needed."""
        most = session.num_committed - 1
        ids = [*session.request.prompt_ids, *session.answer_ids]
        prefix, length = self._prefixes.find(session.request.tenant, ids, most)
        if prefix is None:
            return None, 0
        self._prefixes.use(prefix)
        return prefix, length

    def _take_over(
        self, session: ScheduledSession, prefix: Prefix, length: int
    ) -> SessionCache | None:
        """The prefix's own cache, where nothing worth keeping is lost by it, as when a chat goes
        on: it costs neither time nor memory."""
        if len(prefix.token_ids) - length > self._pool.block_tokens:
            return None
        self._prefixes.remove(prefix)
        self._pool.hand_over(prefix, session)
        prefix.cache.truncate(length)
        return prefix.cache

    def _copy(self, session: ScheduledSession, prefix: Prefix, length: int) -> SessionCache | None:
        """A copy of its beginning, in about a hundredth of the time that computing it takes. None
        where there is only room for one of both."""
        while not self._pool.take(session, session.num_committed):
            oldest = self._prefixes.prefixes[0]
            if oldest is prefix:
                return None
            self._give_up(oldest)
        return self._copy_of and self._copy_of(prefix.cache, length, self._most_tokens)

    def _copy_beside(
        self, session: ScheduledSession, others: Iterable[ScheduledSession], least: int
    ) -> SessionCache | None:
        """A copy of what one of the others has already computed of the same text, where that is
        `least` tokens or more: many that come at once often begin alike."""
        if self._copy_of is None:
            return None
        most = session.num_committed - 1
        ids = [*session.request.prompt_ids, *session.answer_ids][:most]
        source: ScheduledSession | None = None
        for other in others:
            if other.request.tenant == session.request.tenant and other.cache.length >= least:
                held = [*other.request.prompt_ids, *other.answer_ids][: other.cache.length]
                alike = common_prefix(ids, held)
                if alike >= least:
                    source, least = other, alike + 1
        if source is None or not self._take(session, session.num_committed):
            return None
        return self._copy_of(source.cache, least - 1, self._most_tokens)

    def _take(self, session: ScheduledSession, num_tokens: int) -> bool:
        while not self._pool.take(session, num_tokens):
            if not len(self._prefixes):
                return False
            self._give_up(self._prefixes.prefixes[0])
        return True

    def _keep(self, session: ScheduledSession, cache: SessionCache) -> bool:
        ids = (*session.request.prompt_ids, *session.answer_ids)[: cache.length]
        tenant = session.request.tenant
        like, agreed = self._prefixes.find(tenant, ids, len(ids))
        if like is not None and agreed == len(ids):
            self._prefixes.use(like)
            return False
        if len(ids) < self._least_alike:
            return False
        for shorter in self._prefixes.contained_in(tenant, ids):
            self._give_up(shorter)
        if len(self._prefixes) == _MOST_PREFIXES:
            self._give_up(self._prefixes.prefixes[0])
        prefix = Prefix(tenant, ids, cache)
        self._prefixes.add(prefix)
        self._pool.hand_over(session, prefix)
        return True

    def _give_up(self, prefix: Prefix) -> None:
        self._prefixes.remove(prefix)
        self._free(prefix, prefix.cache)

    def _free(self, holder: ScheduledSession | Prefix, cache: SessionCache) -> None:
        self._pool.give_back(holder)
        try:
            cache.close()
        except Exception:
            _log.exception("a session's cache was not freed")
