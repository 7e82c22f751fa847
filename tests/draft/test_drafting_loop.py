"""One session's drafting against a verifier that knows the answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anydraft.text import TextTokenizer
from anydraft.v1.prompt_pb2 import Prompt
from anydraft.v1.verification_pb2 import Draft, Verdict
from draft_node.drafters.assistant import AssistantDrafter
from draft_node.drafters.base import Drafter, Piece
from draft_node.drafters.combined import CombinedDrafter
from draft_node.drafters.lookup import LookupDrafter
from draft_node.drafting_loop import DEFAULT_MAX_DRAFT, DraftingLoop
from draft_node.drafting_thread import DraftingThread
from tests.draft.scripted import ScriptedEngine, ScriptedVerifier

PROMPT = Prompt(text="Tell me how drafts work. ")
ANSWER = (
    "A draft is checked by the target in one pass; what agrees is kept. Drafts with naïve 🙂 "
    "words such as 你好 are fine. A draft is checked by the target in one pass, and so on."
)


class Session:
    """A loop and a verifier, joined."""

    def __init__(
        self, drafter: Drafter, worker: DraftingThread, verifier: ScriptedVerifier
    ) -> None:
        self.verifier = verifier
        self.arrived = asyncio.Event()
        self.loop = DraftingLoop(drafter.open(PROMPT), worker, self._send)

    async def _send(self, draft: Draft) -> bool:
        self.verifier.take(draft)
        self.arrived.set()
        return True

    async def play(self, think: Callable[[], Awaitable[int | None]]) -> None:
        """Until the answer is said; `think` is what the verifier does before a step."""
        task = asyncio.create_task(self.loop.run())
        self.loop.opened(self.verifier.credit_pieces)
        try:
            while not self.verifier.finished:
                max_accepted = await think()
                self.loop.verdict(self.verifier.step(max_accepted=max_accepted))
                assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Looks again at every draft."""
        async with asyncio.timeout(5):
            while not condition():
                self.arrived.clear()
                await self.arrived.wait()

    async def wait_for_draft(self) -> None:
        """The verifier waits while it holds nothing, but not for ever."""
        self.arrived.clear()
        if not self.verifier.buffer.held_bytes:
            try:
                async with asyncio.timeout(1):
                    await self.arrived.wait()
            except TimeoutError:
                pass


def scripted(tokenizer: TextTokenizer, script: str) -> tuple[ScriptedEngine, AssistantDrafter]:
    engine = ScriptedEngine(tokenizer, tokenizer.encode_prompt(PROMPT), script)
    return engine, AssistantDrafter(engine, tokenizer)


async def test_a_perfect_assistant_drafts_nothing_twice(
    tokenizer: TextTokenizer, worker: DraftingThread
) -> None:
    engine, drafter = scripted(tokenizer, ANSWER)
    session = Session(drafter, worker, ScriptedVerifier(ANSWER))

    async def think() -> None:
        await session.until(lambda: session.verifier.well_supplied(4))

    await session.play(think)
    tokens = len(engine.prompt_ids) + len(tokenizer.encode(ANSWER))
    assert session.verifier.num_steps < len(tokenizer.encode(ANSWER)) / 2
    # Each overtaking token costs the re-segmented words before it, and no more.
    assert engine.states[0].num_fed <= tokens + 4 * session.verifier.num_steps
    assert session.verifier.buffer.stale == 0
    assert session.loop.sent_pieces >= len(tokenizer.encode(ANSWER)) / 2
    assert session.loop.draft_ms > 0


