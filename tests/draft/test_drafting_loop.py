"""One session's drafting against a verifier that knows the answer."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anydraft.text import TextTokenizer
from anydraft.text.tree import Piece, TextTree
from anydraft.v1.prompt_pb2 import Prompt
from anydraft.v1.verification_pb2 import Draft, Verdict
from draft_node.drafters.assistant import AssistantDrafter
from draft_node.drafters.base import Drafter
from draft_node.drafters.combined import CombinedDrafter
from draft_node.drafters.lookup import LookupDrafter
from draft_node.drafting_loop import DraftingLoop
from draft_node.drafting_thread import DraftingThread
from tests.draft.scripted import HashedEngine, ScriptedEngine, ScriptedVerifier

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
        self.loop.opened(self.verifier.credit_pieces, self.verifier.credit_bytes)
        try:
            while not self.verifier.finished:
                max_accepted = await think()
                self.loop.commit(self.verifier.step(max_accepted=max_accepted))
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
        if not self.verifier.held_bytes:
            try:
                async with asyncio.timeout(1):
                    await self.arrived.wait()
            except TimeoutError:
                pass


def scripted(tokenizer: TextTokenizer, script: str) -> tuple[ScriptedEngine, AssistantDrafter]:
    engine = ScriptedEngine(tokenizer, tokenizer.encode_prompt(PROMPT), script)
    return engine, AssistantDrafter(engine, tokenizer)


async def test_a_perfect_assistant_goes_on_through_all_verdicts(
    tokenizer: TextTokenizer, worker: DraftingThread
) -> None:
    """The verifier takes a few characters at a time; what lies beyond stays drafted and held."""
    engine, drafter = scripted(tokenizer, ANSWER)
    session = Session(drafter, worker, ScriptedVerifier(ANSWER))

    async def think() -> int:
        rest = len(ANSWER) - len(session.verifier.committed)
        await session.until(lambda: session.verifier.longest >= min(6, rest // 6))
        return 3

    await session.play(think)
    (state,) = engine.states
    # No root was ever lost: the prompt was read, everything else was drafted, and once.
    assert state.num_read == len(engine.prompt_ids)
    assert session.verifier.num_repeated == 0
    assert session.loop.draft_ms > 0


async def test_an_accepted_draft_saves_steps(
    tokenizer: TextTokenizer, worker: DraftingThread
) -> None:
    _, drafter = scripted(tokenizer, ANSWER)
    session = Session(drafter, worker, ScriptedVerifier(ANSWER))

    async def think() -> None:
        rest = len(ANSWER) - len(session.verifier.committed)
        await session.until(lambda: session.verifier.longest >= min(4, rest // 6))

    await session.play(think)
    assert session.verifier.num_steps < len(tokenizer.encode(ANSWER)) / 3


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
    assert any(piece.ends for draft in session.verifier.drafts for piece in draft.pieces)
    assert session.verifier.drafts[-1].base_bytes > cut


async def test_no_credit_no_drafts(tokenizer: TextTokenizer, worker: DraftingThread) -> None:
    """And no drafting: a session that gains nothing costs nothing."""
    engine, drafter = scripted(tokenizer, ANSWER)
    session = Session(drafter, worker, ScriptedVerifier(ANSWER, credit_pieces=0))

    async def think() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    await session.play(think)
    assert session.verifier.drafts == []
    assert engine.states[0].num_fed == 0


async def test_credit_that_comes_back_is_used(
    tokenizer: TextTokenizer, worker: DraftingThread
) -> None:
    _, drafter = scripted(tokenizer, ANSWER)
    verifier = ScriptedVerifier(ANSWER, credit_pieces=0)
    session = Session(drafter, worker, verifier)

    async def think() -> None:
        if verifier.num_steps == 4:
            verifier.credit_pieces = 20
        if verifier.num_steps > 4:
            await session.wait_for_draft()

    await session.play(think)
    assert verifier.drafts[0].base_bytes > 0
    assert verifier.num_steps < len(tokenizer.encode(ANSWER)) * 0.7


@pytest.mark.parametrize(("credit", "credit_bytes"), [(1, 1000), (2, 1000), (5, 1000), (40, 12)])
async def test_the_credit_is_kept(
    tokenizer: TextTokenizer, worker: DraftingThread, credit: int, credit_bytes: int
) -> None:
    _, drafter = scripted(tokenizer, ANSWER)
    verifier = ScriptedVerifier(ANSWER, credit_pieces=credit, credit_bytes=credit_bytes)
    session = Session(drafter, worker, verifier)

    async def think() -> None:
        await session.wait_for_draft()
        assert verifier.tree.num_pieces <= credit
        assert verifier.held_bytes <= credit_bytes

    await session.play(think)
    assert verifier.num_steps < len(ANSWER) / 3


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
    assert not any(draft.pieces for draft in session.verifier.drafts)
    assert session.loop.sent_pieces == 0


class Failing:
    """Drafts two pieces, then dies."""

    description = "failing"
    idle = False
    needs_ms = 0.0
    left = 2

    def open(self, prompt: Prompt, **_: object) -> Failing:
        return self

    def worth(self, tree: TextTree) -> float:
        return 1.0

    def grow(self, tree: TextTree, limit: int) -> None:
        if not self.left:
            raise RuntimeError("the engine is broken")
        self.left -= 1
        tree.hang(Piece(b"A" * self.left, -0.1) if self.left else Piece(b"B", -0.1))

    def commit(self, text: str, *, turn_ms: float) -> None:
        pass

    def close(self) -> None:
        pass


async def test_a_drafter_that_fails_ends_the_loop_with_a_warning(
    worker: DraftingThread, caplog: pytest.LogCaptureFixture
) -> None:
    verifier = ScriptedVerifier(ANSWER)
    session = Session(Failing(), worker, verifier)
    session.loop.opened(10, 1000)
    with caplog.at_level(logging.WARNING):
        await session.loop.run()
    assert "the answer goes on without drafts" in caplog.text
    assert "the engine is broken" in caplog.text


async def test_a_verdict_that_does_not_follow_ends_the_loop(
    tokenizer: TextTokenizer, worker: DraftingThread, caplog: pytest.LogCaptureFixture
) -> None:
    _, drafter = scripted(tokenizer, ANSWER)
    session = Session(drafter, worker, ScriptedVerifier(ANSWER))
    session.loop.opened(10, 1000)
    session.loop.commit(Verdict(base_bytes=7, text="x"))
    await session.loop.run()
    assert "begins at byte 7, but 0 are committed" in caplog.text


async def test_nobody_listens_any_more(tokenizer: TextTokenizer, worker: DraftingThread) -> None:
    async def hang_up(draft: Draft) -> bool:
        return False

    engine, drafter = scripted(tokenizer, ANSWER)
    loop = DraftingLoop(drafter.open(PROMPT), worker, hang_up)
    loop.opened(10, 1000)
    await loop.run()
    assert loop.sent_pieces > 0
    worker.close()
    assert engine.states[0].is_closed


Paths = Counter[tuple[bytes, ...]]


def paths(tree: TextTree) -> Paths:
    """What is held, by what each node and those above it say."""
    return Counter(
        tuple(b"</s>" if step.ends else tree.rest(step) for step in tree.path(held.node))
        for held in tree.best_first()
    )


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    answer=st.text("ab the.é🙂", min_size=1, max_size=40),
    script=st.one_of(st.none(), st.text("ab the.é🙂", max_size=40)),
    rhythm=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), min_size=1, max_size=6),
    credit=st.integers(0, 30),
    credit_bytes=st.integers(1, 80),
    lookup=st.booleans(),
    max_paths=st.sampled_from([1, 4]),
    delays=st.lists(st.integers(0, 40), min_size=1, max_size=5),
)
def test_any_order_of_drafts_and_verdicts(
    tokenizer: TextTokenizer,
    worker: DraftingThread,
    answer: str,
    script: str | None,
    rhythm: list[tuple[int, int]],
    credit: int,
    credit_bytes: int,
    lookup: bool,
    max_paths: int,
    delays: list[int],
) -> None:
    """Whatever the verdicts, and however late drafts and verdicts are: the answer is said, the
    credit is kept, nothing is sent twice, and in the end both nodes hold the same."""
    kind = ScriptedEngine if script is not None else HashedEngine
    ids = tokenizer.encode_prompt(PROMPT)
    engine = kind(tokenizer, ids, script or "", max_paths=max_paths)
    assistant = AssistantDrafter(engine, tokenizer)
    drafter = CombinedDrafter(assistant) if lookup else assistant
    verifier = ScriptedVerifier(answer, credit_pieces=credit, credit_bytes=credit_bytes)

    async def play() -> None:
        late = iter(delays * 10_000)
        wire: asyncio.Queue[Draft] = asyncio.Queue()

        async def send(draft: Draft) -> bool:
            wire.put_nowait(draft)
            await asyncio.sleep(0)
            return True

        async def carry() -> None:
            while True:
                draft = await wire.get()
                for _ in range(next(late)):
                    await asyncio.sleep(0)
                verifier.take(draft)
                assert verifier.tree.num_pieces <= credit
                assert verifier.held_bytes <= credit_bytes
                wire.task_done()

        loop = DraftingLoop(drafter.open(PROMPT), worker, send)
        tasks = [asyncio.create_task(loop.run()), asyncio.create_task(carry())]
        loop.opened(credit, credit_bytes)
        turns = iter(rhythm * (len(answer) + 1))
        while not verifier.finished:
            waits, max_accepted = next(turns)
            for _ in range(waits):
                await asyncio.sleep(0)
            verdict = verifier.step(max_accepted=max_accepted)
            loop.commit(verdict)
        await until_at_rest(loop)
        await wire.join()
        assert not any(task.done() for task in tasks)
        sent = loop._outbox._sent
        assert all(node in loop._tree for node in sent)
        assert paths(verifier.tree) == Counter(
            tuple(b"</s>" if step.ends else loop._tree.rest(step) for step in loop._tree.path(node))
            for node in sent
        )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        loop.close()

    asyncio.run(play())
    assert verifier.committed == answer
    first = [draft.first_piece for draft in verifier.drafts]
    after = [draft.first_piece + len(draft.pieces) for draft in verifier.drafts]
    assert first == [1, *after][: len(first)]
    empty = [draft.base_bytes for draft in verifier.drafts if not draft.pieces]
    assert len(empty) == len(set(empty))


async def until_at_rest(loop: DraftingLoop) -> None:
    """Until it waits for a verdict that will not come."""
    async with asyncio.timeout(10):
        quiet = 0
        while quiet < 5:
            await asyncio.sleep(0.001)
            is_quiet = not loop._commits and not loop._woken.is_set() and not loop._may_grow()
            quiet = quiet + 1 if is_quiet else 0
