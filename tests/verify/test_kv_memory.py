"""Memory for keys and values: the accounts, and prefixes, whatever order things happen in."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from anydraft.errors import ResourceExhaustedError
from verify_node.draft_policy import DraftPolicy
from verify_node.inbox import Inbox, SessionHandle
from verify_node.kv_memory import KvMemory
from verify_node.kv_pool import KvPool
from verify_node.prefix_cache import Prefix, PrefixCache
from verify_node.runners.base import SessionCache
from verify_node.sampling_settings import SamplingSettings
from verify_node.scheduled_session import ScheduledSession, SessionState
from verify_node.step_cost import StepCost
from verify_node.target import TargetRequest

BLOCK, BLOCKS = 4, 12
COST = StepCost([(1, 1.0), (64, 1.0)])


class IdsCache:
    """A `SessionCache` that holds ids, so that a test can see whose they are."""

    open_ones: int = 0

    def __init__(self, ids: tuple[int, ...] = ()) -> None:
        self.ids = list(ids)
        self.is_closed = False
        IdsCache.open_ones += 1

    @property
    def length(self) -> int:
        return len(self.ids)

    def truncate(self, length: int) -> None:
        assert not self.is_closed
        assert length <= len(self.ids)
        del self.ids[length:]

    def keep(self, length: int, slots: object) -> None:
        raise NotImplementedError

    def close(self) -> None:
        assert not self.is_closed, "freed twice"
        self.is_closed = True
        IdsCache.open_ones -= 1


class IdsRunner:
    name = "ids"
    takes_trees = False

    def new_cache(self, max_tokens: int) -> IdsCache:
        del max_tokens
        return IdsCache()

    def copy_of(self, cache: SessionCache, num_tokens: int, max_tokens: int) -> IdsCache:
        del max_tokens
        assert isinstance(cache, IdsCache)
        assert not cache.is_closed
        return IdsCache(tuple(cache.ids[:num_tokens]))

    def forward(self, rows: object) -> list[object]:
        raise NotImplementedError


def memory_of(*, blocks: int = BLOCKS, keeps_prefixes: bool = True) -> KvMemory:
    pool = KvPool(blocks, BLOCK)
    return KvMemory(IdsRunner(), pool, most_tokens=999, keeps_prefixes=keeps_prefixes)  # type: ignore[arg-type]


def session(ids: tuple[int, ...], new_tokens: int = 8, tenant: str = "") -> ScheduledSession:
    request = TargetRequest(ids, new_tokens, SamplingSettings(), (), None, False, tenant=tenant)
    return ScheduledSession(SessionHandle(Inbox(), request), DraftPolicy(COST), 0.0)


TEXTS = st.builds(
    lambda length, alike, then: tuple(9 if i < alike else then for i in range(length)),
    st.sampled_from((1, 4, 7, 12, 19, 20)),
    st.sampled_from((0, 6, 12, 20)),
    st.integers(0, 1),
)
"""Few, of which many begin alike, and some are the beginnings of others."""


class Memory(RuleBasedStateMachine):
    """Sessions come, read, grow, are parked, end and are cancelled, as the scheduler has them."""

    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        IdsCache.open_ones = 0
        self.memory = memory_of()
        self.alive: list[ScheduledSession] = []

    @property
    def placed(self) -> list[ScheduledSession]:
        return [s for s in self.alive if s.has_place]

    @rule(target=sessions, ids=TEXTS, tenant=st.sampled_from("aab"))
    def open(self, ids: tuple[int, ...], tenant: str) -> ScheduledSession:
        new = session(ids, tenant=tenant)
        self.alive.append(new)
        assert new.state is SessionState.WAITING
        return new

    @rule(who=sessions)
    def place(self, who: ScheduledSession) -> None:
        if who.has_place or who.is_finished:
            return
        alone = not self.placed
        cached = self.memory.place(who, self.placed, 0.0)
        if cached is None:
            assert not alone, "there is always room for one alone"
            return
        assert isinstance(who.cache, IdsCache)
        ids = [*who.request.prompt_ids, *who.answer_ids]
        assert cached == who.cache.length < len(ids)
        assert who.cache.ids == tenants_ids(who.request.tenant, ids[:cached])

    @rule(who=sessions, tokens=st.sampled_from((1, 5, 30)))
    def step(self, who: ScheduledSession, tokens: int) -> None:
        """Room first, for which the last to come is parked; then it reads what is uncached, as far
        as one step goes, and its answer grows."""
        while who.has_place and not self.memory.grow(who, who.num_committed):
            last = self.placed[-1]
            self.memory.release(last, keep=False)
            assert last.state is SessionState.PARKED
        if not who.has_place:
            return
        assert isinstance(who.cache, IdsCache)
        who.cache.ids += tenants_ids(who.request.tenant, who.uncached_ids(tokens))
        if who.cache.length == who.num_committed and len(who.answer_ids) < 7:
            who.answer_ids.append(len(who.answer_ids))

    @rule(ids=TEXTS, tenant=st.sampled_from("aab"))
    def whole_life(self, ids: tuple[int, ...], tenant: str) -> None:
        """Comes, reads all, says one token, and ends; if there is room."""
        who = self.open(ids, tenant)
        self.place(who)
        self.step(who, 30)
        self.end(who, True)

    @rule(who=sessions, tokens=st.integers(1, 30))
    def grow_for_a_draft(self, who: ScheduledSession, tokens: int) -> None:
        """Nobody is parked for one."""
        if who.has_place:
            before = who.granted_tokens
            grown = self.memory.grow(who, who.num_committed + tokens)
            enough = who.granted_tokens >= who.num_committed + tokens
            assert enough if grown else who.granted_tokens == before

    @rule(who=consumes(sessions), keep=st.booleans())
    def end(self, who: ScheduledSession, keep: bool) -> None:
        who.is_finished = True
        self.alive.remove(who)
        self.memory.release(who, keep=keep)
        self.memory.release(who, keep=keep)

    @invariant()
    def accounts_are_right(self) -> None:
        self.memory.check(self.placed)
        assert IdsCache.open_ones == len(self.placed) + len(self.memory.prefixes)
        for prefix in self.memory.prefixes:
            assert isinstance(prefix.cache, IdsCache)
            assert not prefix.cache.is_closed
            assert prefix.cache.ids == tenants_ids(prefix.tenant, prefix.token_ids)
        assert sum(s.granted_tokens for s in self.placed) == self.memory.tokens_held

    def teardown(self) -> None:
        for who in self.alive:
            self.memory.release(who, keep=True)
        self.memory.close()
        self.memory.check([])
        assert IdsCache.open_ones == 0
        assert self.memory.tokens_held == 0


def tenants_ids(tenant: str, ids: list[int] | tuple[int, ...]) -> list[int]:
    """As a cache holds them: with the mark of whom they were computed for."""
    return [token_id + (100 if tenant == "b" else 0) for token_id in ids]


TestMemory = Memory.TestCase
TestMemory.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


def run_to(who: ScheduledSession, answer: tuple[int, ...] = ()) -> None:
    """As if all of it were computed, but the last token."""
    who.answer_ids.extend(answer)
    assert isinstance(who.cache, IdsCache)
    who.cache.ids = [*who.request.prompt_ids, *who.answer_ids][:-1]


def placed(memory: KvMemory, ids: tuple[int, ...], **rest: str) -> tuple[ScheduledSession, int]:
    who = session(ids, **rest)  # type: ignore[arg-type]
    cached = memory.place(who, [], 0.0)
    assert cached is not None
    return who, cached


def ended(memory: KvMemory, ids: tuple[int, ...], answer: tuple[int, ...], **rest: str) -> None:
    who, _ = placed(memory, ids, **rest)
    assert memory.grow(who, len(ids) + len(answer))
    run_to(who, answer)
    memory.release(who, keep=True)


PROMPT = tuple(range(10, 22))


def test_a_chat_goes_on_where_it_was() -> None:
    """In the same memory: what it held is not held twice."""
    memory = memory_of()
    ended(memory, PROMPT, (1, 2, 3, 4, 5))
    (before,) = memory.prefixes
    chat, cached = placed(memory, (*PROMPT, 1, 2, 3, 4, 5, 90, 91))
    assert cached == len(PROMPT) + 4
    assert chat.cache is before.cache
    assert not memory.prefixes


def test_what_others_begin_with_is_copied_and_stays() -> None:
    memory = memory_of()
    ended(memory, PROMPT, (1, 2, 3, 4, 5, 6, 7))
    for last in (50, 51):
        _, cached = placed(memory, (*PROMPT[:9], last))
        assert cached == 9
        assert len(memory.prefixes) == 1


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    memory = memory_of()
    ended(memory, PROMPT, (1, 2))
    _, cached = placed(memory, PROMPT)
    assert cached == len(PROMPT) - 1


def test_tenants_share_nothing() -> None:
    memory = memory_of()
    ended(memory, PROMPT, (1, 2), tenant="a")
    assert placed(memory, PROMPT, tenant="b")[1] == 0
    assert placed(memory, PROMPT, tenant="")[1] == 0
    assert placed(memory, PROMPT, tenant="a")[1] > 0


def test_prefixes_are_given_up_first_and_the_least_used_first() -> None:
    memory = memory_of()
    for first in (1, 2, 3):
        ended(memory, (first, *PROMPT), ())
    # Three blocks each, and three are free; this uses the first, and needs four.
    _, cached = placed(memory, (1, *PROMPT[:6], *range(40, 49)))
    assert cached == 7
    assert [prefix.token_ids[0] for prefix in memory.prefixes] == [3, 1]
    assert memory.grow(placed(memory, (5, *PROMPT))[0], 28)
    assert not memory.prefixes


def test_what_others_are_computing_is_copied_as_far_as_it_is() -> None:
    memory = memory_of()
    first, _ = placed(memory, PROMPT)
    second = session((*PROMPT[:11], 60, 61))
    assert isinstance(first.cache, IdsCache)
    first.cache.ids = list(PROMPT[:10])
    assert memory.place(second, [first], 0.0) == 10
    assert isinstance(second.cache, IdsCache)
    assert second.cache is not first.cache
    assert second.cache.ids == first.cache.ids == list(PROMPT[:10])
    memory.check([first, second])
    other = session(PROMPT, tenant="b")
    memory.release(second, keep=False)
    assert memory.place(other, [first], 0.0) == 0


def test_a_copy_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> IdsCache:
        raise OSError("cannot allocate memory")

    monkeypatch.setattr(IdsRunner, "copy_of", fail)
    memory = memory_of()
    ended(memory, PROMPT, (1, 2, 3, 4, 5, 6, 7))
    who = session((*PROMPT[:9], 50))
    with pytest.raises(OSError, match="cannot allocate"):
        memory.place(who, [], 0.0)
    memory.release(who, keep=False)
    memory.check([])
    assert len(memory.prefixes) == 1


def test_a_session_that_would_never_fit() -> None:
    memory = memory_of()
    memory.check_fits(BLOCK * BLOCKS)
    with pytest.raises(ResourceExhaustedError, match="49 tokens, but the KV cache holds 48") as e:
        memory.check_fits(BLOCK * BLOCKS + 1)
    assert e.value.reason == "KV_TOO_SMALL"


def test_room_is_left_for_those_that_grow() -> None:
    memory = memory_of()
    first, _ = placed(memory, PROMPT)
    # Four blocks and two to grow by of the one, four and two of the other: twelve.
    assert memory.place(session((*PROMPT, 1, 2, 3, 4)), [first], 0.0) == 0
    memory = memory_of(blocks=11)
    first, _ = placed(memory, (*PROMPT, 9))
    assert memory.place(session((*PROMPT, 1, 2, 3, 4)), [first], 0.0) is None


@pytest.mark.parametrize("damage", ["lost", "twice", "stranger", "beyond"])
def test_the_check_finds_what_is_wrong(damage: str) -> None:
    memory = memory_of()
    who, _ = placed(memory, PROMPT)
    run_to(who)
    memory.check([who])
    pool = memory._pool
    match damage:
        case "lost":
            pool.num_free -= 1
        case "twice":
            pool.num_free += 1
        case "stranger":
            pool.take("nobody", 1)
        case "beyond":
            assert isinstance(who.cache, IdsCache)
            who.cache.ids += [7] * BLOCK
    with pytest.raises(RuntimeError):
        memory.check([who])


@pytest.mark.parametrize("agreed", range(BLOCK, 3 * BLOCK + 2))
def test_the_longest_prefix_is_found(agreed: int) -> None:
    cache = PrefixCache(BLOCK)
    wanted = tuple(range(30))
    for length in range(agreed + 1):
        ids = (*wanted[:length], *[500 + length] * 9)
        cache.add(Prefix("", ids, IdsCache()))
    found, length = cache.find("", wanted, 29)
    assert found is not None
    assert length == agreed
    assert cache.find("", wanted, BLOCK + 1)[1] == min(agreed, BLOCK + 1)
    for prefix in cache.prefixes:
        cache.remove(prefix)
    assert cache.find("", wanted, 29) == (None, 0)
    assert not cache._roots