async def test_drafting_goes_on_while_verdicts_agree(
    tokenizer: TextTokenizer, worker: DraftingThread
) -> None:
    """The verifier takes a few characters at a time; what lies beyond stays drafted and held."""
    engine, drafter = scripted(tokenizer, ANSWER)
    session = Session(drafter, worker, ScriptedVerifier(ANSWER))

    async def think() -> int:
        await session.until(lambda: session.verifier.well_supplied(8))
        return 3

    await session.play(think)
    tokens = len(engine.prompt_ids) + len(tokenizer.encode(ANSWER))
    # Nothing was cut: every id was fed once, in one draft from the first to the last.
    assert engine.states[0].num_fed <= tokens + 1
    bases = [draft.base_bytes for draft in session.verifier.drafts]
    assert bases == sorted(set(bases))
    assert session.verifier.drafts[-1].ends


@pytest.mark.parametrize("lookup", [False, True])
async def test_a_mistaken_assistant_is_followed_by_new_drafts(
    tokenizer: TextTokenizer, worker: DraftingThread, lookup: bool
) -> None:
    mistaken = ANSWER.replace("target", "tablet").replace("words", "weeds").replace("kept", "gone")
    _, drafter = scripted(tokenizer, mistaken)
    either = CombinedDrafter(drafter) if lookup else drafter
    session = Session(either, worker, ScriptedVerifier(ANSWER))

    async def think() -> None:
        await session.wait_for_draft()

    await session.play(think)
    assert session.verifier.committed == ANSWER
    assert session.verifier.num_steps < len(tokenizer.encode(ANSWER)) * 0.6
    after = [draft for draft in session.verifier.drafts if draft.base_bytes > ANSWER.index("kept")]
    assert len(after) >= 3


async def test_an_end_that_is_not_one_is_drafted_over(
    tokenizer: TextTokenizer, worker: DraftingThread
) -> None:
    cut = ANSWER.index(" Drafts with")
    engine, drafter = scripted(tokenizer, ANSWER[:cut])
    session = Session(drafter, worker, ScriptedVerifier(ANSWER[: cut + 40]))

    async def think() -> None:
        await session.wait_for_draft()
        if session.verifier.committed == ANSWER[:cut]:
            engine.script = ANSWER

    await session.play(think)
    assert any(draft.ends for draft in session.verifier.drafts)
    assert session.verifier.drafts[-1].base_bytes > cut


async def test_no_credit_no_drafts(tokenizer: TextTokenizer, worker: DraftingThread) -> None:
    engine, drafter = scripted(tokenizer, ANSWER)
    session = Session(drafter, worker, ScriptedVerifier(ANSWER, credit_pieces=0))

    async def think() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    await session.play(think)
    assert session.verifier.drafts == []
    assert engine.states[0].num_fed <= len(engine.prompt_ids) + 24


@pytest.mark.parametrize("credit", [1, 2, 5])
async def test_the_credit_is_kept(
    tokenizer: TextTokenizer, worker: DraftingThread, credit: int
) -> None:
    _, drafter = scripted(tokenizer, ANSWER)
    verifier = ScriptedVerifier(ANSWER, credit_pieces=credit)
    session = Session(drafter, worker, verifier)

    async def think() -> None:
        await session.wait_for_draft()
        assert verifier.buffer.piece_count <= credit

    await session.play(think)
    assert verifier.num_steps < len(ANSWER) / 3


async def test_lost_drafts_are_sent_again(tokenizer: TextTokenizer, worker: DraftingThread) -> None:
    _, drafter = scripted(tokenizer, ANSWER)
    session = Session(drafter, worker, ScriptedVerifier(ANSWER))
    drafts = session.verifier.drafts
    task = asyncio.create_task(session.loop.run())
    session.loop.opened(48)
    await session.until(lambda: session.loop.sent_pieces >= DEFAULT_MAX_DRAFT)
    num_before, last = len(drafts), drafts[-1]
    # Everything arrived, and yet nothing is held.
    session.loop.verdict(Verdict(draft_seq=last.seq, text=ANSWER[:2], credit_pieces=48))
    await session.until(lambda: len(drafts) > num_before)
    task.cancel()
    again = drafts[num_before]
    assert again.base_bytes == 2
    assert "".join(p.text for p in again.pieces).startswith(ANSWER[2:20])


async def test_a_verifier_hears_that_nothing_will_come(worker: DraftingThread) -> None:
    """Prompt lookup has nothing to say about most texts; waiting for it would cost a step each."""
    session = Session(LookupDrafter(), worker, ScriptedVerifier("Words that were never said."))
    waits = 0

    async def think() -> None:
        nonlocal waits
        session.arrived.clear()
        async with asyncio.timeout(5):
            await session.arrived.wait()
        waits += 1

    await session.play(think)
    assert waits == session.verifier.num_steps == len(session.verifier.drafts)
    assert not any(draft.pieces or draft.ends for draft in session.verifier.drafts)
    assert session.verifier.buffer.stale == 0
    assert session.loop.sent_pieces == 0


class Failing:
    """Drafts two pieces, then dies."""

    description = "failing"
    idle = False
    left = 2

    def open(self, prompt: Prompt) -> Failing:
        return self

    def step(self) -> Piece:
        if not self.left:
            raise RuntimeError("the engine is broken")
        self.left -= 1
        return Piece("A", -0.1)

    def commit(self, text: str, *, restart: bool) -> None:
        pass

    def close(self) -> None:
        pass


async def test_a_drafter_that_fails_ends_the_loop_with_a_warning(
    worker: DraftingThread, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session(Failing(), worker, ScriptedVerifier("AAAA"))
    session.loop.opened(10)
    with caplog.at_level(logging.WARNING):
        await session.loop.run()
    assert "goes on without drafts" in caplog.text


async def test_a_verdict_out_of_order_ends_the_loop(
    tokenizer: TextTokenizer, worker: DraftingThread, caplog: pytest.LogCaptureFixture
) -> None:
    _, drafter = scripted(tokenizer, ANSWER)
    session = Session(drafter, worker, ScriptedVerifier(ANSWER))
    session.loop.verdict(Verdict(base_bytes=7, text="x", credit_pieces=4))
    await session.loop.run()
    assert "begins at byte 7" in caplog.text


async def test_nobody_listening_ends_the_loop(
    tokenizer: TextTokenizer, worker: DraftingThread
) -> None:
    async def hang_up(draft: Draft) -> bool:
        return False

    _, drafter = scripted(tokenizer, ANSWER)
    loop = DraftingLoop(drafter.open(PROMPT), worker, hang_up)
    loop.opened(10)
    await loop.run()
    assert loop.sent_pieces > 0


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    answer=st.text("ab the.é🙂", min_size=1, max_size=40),
    script=st.text("ab the.é🙂", max_size=40),
    rhythm=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), min_size=1, max_size=6),
    credit=st.integers(0, 12),
    lookup=st.booleans(),
)
def test_any_order_of_drafts_and_verdicts(
    tokenizer: TextTokenizer,
    worker: DraftingThread,
    answer: str,
    script: str,
    rhythm: list[tuple[int, int]],
    credit: int,
    lookup: bool,
) -> None:
    """Steps come when they come. The answer is said, no draft is stale, the credit is kept."""
    _, drafter = scripted(tokenizer, script)
    verifier = ScriptedVerifier(answer, credit_pieces=credit)

    async def play() -> None:
        either = CombinedDrafter(drafter, LookupDrafter(4)) if lookup else drafter
        session = Session(either, worker, verifier)
        turns = iter(rhythm * (len(answer) + 1))

        async def think() -> int:
            waits, max_accepted = next(turns)
            for _ in range(waits):
                await asyncio.sleep(0)
            assert verifier.buffer.piece_count <= credit
            return max_accepted

        await session.play(think)

    asyncio.run(play())
    assert verifier.committed == answer
    assert verifier.buffer.stale == 0
    assert [draft.seq for draft in verifier.drafts] == list(range(1, len(verifier.drafts) + 1))
    empty = [d.base_bytes for d in verifier.drafts if not d.pieces and not d.ends]
    assert len(empty) == len(set(empty))
